"""What running gangs hold, by line and type of device. Kept from one decision to the next: a gang is the same object until
something of it changes, so only those that came or went are looked at."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from phalanx.core.devices import WHOLE, Placement
from phalanx.decide.scheduler.room.gangs import Gangs, kind_number
from phalanx.decide.scheduler.snapshot import JobFacts, RunningJob
from phalanx.decide.scheduler.where.ground import Ground

Whose = tuple[str, str]
"""Queue and user."""

Amounts = tuple[int, int, int, int, int]
"""Thousandths of devices, cores and bytes that go with them; thousandths of devices that gangs are about to let go of for others,
and how many gangs."""

_NOTHING: Amounts = (0, 0, 0, 0, 0)
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Held:
    """By type of device. What gangs of a queue's users hold is also part of what the queue's do."""

    by_user: Mapping[Whose, Mapping[str, Amounts]] = field(default_factory=dict)
    by_queue: Mapping[str, Mapping[str, Amounts]] = field(default_factory=dict)


class Holds:
    """Of the gangs of the last call. Good for as long as nodes keep their devices."""

    def __init__(self) -> None:
        self._last: Gangs | None = None
        self._gangs: dict[int, tuple[RunningJob, str, Amounts]] = {}
        self._by_user: dict[Whose, Mapping[str, Amounts]] = {}
        self._by_queue: dict[str, Mapping[str, Amounts]] = {}

    def of(self, gangs: Gangs, ground: Ground) -> Held:
        """What one that is ending for others does not keep is counted for whom it makes room."""
        if gangs is not self._last:
            self._last = gangs
            self._follow(gangs, ground)
        return Held(self._by_user.copy(), self._by_queue.copy())

    def _follow(self, gangs: Gangs, ground: Ground) -> None:
        now = dict(zip(map(id, gangs.all), range(len(gangs.all)), strict=True))
        for number in self._gangs.keys() - now.keys():
            gang, kind, amounts = self._gangs.pop(number)
            self._count(gang.facts, kind, _negative(amounts))
        kinds, asked = gangs.kind.tolist(), gangs.amount.tolist()
        for number in now.keys() - self._gangs.keys():
            place = now[number]
            gang, kind = gangs.all[place], ground.kinds[kinds[place]] if kinds[place] >= 0 else ""
            amounts = _amounts(gang, asked[place])
            self._gangs[number] = gang, kind, amounts  # which keeps it alive: no other gang gets its number meanwhile
            self._count(gang.facts, kind, amounts)

    def _count(self, job: JobFacts, kind: str, more: Amounts) -> None:
        _add(self._by_user, (job.queue, job.user), kind, more)
        _add(self._by_queue, job.queue, kind, more)


def _add(sums: dict[_Key, Mapping[str, Amounts]], key: _Key, kind: str, more: Amounts) -> None:
    """What is known by the key is replaced, not changed: earlier decisions may still look at it."""
    known = sums.get(key, {})
    a, b, c, d, e = known.get(kind, _NOTHING)
    after = a + more[0], b + more[1], c + more[2], d + more[3], e + more[4]
    left = {**known, kind: after}
    if not after[4]:
        del left[kind]
    sums[key] = left
    if not left:
        del sums[key]


def kind_of(placement: Placement, ground: Ground) -> str:
    """Of its devices; a gang runs on one type."""
    number = kind_number(placement, ground)[0]
    return ground.kinds[number] if number >= 0 else ""


def host(job: JobFacts, amount: int) -> tuple[int, int]:
    """Thousandths of cores, and bytes, that go with so many thousandths of devices."""
    shape = job.shape
    devices = shape.request.count * shape.request.milli
    return round(shape.cpus * WHOLE) * amount // devices, shape.memory_bytes * amount // devices


def _negative(amounts: Amounts) -> Amounts:
    amount, cores, memory, leaving, num_gangs = amounts
    return -amount, -cores, -memory, -leaving, -num_gangs


def _amounts(gang: RunningJob, amount: int) -> Amounts:
    """amount: thousandths of devices that it holds."""
    leaving = 0
    if gang.stopping and gang.evicted_for is not None:
        kept = gang.keeps.world_size * gang.facts.shape.request.milli if gang.keeps else 0
        amount, leaving = kept, max(0, amount - kept)
    cores, memory = host(gang.facts, amount)
    return amount, cores, memory, leaving, 1
