"""The smallest changes that would start a waiting job now, each tried on the decision as it stands at its end: all others are
decided, so that nobody waits longer for it. The decision is made once for any number of questions (`memory.Memory.decided`).

Changes are ordered by how little of the job they touch: when it may start, where it may lie, whether it may be ended for others,
its queue, its time limit, the type of its devices, the number of its nodes, and last the devices on each. Of each kind the least
one is found by halving, since a smaller gang, or a shorter one, fits wherever a larger fits.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.policy import TIERS
from phalanx.core.reasons import ArrayFull, OutsideWindow
from phalanx.core.units import write_duration
from phalanx.decide.scheduler.gates import Gates
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.plan import Start
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.schedule import decided, schedule
from phalanx.decide.scheduler.snapshot import PendingJob, Shape, Snapshot
from phalanx.decide.scheduler.where.eligible import eligible_types
from phalanx.decide.scheduler.where.fit import fit

MINUTE_MS: Final = 60_000
LONGEST_MS: Final = 14 * 86_400_000
"""The longest limit that is tried for a job without one."""

QUEUES_MAX: Final = 64
"""Tried, by name."""


@dataclass(frozen=True, slots=True)
class Change:
    """What to write in the spec: `field`: `value`, where it is `was` now ('' for nothing). job: as it would be."""

    field: str
    value: str
    was: str
    job: PendingJob


def changes(snapshot: Snapshot, job: JobId, memory: Memory | None = None) -> tuple[Change, ...]:
    """For a waiting job, the smallest change of each kind that starts it now, the smallest first; none when no such change does, or
    when the job is not to start yet at all. Raises KeyError when it does not wait."""
    waiting = next((one for one in snapshot.pending if one.facts.job == job), None)
    if waiting is None:
        raise KeyError(job)
    closed = Gates(snapshot).why(waiting)
    if waiting.claim is not None or not isinstance(closed, OutsideWindow | ArrayFull | None):
        return ()
    end = decided(snapshot, memory or Memory())
    if isinstance(closed, OutsideWindow):
        return _found(_of_window(waiting, end))
    return _found(_of_array(waiting, snapshot)) if isinstance(closed, ArrayFull) else smallest(waiting, end)


def smallest(job: PendingJob, end: Round) -> tuple[Change, ...]:
    """The same, of a decision at its end, of a job that no gate stops at its beginning. One for which there is room was stopped by
    its array, which became full meanwhile."""
    if starts(job, end):
        return _found(_of_array(job, end.snapshot))
    return _found(*_tried(job, end))


def _found(*tried: Change | None) -> tuple[Change, ...]:
    return tuple(change for change in tried if change is not None)


def starts(job: PendingJob, end: Round) -> bool:
    """Whether the job would start on what everybody else leaves, without anybody making room for it; an elastic one on as many
    nodes as its queue may have. Changes nothing."""
    shape = job.facts.shape
    return any(
        fit(shape, kind, end.fleet, free, job.avoids) is not None
        for kind in _admitted(job, end)
        for free in end.kept.views(job, kind)
    )


def _admitted(job: PendingJob, end: Round) -> list[str]:
    """Types of which its queue may have it, or else as many of its nodes as will do."""
    shape = job.facts.shape
    kinds, admit = eligible_types(shape, end.fleet), end.tree.admit

    def of(num_nodes: int) -> list[str]:
        return [kind for kind in kinds if admit(job.facts, kind, shape.request.count * num_nodes).ok]

    found = of(shape.num_nodes)
    if found or shape.fewest_nodes == shape.num_nodes:
        return found
    most = bisect_left(shape.sizes, True, key=lambda num_nodes: not of(num_nodes))
    return of(shape.sizes[most - 1]) if most else []


def _tried(job: PendingJob, end: Round) -> Iterator[Change | None]:
    yield from _elsewhere(job, end)
    if not job.facts.preemptible:
        yield _if_starts("preemptible", "true", "false", replace(job, facts=replace(job.facts, preemptible=True)), end)
    yield _of_queue(job, end)
    yield _of_limit(job, end)
    yield _of_type(job, end)
    yield _of_nodes(job, end)
    yield _of_devices(job, end)


def _of_window(job: PendingJob, end: Round) -> Change | None:
    """At any time."""
    always = replace(job, facts=replace(job.facts, window=""))
    return _if_starts("window", "", job.facts.window, always, end) if Gates(end.snapshot).why(always) is None else None


def _of_array(job: PendingJob, snapshot: Snapshot) -> Change | None:
    """As many at once that the job's turn comes. Those of the array before it start too, so all of it is decided once more."""
    facts = job.facts
    if not facts.array_parallel:
        return None
    others = [one for one in snapshot.pending if one.facts.array == facts.array]
    holding = [one for one in snapshot.running if one.facts.array == facts.array] + [one for one in others if one.claim is not None]
    before = [one for one in others if one.claim is None and one.facts.sequence < facts.sequence]
    most = len(holding) + len(before) + 1

    def wider(one: PendingJob) -> PendingJob:
        same = one.facts.array == facts.array
        return replace(one, facts=replace(one.facts, array_parallel=most)) if same else one

    plan = schedule(replace(snapshot, pending=tuple(map(wider, snapshot.pending))))
    if not any(isinstance(one, Start) and one.job == facts.job for one in plan.decisions):
        return None
    return Change("array.parallel", str(most), str(facts.array_parallel), wider(job))


def _elsewhere(job: PendingJob, end: Round) -> Iterator[Change | None]:
    """On spot nodes or without waiting for them, less near together, without a label."""
    shape = job.facts.shape
    if shape.spot != "allow":
        yield _if_starts("placing.spot", "allow", shape.spot, _shaped(job, replace(shape, spot="allow")), end)
    if shape.within is not None:
        wider = (*TIERS[TIERS.index(shape.within) + 1 :], None)
        tried = (
            _if_starts("placing.within", tier or "", shape.within, _shaped(job, replace(shape, within=tier)), end) for tier in wider
        )
        yield next((change for change in tried if change is not None), None)
    for name, value in shape.where:
        where = tuple(pair for pair in shape.where if pair != (name, value))
        yield _if_starts(f"placing.where.{name}", "", value, _shaped(job, replace(shape, where=where)), end)


def _of_queue(job: PendingJob, end: Round) -> Change | None:
    """One that may have as much now. Only the first by name: which of several is right, the queues' owners know."""
    own = job.facts.queue
    names = [name for name in sorted(end.snapshot.policy.queues) if name != own][:QUEUES_MAX]
    tried = (_if_starts("queue", name, own, replace(job, facts=replace(job.facts, queue=name)), end) for name in names)
    return next((change for change in tried if change is not None), None)


def _of_limit(job: PendingJob, end: Round) -> Change | None:
    """The longest one, in whole minutes, with which it ends before its devices are needed."""
    now_ms = job.facts.limit_ms

    def limited(minutes: int) -> PendingJob:
        return replace(job, facts=replace(job.facts, limit_ms=minutes * MINUTE_MS))

    most = _most(((now_ms or LONGEST_MS) - 1) // MINUTE_MS, lambda minutes: starts(limited(minutes), end))
    if not most:
        return None
    return Change("max_duration", write_duration(most * MINUTE_MS), write_duration(now_ms) if now_ms else "", limited(most))


def _of_type(job: PendingJob, end: Round) -> Change | None:
    """As many devices of a type that it does not accept."""
    shape = job.facts.shape
    if not shape.request.types:
        return None
    for kind in end.fleet.ground.kinds:
        if kind not in shape.request.types:
            request = replace(shape.request, types=(kind,))
            change = _if_starts(
                "resources.gpus", str(request), str(shape.request), _shaped(job, replace(shape, request=request)), end
            )
            if change is not None:
                return change
    return None


def _of_nodes(job: PendingJob, end: Round) -> Change | None:
    """The most nodes of the same part, in whole groups; of an elastic job as many as have to do."""
    shape, step = job.facts.shape, max(1, job.facts.shape.group)

    def on(num_groups: int) -> PendingJob:
        fewer = num_groups * step
        return _shaped(job, replace(shape, min_nodes=fewer) if shape.min_nodes else replace(shape, num_nodes=fewer))

    most = _most((shape.fewest_nodes - 1) // step, lambda num_groups: starts(on(num_groups), end))
    field = "min_nodes" if shape.min_nodes else "num_nodes"
    return Change(field, str(most * step), str(shape.fewest_nodes), on(most)) if most else None


def _of_devices(job: PendingJob, end: Round) -> Change | None:
    """The most devices on each of as many nodes; of a share the largest in hundredths."""
    shape, request = job.facts.shape, job.facts.shape.request

    def of(count: int) -> PendingJob:
        smaller = replace(request, milli=10 * count) if request.is_share else replace(request, count=count)
        return _shaped(job, replace(shape, request=smaller))

    most = _most((request.milli - 1) // 10 if request.is_share else request.count - 1, lambda count: starts(of(count), end))
    return Change("resources.gpus", str(of(most).facts.shape.request), str(request), of(most)) if most else None


def _if_starts(field: str, value: str, was: str, job: PendingJob, end: Round) -> Change | None:
    return Change(field, value, was, job) if starts(job, end) else None


def _most(bound: int, works: Callable[[int], bool]) -> int:
    """The largest number from 1 to `bound` that works, if all smaller ones do; 0 when 1 does not."""
    if bound < 1 or not works(1):
        return 0
    low, high = 1, bound + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def _shaped(job: PendingJob, shape: Shape) -> PendingJob:
    return replace(job, facts=replace(job.facts, shape=shape))
