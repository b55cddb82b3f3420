"""What running gangs hold, by line and type of device. Kept from one decision to the next: a gang is the same object until
something of it changes, so only those that came or went are looked at."""

from collections.abc import Iterable, Mapping

from phalanx.core.devices import WHOLE, Placement
from phalanx.decide.scheduler.snapshot import JobFacts, RunningJob
from phalanx.decide.scheduler.where.ground import Ground

Key = tuple[str, str, str]
"""Queue, user, and type of device."""

Amounts = tuple[int, int, int, int, int]
"""Thousandths of devices, cores and bytes that go with them; thousandths of devices that gangs are about to let go of for others,
and how many gangs."""

_NOTHING: Amounts = (0, 0, 0, 0, 0)


class Holds:
    """Of the gangs of the last call. Good for as long as nodes keep their devices."""

    def __init__(self) -> None:
        self._gangs: dict[int, RunningJob] = {}
        self._sums: dict[Key, Amounts] = {}

    def of(self, running: Iterable[RunningJob], ground: Ground) -> Mapping[Key, Amounts]:
        """What one that is ending for others does not keep is counted for whom it makes room."""
        now = {id(gang): gang for gang in running}
        for number in self._gangs.keys() - now.keys():
            self._count(self._gangs[number], ground, -1)
        for number in now.keys() - self._gangs.keys():
            self._count(now[number], ground, 1)
        self._gangs = now  # which keeps them alive: no other gang gets the number of one that is counted here
        return self._sums

    def _count(self, gang: RunningJob, ground: Ground, sign: int) -> None:
        key = gang.facts.queue, gang.facts.user, kind_of(gang.placement, ground)
        before, more = self._sums.get(key, _NOTHING), _amounts(gang)
        self._sums[key] = after = (
            before[0] + sign * more[0],
            before[1] + sign * more[1],
            before[2] + sign * more[2],
            before[3] + sign * more[3],
            before[4] + sign * more[4],
        )
        if not after[4]:
            del self._sums[key]


def kind_of(placement: Placement, ground: Ground) -> str:
    """Of its devices; a gang runs on one type."""
    for part in placement.slices:
        row = ground.row.get(part.node)
        if row is not None and part.devices and part.devices[0] in ground.types[row]:
            return ground.types[row][part.devices[0]]
    return ""


def host(job: JobFacts, amount: int) -> tuple[int, int]:
    """Thousandths of cores, and bytes, that go with so many thousandths of devices."""
    shape = job.shape
    devices = shape.request.count * shape.request.milli
    return round(shape.cpus * WHOLE) * amount // devices, shape.memory_bytes * amount // devices


def _amounts(gang: RunningJob) -> Amounts:
    milli = gang.facts.shape.request.milli
    amount, leaving = gang.placement.world_size * milli, 0
    if gang.stopping and gang.evicted_for is not None:
        kept = gang.keeps.world_size * milli if gang.keeps else 0
        amount, leaving = kept, max(0, amount - kept)
    cores, memory = host(gang.facts, amount)
    return amount, cores, memory, leaving, 1
