"""Which of the deliveries of a run count: legs of gangs, end to end. Pure.

A gang is all ranks of one generation of one attempt. A later one supersedes the steps that it makes again; what it goes on from was
made by the newest gang before it that has all of the steps before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.core.data_audit import DeliveryFault, FaultKind
from phalanx.job.data.deliveries import Deliveries, Fields
from phalanx.job.data.quarantine import SetAside

_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Gang:
    """logs: by rank. start: the first step, counted from 0."""

    attempt: int
    generation: int
    world_size: int
    start: int
    logs: Mapping[int, Deliveries]

    @property
    def reaches(self) -> list[int]:
        """Of each rank, the step behind its last one."""
        last = [max(self.logs[rank].batches, default=-1) if rank in self.logs else -1 for rank in range(self.world_size)]
        return [max(self.start, step + 1) for step in last]

    @property
    def fields(self) -> Fields:
        return next(iter(self.logs.values())).head.fields

    @property
    def steps(self) -> set[int]:
        return {step for log in self.logs.values() for step in log.batches}

    @property
    def set_aside(self) -> set[SetAside]:
        return {one for log in self.logs.values() for one in log.set_aside}


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps [first, stop) of a gang, which count."""

    gang: Gang
    first: int
    stop: int


class Wrong(Exception):
    """The audit is over."""

    def __init__(self, fault: DeliveryFault) -> None:
        self.fault = fault


def gangs_of(logs: Sequence[Deliveries]) -> list[Gang]:
    """Oldest first. Ranks of one gang have to be of one mind."""
    together: dict[tuple[int, int], dict[int, Deliveries]] = {}
    for log in logs:
        together.setdefault((log.head.attempt, log.head.generation), {})[log.head.rank] = log
    gangs = []
    for (attempt, generation), ranks in sorted(together.items()):
        first = ranks[min(ranks)].head
        gang = Gang(attempt, generation, first.world_size, first.start, ranks)
        for rank, log in sorted(ranks.items()):
            for name in ("world_size", "start", "data", "order", "sequence", "fields"):
                mine, theirs = getattr(log.head, name), getattr(first, name)
                if mine != theirs:
                    raise wrong("ranks", gang, rank, -1, f"has {name} {_short(mine)}, and rank {first.rank} has {_short(theirs)}")
            if not 0 <= rank < first.world_size:
                raise wrong("ranks", gang, rank, -1, f"is outside a gang of {first.world_size}")
        gangs.append(gang)
    return gangs


def stretches_of(gangs: Sequence[Gang], wanted: int = 0, known: bool = False) -> list[Stretch]:
    """From the first step to the last one, as far as there are records. wanted: so many steps were made for certain. known: that
    is by other evidence, so that what ranks have behind it proves nothing."""
    delivering = [gang for gang in gangs if gang.steps]
    if not delivering:
        return []
    newest = delivering[-1]
    least, most = min(newest.reaches), max(newest.reaches)
    together = known or most - least <= 1  # ranks that were ended together are a step apart
    stop = max(least, newest.start) if together and least >= wanted else most
    found = [Stretch(newest, newest.start, stop)]
    while (upper := found[0].first) > 0:
        earlier = [gang for gang in delivering if gang.start < upper and gang is not found[0].gang]
        earlier = earlier[: _index(earlier, found[0].gang)]
        if not earlier:
            break
        whole = [gang for gang in earlier if min(gang.reaches) >= upper]
        gang = whole[-1] if whole else max(reversed(earlier), key=lambda one: max(one.reaches))
        found.insert(0, Stretch(gang, gang.start, upper))
    return found


def _index(gangs: Sequence[Gang], before: Gang) -> int:
    """How many of them are older."""
    return sum((one.attempt, one.generation) < (before.attempt, before.generation) for one in gangs)


def check_joints(stretches: Sequence[Stretch], global_batch: int) -> None:
    """A run begins with its first step, and what was set aside stays so."""
    if stretches and stretches[0].first > 0:
        raise wrong("missing", stretches[0].gang, 0, 0, f"nobody recorded the steps before step {stretches[0].first + 1}")
    for index, after in enumerate(stretches[1:], start=1):
        before = stretches[index - 1].gang
        now = _data(after.gang)  # what is not there any more was not read, or the rows are wrong
        if other := next((name for name, was in _data(before).items() if now.get(name, was) != was), None):
            raise wrong("ranks", after.gang, 0, after.first, f"reads other data as {other} than the gang before it")
        past = {one for one in before.set_aside if one.since < after.first * global_batch}
        if past - after.gang.set_aside:
            raise wrong(
                "ranks", after.gang, 0, after.first, "does not know of damaged blocks that the gang before it had set aside"
            )


def _data(gang: Gang) -> Mapping[str, str]:
    return next(iter(gang.logs.values())).head.data


def wrong(kind: FaultKind, gang: Gang, rank: int, step: int, says: str, about: tuple[str, int] = ("", -1)) -> Wrong:
    """step: counted from 0; -1 where it is of none."""
    where = f"attempt {gang.attempt}, generation {gang.generation}: rank {rank}"
    at = f"step {step + 1} of {where}" if step >= 0 else where
    return Wrong(DeliveryFault(
        kind=kind, attempt=gang.attempt, generation=gang.generation, rank=rank, step=step + 1, source=about[0], sample=about[1],
        says=f"{at} {says}",
    ))  # fmt: skip


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
