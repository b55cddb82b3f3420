"""How the jobs stand that others come after. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from phalanx.core.ids import JobId, job_id
from phalanx.core.states import Finished
from phalanx.operate.control.world import JobRecord, World

AFTER_NAMED: Final = 100
"""Of an array's jobs that another one waits for."""


class Outcomes:
    """Of jobs that others come after, each looked at once: those that may still succeed, and those that did not. A failed one that
    is retried may again. The first job of an array stands for all of it, of which the first AFTER_NAMED are named."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, tuple[tuple[JobId, ...], tuple[JobId, ...]]] = {}

    def of(self, after: Iterable[str]) -> tuple[tuple[JobId, ...], tuple[JobId, ...]]:
        """(unmet, failed) of the jobs that a spec names."""
        found = [self._one(name) for name in after]
        return tuple(name for unmet, _ in found for name in unmet), tuple(name for _, failed in found for name in failed)

    def _one(self, name: str) -> tuple[tuple[JobId, ...], tuple[JobId, ...]]:
        if name not in self._known:
            states = [(one.id, one.state) for one in self._stands_for(name)]
            unmet = (job for job, state in states if not isinstance(state, Finished))
            failed = (job for job, state in states if isinstance(state, Finished) and state.outcome != "succeeded")
            self._known[name] = tuple(islice(unmet, AFTER_NAMED)), tuple(islice(failed, AFTER_NAMED))
        return self._known[name]

    def _stands_for(self, name: str) -> Iterator[JobRecord]:
        first = self._world.jobs.get(JobId(name))
        if first is None or first.array != first.id or first.spec.array is None:
            yield from () if first is None else (first,)
            return
        for number in range(first.sequence, first.sequence + first.spec.array.count):
            if (member := self._world.jobs.get(job_id(first.spec.name, number))) is not None:
                yield member
