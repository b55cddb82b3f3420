"""Measures the held-out scores of a run, and says them."""

import logging
import math
from collections.abc import Mapping
from typing import Final

from phalanx.job.train.evaluate import held_out_scores
from phalanx.job.train.setup import Training
from phalanx.job.train.watch import HELD_OUT_MARK

_log: Final = logging.getLogger(__name__)


def measure(training: Training, name: str, step: int) -> float:
    """A collective of all ranks. name: of the loss. NaN, and nothing is said, in a run that leaves it out."""
    return measure_all(training, name, step).get(name, math.nan)


def measure_all(training: Training, name: str, step: int) -> Mapping[str, float]:
    """As `measure`, with what else the model is scored by: val_loss_final comes with val_accuracy_final. Nothing in a run that
    leaves it out."""
    if not training.held_out.num_batches:
        return {}
    moved = lambda index: training.watch.moved(step, HELD_OUT_MARK + index)  # noqa: E731
    scores = held_out_scores(training.model, training.held_out, moved)
    found = {name.replace("loss", score): value for score, value in scores.items()}
    for one, value in found.items():
        if training.rank.rank == 0:
            training.session.metric(step=step, name=one, value=value)
        _log.info("%s %.4f", one, value)
    return found
