"""By when waiting jobs start at the latest: what limits and the policy's own times say, if nobody comes before them. Pure."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.reasons import Kept
from phalanx.decide.scheduler.plan import Plan, Reservation, Wait
from phalanx.decide.scheduler.room.ends import end_ms
from phalanx.decide.scheduler.snapshot import PendingJob, RunningJob, Snapshot
from phalanx.decide.scheduler.why.reach import Reach, Reaches

_OUTLIVED_MS: Final = 2 * 60_000
"""Beyond its limit no gang lives for so long, if limits end gangs at all."""


def latest_starts(snapshot: Snapshot, plan: Plan, reaches: Reaches) -> dict[JobId, int]:
    """Unix time, for the head of a pool whose way limits clear by then, and for who would start on what is free now, were it not
    kept until then; not for the others."""
    jobs = {job.facts.job: job for job in snapshot.pending}
    found = _kept_until(snapshot, plan, jobs, reaches)
    believed = limits_hold(snapshot)
    for one in plan.reservations:
        if believed and one.job is not None and one.start_ms is not None:
            start_ms = _booked_again(one.start_ms, one, jobs[one.job], snapshot, reaches)
            found[one.job] = min(start_ms, found.get(one.job, start_ms))
    return found


def limits_hold(snapshot: Snapshot) -> bool:
    """Whether no gang has outlived its limit: in replays limits may be mere estimates."""
    return all(
        gang.facts.limit_ms is None or snapshot.now_ms <= gang.placed_ms + gang.facts.limit_ms + _OUTLIVED_MS
        for gang in snapshot.running
    )


def _booked_again(start_ms: int, head: Reservation, job: PendingJob, snapshot: Snapshot, reaches: Reaches) -> int:
    """When the head starts after all: what is booked for gangs that end before its start is kept for others like them until the
    booking is over. That takes none of the head's devices where enough others are free then."""
    reach = reaches.of(job)

    def devices(gangs: Iterable[RunningJob], within: Reach) -> float:
        return sum(reaches.part(within, head.kind, gang.placement) for gang in gangs)

    for booked in sorted(reaches.bookings, key=attrgetter("end_ms")):
        if booked.kind != head.kind or job.facts.queue in booked.queues or not booked.start_ms <= start_ms < booked.end_ms:
            continue
        ending = [gang for gang in snapshot.running if end_ms(gang, snapshot.now_ms) <= start_ms]
        again = devices((gang for gang in ending if gang.facts.queue in booked.queues), reaches.all)
        had = devices((gang for gang in snapshot.running if gang.facts.queue in booked.queues), reaches.all) - again
        left = reaches.free(reach, head.kind) + devices(ending, reach) - head.placement.world_size
        if again and left < booked.devices - had:
            start_ms = booked.end_ms
    return start_ms


def _kept_until(snapshot: Snapshot, plan: Plan, jobs: Mapping[JobId, PendingJob], reaches: Reaches) -> dict[JobId, int]:
    """Where what is free now, and is for the job then, is enough for all that wait before it as well."""
    kept = {one.job: one.reason.until_ms for one in plan.decisions if isinstance(one, Wait) and isinstance(one.reason, Kept)}
    found, before = dict[JobId, int](), 0
    for wait in plan.decisions if kept else ():
        if isinstance(wait, Wait) and wait.position is not None:
            job = jobs[wait.job]
            shape, until_ms = job.facts.shape, kept.get(wait.job)
            before += shape.fewest_nodes * shape.request.count
            if until_ms is not None:
                ends = sorted(one.end_ms for one in reaches.bookings if one.end_ms > until_ms)
                enough = (at_ms for at_ms in (until_ms, *ends) if reaches.left(at_ms, job) >= before)
                if (at_ms := next(enough, None)) is not None:
                    found[wait.job] = at_ms
    return found
