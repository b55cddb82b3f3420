"""Who waits for which devices, as a plan is made: the head of each pool, and places in the line."""

from collections import Counter
from collections.abc import Iterable

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.snapshot import PendingJob


class Line:
    """One line per device type. The first job that has to wait for a type is its head: freed devices are kept for it, and
    nobody behind it may take them, so that a large gang is not passed for ever by small jobs."""

    def __init__(self) -> None:
        self.heads: dict[str, JobId] = {}
        self._waiting: Counter[frozenset[str]] = Counter()

    def open(self, kinds: Iterable[str]) -> list[str]:
        """Those of `kinds` that are kept for nobody."""
        return [kind for kind in kinds if kind not in self.heads]

    def join(self, job: PendingJob, kinds: Iterable[str]) -> int:
        """The job waits for any of `kinds`. Its place, from 1, among those that could use the same devices."""
        wanted = frozenset(kinds)
        before = sum(number for others, number in self._waiting.items() if others & wanted)
        self._waiting[wanted] += 1
        for kind in wanted:
            self.heads.setdefault(kind, job.job)
        return before + 1
