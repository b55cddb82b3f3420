"""Each rank's record of what it is given, for `phalanx data audit`: in the job's folder, a file a rank and generation."""

import contextlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from phalanx.core.errors import PhalanxError
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.job.data.deliveries import FOLDER, DeliveryLog, Head
from phalanx.job.data.images.open import ImageData
from phalanx.job.data.order_facts import facts_of
from phalanx.job.train.setup import Start, Training

_log: Final = logging.getLogger(__name__)


@contextmanager
def recording(training: Training, start: Start) -> Iterator[None]:
    """While the feed is used. Outside Phalanx, where nobody numbers attempts, nothing is recorded; nor where it cannot be: a run is
    worth more than its proof."""
    reads = training.rank.model_rank == 0  # of those that get the same samples one says so
    log = _opened(training, start) if reads and training.session.attempt and training.data.asked.record else None
    training.feed.record(log)
    try:
        yield
    finally:
        training.feed.record(None)
        if log is not None:
            log.close()


def _opened(training: Training, start: Start) -> DeliveryLog | None:
    def told(step: int, why: str) -> None:
        if training.session.local_rank == 0:  # the others of its node have the same disk
            training.session.not_recorded(step=step + 1, reason=why)

    try:
        return DeliveryLog(Path(training.session.job_dir) / FOLDER, _head(training, start), told)
    except PhalanxError as error:
        _log.warning("what this rank is given cannot be recorded, and an audit will miss it: %s", error.sentence())
        told(start.step, error.sentence())
        return None


def _head(training: Training, start: Start) -> Head:
    data, rank = training.data, training.rank
    sequence = 0 if isinstance(data, ImageData) else training.recipe.sequence
    attempt = 0
    with contextlib.suppress(ValueError):
        attempt = split_attempt(AttemptId(training.session.attempt))[1]
    return Head(
        attempt=attempt, generation=rank.generation, rank=rank.data_rank, world_size=rank.data_size, start=start.step,
        order=facts_of(training.order), data=data.manifests, sequence=sequence, asked=data.asked,
    )  # fmt: skip
