"""A recipe's traces: the steps that its job, or somebody while it runs, asks for, with what each of them does marked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from torch import nn

from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.job.train.setup import Training
from phalanx.job.train.traces.profile import Profile
from phalanx.job.train.traces.requested import Requested
from phalanx.job.train.traces.timeline import AGREEMENT, DATA_WAIT, FORWARD_BACKWARD, OPTIMIZER

PHASES: Final = (DATA_WAIT, FORWARD_BACKWARD, AGREEMENT, OPTIMIZER)
"""What begins at each mark that `train_step` passes; nothing does at the one after them."""


class Traced(Profile):
    """Of one rank and one generation. moved: as `train_step` calls it."""

    def __init__(self, training: Training, moved: Callable[[int, int], None]) -> None:
        session, rank = training.session, training.rank
        super().__init__(Path(session.artifacts_dir), rank.slot, rank.device, {"pipeline": _pipeline(training.model)})
        self._moved = moved
        self.requested = Requested(session, rank.slot, self)

    def at(self, step: int) -> None:
        self.requested.at(step)
        super().at(step)

    def close(self, failed: bool = False, wait_s: float | None = None, waiting: Callable[[], None] = lambda: None) -> None:
        super().close(failed, wait_s, waiting)
        self.requested.tell()

    def moved(self, step: int, mark: int) -> None:
        self._moved(step, mark)
        self.phase(PHASES[mark] if mark < len(PHASES) else "")


def _pipeline(model: nn.Module) -> dict[str, Any] | None:
    """As `core.profile.TracedPipeline`; None of a model without one."""
    layout = getattr(getattr(model, "passes", None), "layout", None)
    return asdict(layout) if isinstance(layout, PipelineLayout) else None


@contextmanager
def traced(training: Training, step: int) -> Iterator[Traced]:
    """While steps are made, the first of them after `step`; of those that were asked for the ones that are left are traced.

    What is being written at the end is waited for by `finish_traces`; after an error, which others may have to recover from,
    nothing is.
    """
    trace, asked = Traced(training, training.watch.moved), training.session.profile
    if asked is not None and asked.first + asked.count - 1 > step:
        first = max(asked.first, step + 1)
        trace.ask(first, asked.first + asked.count - first, step + 1)
    try:
        yield trace
    except BaseException:
        trace.requested.drop()
        trace.close(failed=True, wait_s=0.0)
        raise
    trace.end()
    training.traces.append(trace)


def finish_traces(training: Training, wait_s: float | None = None) -> None:
    """Waits for what is being written. To be called after the last collective of the run: a rank whose trace takes minutes would
    else have the others wait in one, longer than NCCL does. wait_s: at most so long."""
    for trace in training.traces:
        trace.close(wait_s=wait_s, waiting=training.watch.waiting)
