"""Which events of a job its webhook is told of, and in which words. Pure: an event and the world with it in, entries out."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from phalanx.core.events import AttemptEnded, AttemptRunning, Event, IdleWarned, JobWaits, StopRequested
from phalanx.core.ids import JobId, split_attempt
from phalanx.core.spec import Occasion
from phalanx.core.states import Finished, Paused
from phalanx.core.units import show_duration
from phalanx.operate.control.others_names import OthersNames, for_team
from phalanx.operate.control.world import JobRecord, World

DETAIL_CHARS_MAX: Final = 2_000


def occasions(event: Event, world: World) -> Sequence[Mapping[str, Any]]:
    """What `event` is an occasion to tell; `world` has it in it."""
    job: JobId | None = getattr(event.body, "job", None)
    record = world.jobs.get(job) if job is not None else None
    if record is None or record.spec.notify is None:
        return ()
    occasion = _occasion(event, record)
    if occasion is None or occasion not in record.spec.notify.on:
        return ()
    return (_entry(event, record, occasion, for_team(world, record.spec.team)),)


def _occasion(event: Event, job: JobRecord) -> Occasion | None:
    match event.body:
        case AttemptRunning(attempt=attempt):
            return "started" if split_attempt(attempt)[1] == 1 else "restarted"
        case JobWaits():
            return "waiting"
        case IdleWarned():
            return "idle"
        case AttemptEnded() | StopRequested() if isinstance(job.state, Finished):
            return "finished"
        case AttemptEnded() | StopRequested() if isinstance(job.state, Paused):
            return "paused"
        case _:
            return None


def _entry(event: Event, job: JobRecord, occasion: Occasion, names: OthersNames) -> Mapping[str, Any]:
    assert job.spec.notify is not None
    outcome, detail = None, ""
    match event.body:
        case JobWaits(reason=reason):
            detail = names.out_of(reason.sentence(), job.spec)
        case IdleWarned(left_ms=left_ms, why=why):
            detail = f"stopped in {show_duration(left_ms)} unless something is done in it: {why}"
        case AttemptEnded(detail=said):
            detail = names.out_of_detail(said, job.spec)
    if isinstance(job.state, Finished):
        outcome, detail = job.state.outcome, job.state.detail
    return {
        "id": event.seq,
        "occasion": occasion,
        "job": job.id,
        "name": job.spec.name,
        "state": job.state.name,
        "outcome": outcome,
        "detail": detail[:DETAIL_CHARS_MAX],
        "attempt": job.attempt,
        "at_ms": event.at_ms,
        "webhook": job.spec.notify.webhook,
        "secret": job.spec.notify.secret,
        "team": job.spec.team,
    }
