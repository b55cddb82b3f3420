"""Measures the held-out loss of a run, and says it."""

import logging
import math
from typing import Final

from phalanx.job.train.evaluate import held_out_loss
from phalanx.job.train.setup import Training
from phalanx.job.train.watch import HELD_OUT_MARK

_log: Final = logging.getLogger(__name__)


def measure(training: Training, name: str, step: int) -> float:
    """A collective of all ranks. NaN, and nothing is said, in a run that leaves it out."""
    if not training.held_out.num_batches:
        return math.nan
    value = held_out_loss(training.model, training.held_out, lambda index: training.watch.moved(step, HELD_OUT_MARK + index))
    if training.rank.rank == 0:
        training.session.metric(step=step, name=name, value=value)
    _log.info("%s %.4f", name, value)
    return value
