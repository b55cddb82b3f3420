"""What jobs of a batch were told, so that those who hear the same again get the very same answer: making thousands of equal ones in
every decision costs more than finding out that they are."""

from dataclasses import dataclass, replace

from phalanx.core.reasons import Behind
from phalanx.decide.scheduler.line.sweeps import Batch
from phalanx.decide.scheduler.plan import Wait
from phalanx.decide.scheduler.snapshot import PendingJob


@dataclass(frozen=True, slots=True)
class _Answers:
    """To jobs[at:end], after the one before them was told `first`."""

    jobs: tuple[PendingJob, ...]
    at: int
    end: int
    first: Wait
    waits: list[Wait]


class Told:
    """In the last decision and in this one."""

    def __init__(self) -> None:
        self._before: dict[int, _Answers] = {}
        self._now: dict[int, _Answers] = {}

    def begin(self) -> None:
        """A decision; what is not told again in it is forgotten with its end."""
        self._before, self._now = self._now, {}

    def after(self, first: Wait, batch: Batch) -> list[Wait]:
        """All of the batch that may be decided wait as the one before them does, each one place after the other."""
        known = self._before.get(id(batch.jobs))
        if (
            known is None
            or (known.jobs is not batch.jobs or known.at != batch.at or known.end != batch.end)
            or known.first != first
        ):
            jobs = batch.jobs[batch.at : batch.end]
            waits = [_waits(job, first, number) for number, job in enumerate(jobs, 1)]
            known = _Answers(batch.jobs, batch.at, batch.end, first, waits)
        self._now[id(batch.jobs)] = known  # with the jobs, so that no others get their number
        return known.waits


def _waits(job: PendingJob, first: Wait, number: int) -> Wait:
    if first.position is None:
        return Wait(job.facts.job, first.reason, None)
    position = first.position + number
    reason = replace(first.reason, position=position) if isinstance(first.reason, Behind) else first.reason
    return Wait(job.facts.job, reason, position)
