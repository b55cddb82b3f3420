"""Running gangs as columns, in order of their jobs' names. Kept from one decision to the next: a gang is the same object until
something of it changes, so only those that came since are read."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain, compress, repeat
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, NodeSlice, Placement
from phalanx.core.ids import JobId
from phalanx.decide.scheduler.snapshot import RunningJob
from phalanx.decide.scheduler.where.ground import Ground

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNLIMITED: Final = 2**62
"""Time limit of a gang that has none."""

_JOB: Final = attrgetter("facts.job")
_OF_QUEUE: Final = attrgetter("facts.queue")
_LIMIT: Final = attrgetter("facts.limit_ms")
_CPUS: Final = attrgetter("facts.shape.cpus")
_PARTS: Final = attrgetter("placement.slices")
_NODE: Final = attrgetter("node")
_DEVICES: Final = attrgetter("devices")
_MILLI: Final = attrgetter("milli")
_FACTS: Final = attrgetter(
    *("facts.shape.request.milli", "facts.shape.num_nodes", "facts.shape.min_nodes", "facts.shape.memory_bytes"),
    *("placed_ms", "saved_ms", "restart_ms", "facts.priority", "evictions", "facts.preemptible", "stopping"),
)
_QUEUE: Final = 0
"""Row of the table that says which queue; it is numbered anew when queues come or go."""


class Slices:
    """What gangs hold on each of their nodes: of the first gang, then of the second, in order of ranks. Nodes that are not known
    are left out.

    gang: its place. row: of the node. devices: how many that the node still has, for nobody gets another. milli: thousandths of
    each. memory: bytes. kind: number of the type, -1 on nodes before the first that has a device of it. part: place in the gang's
    placement. cpus: cores.
    """

    __slots__ = ("cpus", "devices", "gang", "kind", "memory", "milli", "part", "row", "table")

    def __init__(self, table: Numbers, cpus: NDArray[np.float64]) -> None:
        self.table = table
        self.gang, self.row, self.devices, self.milli, self.memory, self.kind, self.part = table
        self.cpus = cpus


class Gangs:
    """all: in order of names, which are `jobs`. place: of each job there. The others are columns over those; times are
    milliseconds, as of `RunningJob`.

    queue: place in `queues`, which are in order of names. limit_ms: UNLIMITED where there is none. kind: number of the type, -1 if
    no node has its devices. more_nodes: than its fewest; is_small: it has fewer than its most. devices: how many; held: thousandths
    of them; amount: the same, as the job asked for them. shares: it holds parts of devices.
    """

    __slots__ = (
        "all", "amount", "devices", "evictions", "held", "is_small", "jobs", "kind", "limit_ms", "more_nodes", "place", "placed_ms",
        "preemptible", "priority", "queue", "queues", "restart_ms", "saved_ms", "shares", "slices", "stopping", "table",
    )  # fmt: skip

    def __init__(
        self, gangs: tuple[RunningJob, ...], jobs: tuple[JobId, ...], queues: tuple[str, ...], table: Numbers, slices: Slices
    ) -> None:
        self.all = gangs
        self.jobs = jobs
        self.place = dict(zip(jobs, range(len(jobs)), strict=True))
        self.queues = queues
        self.table = table
        self.slices = slices
        (
            self.queue, self.limit_ms, self.kind, self.more_nodes, self.devices, self.held, self.amount, shares, is_small,
            self.placed_ms, self.saved_ms, self.restart_ms, self.priority, self.evictions, preemptible, stopping,
        ) = table  # fmt: skip
        self.preemptible, self.stopping, self.shares, self.is_small = (
            one.astype(np.bool_) for one in (preemptible, stopping, shares, is_small)
        )

    @property
    def ending(self) -> list[RunningJob]:
        """Those that were asked to end."""
        return [self.all[number] for number in np.flatnonzero(self.stopping)]

    @classmethod
    def of(cls, running: Iterable[RunningJob], ground: Ground) -> "Gangs":
        gangs = tuple(sorted(running, key=_JOB))
        queues = tuple(sorted(set(map(_OF_QUEUE, gangs))))
        return cls(gangs, tuple(map(_JOB, gangs)), queues, *_read(gangs, queues, ground))

    def renewed(self, running: Sequence[RunningJob], ground: Ground) -> "Gangs":
        """The same as all anew, of nodes that have the same devices as before."""
        now = dict(zip(map(id, running), running, strict=True))
        stays = list(map(now.__contains__, map(id, self.all)))  # which are alive: no other gang has the number of one of them
        num_stay, num_before = sum(stays), len(stays)
        if num_stay == num_before == len(now):
            return self
        more = Gangs.of([now[number] for number in now.keys() - set(map(id, self.all))] if num_stay < len(now) else (), ground)
        gangs, jobs = self.all + more.all, self.jobs + more.jobs
        order = sorted([*compress(range(num_before), stays), *range(num_before, len(jobs))], key=jobs.__getitem__)
        table = np.concatenate([self.table, more.table], axis=1)[:, order]
        queue = np.concatenate([self.queue, more.queue + len(self.queues)])
        queues, table[_QUEUE] = _queues(self.queues + more.queues, queue[order])
        place = np.full(len(jobs), -1, np.int64)
        place[order] = np.arange(len(order))
        slices = _merged(self.slices, place[:num_before], more.slices, place[num_before:])
        return Gangs(tuple(map(gangs.__getitem__, order)), tuple(map(jobs.__getitem__, order)), queues, table, slices)


def kind_number(placement: Placement, ground: Ground) -> tuple[int, int]:
    """The type of its devices, and the part in which they are found first; -1 and the number of parts where no node has them."""
    for at, part in enumerate(placement.slices):
        row = ground.row.get(part.node)
        if row is not None and part.devices and part.devices[0] in ground.types[row]:
            return ground.kind_number[ground.types[row][part.devices[0]]], at
    return -1, len(placement.slices)


def _read(gangs: Sequence[RunningJob], queues: Sequence[str], ground: Ground) -> tuple[Numbers, Slices]:
    """The tables of gangs and slices."""
    parts = list(chain.from_iterable(map(_PARTS, gangs)))
    sizes = _numbers(map(len, map(_PARTS, gangs)))
    gang = np.repeat(np.arange(len(gangs)), sizes)
    part = np.arange(len(parts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    row = _numbers(map(ground.row.get, map(_NODE, parts), repeat(-1)))
    devices, milli = _numbers(map(len, map(_DEVICES, parts))), _numbers(map(_MILLI, parts))
    facts = np.array(list(map(_FACTS, gangs)), np.int64).reshape(-1, 11).T
    asked, num_nodes, min_nodes, memory = facts[:4]
    kind, found_in = np.array([kind_number(one.placement, ground) for one in gangs], np.int64).reshape(-1, 2).T
    queue = _numbers(bisect_left(queues, name) for name in map(_OF_QUEUE, gangs))
    limit_ms = _numbers(UNLIMITED if limit is None else limit for limit in map(_LIMIT, gangs))
    world_size, held = (np.bincount(gang, amounts, len(gangs)).astype(np.int64) for amounts in (devices, devices * milli))
    shares = np.bincount(gang, (part == 0) & (milli < WHOLE), len(gangs)).astype(np.int64)
    more_nodes = sizes - np.where(min_nodes > 0, min_nodes, num_nodes)
    is_small = (sizes < num_nodes).astype(np.int64)
    own = [queue, limit_ms, kind, more_nodes, world_size, held, world_size * asked, shares, is_small]
    table = np.concatenate([own, facts[4:]])
    kinds = np.where(part < found_in[gang], -1, kind[gang])
    cpus = np.fromiter(map(_CPUS, gangs), np.float64)[gang]
    there = row >= 0
    known = _still_there(parts, devices, row, ground)
    return table, Slices(np.array([gang, row, known, milli, memory[gang], kinds, part])[:, there], cpus[there])


def _still_there(parts: Sequence[NodeSlice], devices: Numbers, row: Numbers, ground: Ground) -> Numbers:
    """How many devices of each part its node has: one that fell off the bus is held by a gang, but comes free with nobody's end."""
    found, known = devices.copy(), dict[int, frozenset[int]]()
    for number, (part, at) in enumerate(zip(parts, row.tolist(), strict=True)):
        if at < 0:
            continue
        types = ground.types[at]
        has = known.get(id(types))
        if has is None:  # alike nodes share it
            has = known[id(types)] = frozenset(types)
        if not has.issuperset(part.devices):
            found[number] = len(has.intersection(part.devices))
    return found


def _numbers(found: Iterable[int]) -> Numbers:
    return np.fromiter(found, np.int64)


def _merged(old: Slices, place: Numbers, more: Slices, more_place: Numbers) -> Slices:
    """place, more_place: where their gangs stand now; -1 for those that are gone."""
    gang = np.concatenate([place[old.gang], more_place[more.gang]])
    left = np.argsort(gang, kind="stable")[np.count_nonzero(gang < 0) :]
    table = np.concatenate([old.table, more.table], axis=1)[:, left]
    table[0] = gang[left]
    return Slices(table, np.concatenate([old.cpus, more.cpus])[left])


def _queues(names: Sequence[str], at: Numbers) -> tuple[tuple[str, ...], Numbers]:
    """Those of the names that are meant by `at`, in order, and the place of each one's there."""
    found = tuple(sorted({names[number] for number in np.unique(at)}))
    return found, _numbers(bisect_left(found, name) for name in names)[at]
