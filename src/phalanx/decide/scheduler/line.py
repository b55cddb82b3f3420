"""Who waits for which devices, as a plan is made: the head of each pool, and places in the queues."""

from collections import Counter
from collections.abc import Iterable

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.snapshot import PendingJob


class Line:
    """One line per device type. The first job that has to wait for a type is its head: freed devices are kept for it, and
    nobody behind it may take them, so that a large gang is not passed for ever by small jobs."""

    def __init__(self) -> None:
        self.heads: dict[str, JobId] = {}
        self._waiting: Counter[str] = Counter()

    def open(self, kinds: Iterable[str]) -> list[str]:
        """Those of `kinds` that are kept for nobody."""
        return [kind for kind in kinds if kind not in self.heads]

    def join(self, job: PendingJob, kinds: Iterable[str]) -> int:
        """The job waits for any of `kinds`. Its place, from 1, among the waiting jobs of its queue."""
        self._waiting[job.queue] += 1
        for kind in kinds:
            self.heads.setdefault(kind, job.job)
        return self._waiting[job.queue]
