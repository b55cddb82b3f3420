"""Stops what people have left: what nodes tell of work in shells and notebooks, judged by `decide.idle`.

Sightings are memory only: after a restart every job counts as active until its node has spoken, and is warned again.
"""

from typing import Final

from phalanx.core.events import IdleOver, IdleWarned, StopRequested
from phalanx.core.ids import AttemptId
from phalanx.core.states import Running
from phalanx.decide.idle import Active, IdlePolicy, Sighted, Stop, Verdict, Warned, idle
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.observed import PLATFORM, Sightings
from phalanx.operate.control.world import JobRecord, World

STALE_MS: Final = 90_000
"""Signals come every quarter of a minute; what was told before this is not known any more."""


def note_idle(draft: Draft, seen: Sightings, monotonic_ms: int, at_ms: int) -> None:
    """Warns of, and then stops, running jobs in which nothing is done; says so when something is, after a warning."""
    running = {}
    for job, attempt in list(draft.world.holding()):
        if not job.spec.session or not isinstance(job.state, Running):
            continue
        running[attempt.id] = True
        match _verdict(draft.world, seen, job, attempt.id, monotonic_ms):
            case Active(because) if attempt.id in seen.warned:
                del seen.warned[attempt.id]
                draft.add(IdleOver(job.id, attempt.id, because), at_ms)
            case Warned(left_ms, why) if attempt.id not in seen.warned:
                seen.warned[attempt.id] = monotonic_ms
                draft.add(IdleWarned(job.id, attempt.id, left_ms, why), at_ms)
            case Stop(why):
                draft.add(StopRequested(job.id, "idle", PLATFORM, why), at_ms)
    for attempt_id in [one for one in (*seen.activity, *seen.warned) if one not in running]:
        seen.activity.pop(attempt_id, None)
        seen.warned.pop(attempt_id, None)


def left_ms(world: World, seen: Sightings, attempt: AttemptId, monotonic_ms: int) -> int | None:
    """Until it is stopped; None unless whoever is there was warned."""
    record = world.attempts.get(attempt)
    if record is None or attempt not in seen.warned:
        return None
    found = _verdict(world, seen, world.jobs[record.job], attempt, monotonic_ms)
    return found.left_ms if isinstance(found, Warned) else None if isinstance(found, Active) else 0


def _verdict(world: World, seen: Sightings, job: JobRecord, attempt: AttemptId, monotonic_ms: int) -> Verdict:
    told_ms, signals = seen.activity.get(attempt, (0, ()))
    if monotonic_ms - told_ms > STALE_MS:
        signals = ()
    policy = IdlePolicy(_timeout_ms(world, job))
    return idle(monotonic_ms, [Sighted(one, told_ms) for one in signals], policy, seen.warned.get(attempt))


def _timeout_ms(world: World, job: JobRecord) -> int:
    """What the job says, and at most what the policy does by now."""
    asked, most = job.spec.idle_timeout_ms, world.policy.idle_max_ms
    return asked if most is None else min(asked or most, most)
