"""What the controller commits for the tracker: the outbox entries of an event, and a model version's lineage."""

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.core import wire
from phalanx.core.events import Event
from phalanx.core.ids import JobId
from phalanx.core.records import ModelSaved
from phalanx.core.states import Finished, Paused
from phalanx.operate.control.world import AttemptRecord, JobRecord, World
from phalanx.record.tracking import lineage
from phalanx.record.tracking.entries import Entry, TrackedJob, outbox_for


def outbox_entries(event: Event, world: World) -> Sequence[Mapping[str, Any]]:
    """Entries that `event` causes, as the store keeps them; `world` has the event in it."""
    job: JobId | None = getattr(event.body, "job", None)
    if job is None:
        return ()
    return [wire.plain(Entry, entry) for entry in outbox_for(event, tracked_job(world, world.jobs[job]))]


def tracked_job(world: World, job: JobRecord) -> TrackedJob:
    """The job as the tracker's room wants it."""
    ran = tuple(attempt for attempt in job.attempts if world.attempts[attempt].running_ms is not None)
    over = job.state.detail if isinstance(job.state, Finished) else ""
    return TrackedJob(job.spec, job.code, job.config, job.by, ran, job.stop, over, isinstance(job.state, Paused))


def lineage_of(job: JobRecord, attempt: AttemptRecord, saved: ModelSaved) -> Mapping[str, str]:
    """What a model version descends from."""
    newest = max((one for one in attempt.checkpoints if one.step <= saved.step), key=lambda one: one.step, default=None)
    return lineage.lineage_of(job.spec, job.code, job.config, job.id, job.attempts, saved, newest)
