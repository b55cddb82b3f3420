"""When devices come free, by counting: a waiting job's likely start, if all that matters is how many devices are let go of when."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import CPU_SLOT, WHOLE, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import ANY, Queue
from phalanx.core.reasons import Backoff, MakingRoom, OutsideWindow, OverLimit, OverQuota
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, RunningJob, Snapshot
from phalanx.decide.scheduler.where.fleet import Rows
from phalanx.decide.scheduler.why.latest import limits_hold
from phalanx.decide.scheduler.why.reach import Reach, Reaches
from phalanx.decide.scheduler.why.runtimes import over_at_limits, over_by

Numbers = NDArray[np.float64]
Pool = tuple[str, str]
"""A device type, or any, and the queue that has to let go of some; '' when any may, ANY when any that is guaranteed nothing."""

Over = Callable[[Sequence[JobFacts], Numbers, Numbers, Numbers], Numbers]
"""Of jobs, their ages, what of their time they have done, and times from now: how likely each job is over by each time."""

_GRID_MS: Final = np.concatenate([[0.0], np.geomspace(15_000.0, 60 * 86_400_000.0, 44)])
"""Times from now at which devices are counted: a third later each, up to 60 days."""

_RISE: Final = 1e-9
"""With each of them, so that supply rises all the time."""

_TURNS_MAX: Final = 16
"""Times that devices change hands between two of these."""

_AGAIN_MAX: Final = 500
"""Of a line, so many are reckoned to let go of their devices again; those behind them wait for long anyway."""

_MAKING_ROOM_MS: Final = 15_000.0
"""From asking a gang to end until its devices are free: a checkpoint and a grace."""


@dataclass(frozen=True, slots=True)
class _Gang:
    """Holds `devices` of a type now."""

    facts: JobFacts
    kind: str
    devices: float
    age_ms: float
    done_ms: float
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Line:
    """Waiting jobs, those first that come first. reaches: what each may use."""

    jobs: Sequence[JobFacts]
    devices: Numbers
    done_ms: Numbers
    reaches: Sequence[Reach]

    def only(self, rows: Rows) -> "_Line":
        jobs, reaches = [self.jobs[int(row)] for row in rows], [self.reaches[int(row)] for row in rows]
        return _Line(jobs, self.devices[rows], self.done_ms[rows], reaches)


def likely_waits(
    snapshot: Snapshot, plan: Plan, only: Collection[JobId] | None = None, reaches: Reaches | None = None
) -> tuple[dict[JobId, tuple[float, float]], dict[JobId, float]]:
    """Milliseconds until each waiting job of the plan likely starts, where counting can say it: if it starts after all that are
    before it, and if it passes those that ask for more devices than it. And until it starts after all that are before it if each
    of those runs to its limit, for who gets enough devices then. Lines that none of `only` is in are left out."""
    jobs = {job.facts.job: job for job in snapshot.pending}
    likely, lines, left = _lines(snapshot, plan, jobs)
    at_limits = dict[JobId, float]()
    lines = {pool: line for pool, line in lines.items() if only is None or any(wait.job in only for wait in line)}
    if not lines:
        return likely, at_limits
    reaches = reaches or Reaches(snapshot, plan)
    gangs, over, believed = _gangs(snapshot, plan), partial(over_by, snapshot.history), limits_hold(snapshot)
    grid = _grid(reaches, snapshot.now_ms)
    for (kind, queue), line in lines.items():
        held = [gang for gang in gangs if kind in (ANY, gang.kind) and _lets_go_for(snapshot, gang.facts.queue, queue)]
        asking = [jobs[wait.job] for wait in line]
        wanted = _Line(
            [job.facts for job in asking],
            np.array([_devices(job.facts) for job in asking]),
            np.array([job.done_ms for job in asking], np.float64),
            [reaches.all if queue else reaches.of(job) for job in asking],  # who may have no more waits for its queue's share
        )
        looked_at = {reach for wait, reach in zip(line, wanted.reaches, strict=True) if only is None or wait.job in only}
        source = _Source(kind, held, reaches, left[kind, queue] if queue else None, grid)
        after_all = _within(partial(_after_all, over, grid), partial(source.supply, over), wanted, looked_at, reaches)
        passing = _within(partial(_passing, over, grid), partial(source.supply, over), wanted, looked_at, reaches)
        for wait, *each in zip(line, after_all, passing, strict=True):
            likely[wait.job] = (float(each[0]), float(each[1]))
        if believed and any(gang.facts.limit_ms or gang.facts.expected_ms is not None for gang in held):
            supply = partial(source.supply, over_at_limits)
            last = _within(partial(_starts, over_at_limits, grid), supply, wanted, looked_at, reaches)
            at_limits.update((wait.job, float(ms)) for wait, ms in zip(line, last, strict=True) if np.isfinite(ms))
    return likely, at_limits


def _grid(reaches: Reaches, now_ms: int) -> Numbers:
    """Times from now at which devices are counted: those at which bookings are over among them."""
    ends = [at_ms for one in reaches.bookings for at_ms in (one.end_ms - now_ms - 1.0, float(one.end_ms - now_ms))]
    return np.union1d(_GRID_MS, [at_ms for at_ms in ends if 0.0 < at_ms < _GRID_MS[-1]]) if ends else _GRID_MS


def _within(
    count: Callable[[Numbers, _Line], Numbers],
    supply: Callable[[Reach], Numbers],
    line: _Line,
    looked_at: Collection[Reach],
    reaches: Reaches,
) -> Numbers:
    """When each starts by counting all devices and jobs; and not before it does by counting what it may use, and those of the
    others that may use no more than it. The latter is left out for a reach that is not looked at."""
    starts = count(supply(reaches.all), line)
    for reach in dict.fromkeys(one for one in line.reaches if one in looked_at and one != reaches.all):
        no_wider = {one for one in set(line.reaches) if one.is_within(reach)}
        rows = np.array([row for row, one in enumerate(line.reaches) if one in no_wider])
        own = np.array([line.reaches[row] == reach for row in rows.tolist()])
        alone = count(supply(reach), line.only(rows))
        starts[rows[own]] = np.maximum(starts[rows[own]], alone[own])
    return starts


def _lines(
    snapshot: Snapshot, plan: Plan, jobs: Mapping[JobId, PendingJob]
) -> tuple[dict[JobId, tuple[float, float]], dict[Pool, list[Wait]], dict[Pool, float]]:
    """When those start that wait for no devices; who waits for those of each pool; and what of them their queues may still have."""
    likely, lines, left = dict[JobId, tuple[float, float]](), dict[Pool, list[Wait]](), dict[Pool, float]()
    kinds = _kinds(snapshot)
    # A plan may be of a moment ago: who has gone since waits for nothing.
    for wait in (one for one in plan.decisions if isinstance(one, Wait) and one.job in jobs):
        match wait.reason:
            case MakingRoom():
                likely[wait.job] = (_MAKING_ROOM_MS, _MAKING_ROOM_MS)
            case Backoff(wait_ms=wait_ms):
                likely[wait.job] = (wait_ms, wait_ms)
            case OutsideWindow(opens_ms=opens_ms) if opens_ms is not None:
                likely[wait.job] = (max(0.0, opens_ms - snapshot.now_ms),) * 2
            case OverQuota(type=kind, quota=most, used=used, unpromised=True):
                lines.setdefault((kind, ANY), []).append(wait)
                left[kind, ANY] = max(0.0, most - used)
            case (
                OverQuota(queue=queue, type=kind, quota=most, used=used) | OverLimit(queue=queue, type=kind, limit=most, used=used)
            ):
                lines.setdefault((kind, queue), []).append(wait)
                left[kind, queue] = max(0.0, most - used)
            case _ if wait.position is not None:
                types = jobs[wait.job].facts.shape.request.types or kinds
                lines.setdefault((next((kind for kind in types if kind in kinds), ""), ""), []).append(wait)
    return likely, lines, left


class _Source:
    """Where devices of a pool come from: what is free (of a queue's share `left`), and what gangs let go of."""

    def __init__(self, kind: str, gangs: Sequence[_Gang], reaches: Reaches, left: float | None, grid: Numbers) -> None:
        self._kind, self._gangs, self._reaches, self._left, self._grid = kind, gangs, reaches, left, grid
        self._ages = np.array([gang.age_ms for gang in gangs])
        self._done_ms = np.array([gang.done_ms for gang in gangs])
        self._known: dict[tuple[Over, Reach], Numbers] = {}
        self._let_go: dict[Over, Numbers] = {}

    def supply(self, over: Over, reach: Reach) -> Numbers:
        """Devices within reach that are free by each time of the grid, when nothing new starts."""
        if (over, reach) not in self._known:
            if over not in self._let_go:
                facts = [gang.facts for gang in self._gangs]
                self._let_go[over] = over(facts, self._ages, self._done_ms, self._grid[None, :])
            self._known[over, reach] = self._found(reach, self._let_go[over])
        return self._known[over, reach]

    def _found(self, reach: Reach, let_go: Numbers) -> Numbers:
        all_of = np.array([gang.devices for gang in self._gangs])
        if self._left is not None:
            return np.asarray(self._left + all_of @ let_go)
        devices = all_of
        if not reach.mask.all():
            devices = np.array([self._reaches.part(reach, gang.kind, gang.placement) for gang in self._gangs])
        found = np.asarray(self._reaches.free(reach, self._kind) + devices @ let_go)
        if not self._reaches.bookings:
            return found
        queues = np.array([gang.facts.queue for gang in self._gangs])
        held = {}
        for queue in np.unique(queues).tolist():
            own = queues == queue
            held[queue] = (float((all_of - devices)[own].sum()), devices[own] @ (1.0 - let_go[own]))
        return found - self._reaches.kept(reach, self._kind, self._grid, held)


def _starts(over: Over, grid: Numbers, supply: Numbers, line: _Line) -> Numbers:
    """When, from now, each job of a line starts, if it does once it and those before it have devices: of those that are let go of
    by the running gangs, and again by the jobs of the line that started meanwhile. Never, if that is beyond the grid."""
    jobs, asked = line.jobs, line.devices
    wanted, starts, rise = np.cumsum(asked), np.full(len(asked), np.inf), np.arange(len(grid)) * _RISE
    known = min(len(jobs), _AGAIN_MAX)
    ended = over(jobs[:known], np.zeros(known), line.done_ms[:known], grid[None, :])
    begun = 0
    for step in range(1, len(grid)):
        for _ in range(_TURNS_MAX):
            reached = np.maximum.accumulate(supply[: step + 1]) + rise[: step + 1]
            until = int(np.searchsorted(wanted, reached[-1], "right"))
            if until <= begun:
                break
            starts[begun:until] = np.interp(wanted[begun:until], reached, grid[: step + 1])
            again = slice(begun, min(until, known))
            since = np.searchsorted(grid, grid - starts[again, None], "right") - 1
            let_go = np.where(since < 0, 0.0, np.take_along_axis(ended[again], np.maximum(since, 0), 1))
            supply = supply + asked[again] @ let_go
            begun = until
        if begun == len(asked):
            break
    return starts


def _after_all(over: Over, grid: Numbers, supply: Numbers, line: _Line) -> Numbers:
    """The same; those that would start beyond the grid do so at the pace of those before them."""
    starts, asked = _starts(over, grid, supply, line), line.devices
    begun, wanted = int(np.isfinite(starts).sum()), np.cumsum(asked)
    if begun == len(starts):
        return starts
    last, of = (float(starts[begun - 1]), float(wanted[begun - 1])) if begun else (float(grid[-1]), float(asked[0]))
    starts[begun:] = np.maximum(last, 1.0) * wanted[begun:] / of
    return np.asarray(np.minimum(starts, 4 * grid[-1]))


def _passing(over: Over, grid: Numbers, supply: Numbers, line: _Line) -> Numbers:
    """The same, if larger gangs were not there."""
    starts = np.zeros(len(line.devices))
    sizes = np.searchsorted(np.array([1.0, 8.0, 64.0]), line.devices)
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes <= size)
        alone = _after_all(over, grid, supply, line.only(rows))
        starts[sizes == size] = alone[sizes[rows] == size]
    return starts


def _lets_go_for(snapshot: Snapshot, queue: str, of: str) -> bool:
    """Whether what a gang of the queue has is had again by those who wait for that of `of`, as in `Pool`."""
    seen, queues = set[str](), snapshot.policy.queues
    while queue and queue != of and queue not in seen:
        seen.add(queue)
        queue = queues.get(queue, Queue()).parent
    if of == ANY:
        return not any(queues[name].quota or queues[name].cells for name in seen if name in queues)
    return not of or queue == of


def _kinds(snapshot: Snapshot) -> tuple[str, ...]:
    found = {kind for node in snapshot.nodes for _, kind in node.devices[:1]}
    return tuple(sorted(found, key=lambda kind: (kind == CPU_SLOT, kind)))


def _devices(job: JobFacts) -> float:
    return job.shape.num_devices * job.shape.request.milli / WHOLE


def _gangs(snapshot: Snapshot, plan: Plan) -> list[_Gang]:
    """Those that run, and those that this plan starts."""
    kind_of = {node.node: node.devices[0][1] for node in snapshot.nodes if node.devices}
    jobs = {job.facts.job: job for job in snapshot.pending}
    gangs = [_running(job, kind_of, snapshot.now_ms) for job in snapshot.running]
    for decision in plan.decisions:
        if isinstance(decision, Start):
            job, kind = jobs[decision.job], kind_of.get(decision.placement.slices[0].node, "")
            gangs.append(_Gang(job.facts, kind, _devices(job.facts), 0.0, job.done_ms, decision.placement))
    return gangs


def _running(job: RunningJob, kind_of: Mapping[NodeId, str], now_ms: int) -> _Gang:
    slices = job.placement.slices
    devices = sum(len(part.devices) * part.milli for part in slices) / WHOLE
    age_ms = max(0, now_ms - job.placed_ms)
    return _Gang(job.facts, kind_of.get(slices[0].node, ""), devices, age_ms, job.done_ms, job.placement)
