"""What the traces of a job say, made of its ranks' own summaries when it is asked for."""

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query

from phalanx.core import wire
from phalanx.core.artifact_names import FILES_MAX
from phalanx.core.errors import NotFound, SetupError, StoreUnavailable
from phalanx.core.ids import AttemptId
from phalanx.core.profile import FOLDER, RANKS_READ_MAX, SUMMARY_BYTES_MAX, ProfileView, RankTrace
from phalanx.core.trace_request import TraceRequestView, TracesAsked
from phalanx.core.views import ArtifactView
from phalanx.operate.control import artifacts, profiles
from phalanx.operate.control.api.access import (
    READS,
    SUBMITS,
    JobHere,
    JobToChange,
    ServicesHere,
    attempt_of,
    change,
    refuse_collected,
)
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.jobs import PACE_STEPS
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.blob_threads import for_each_blob, on_blob_thread
from phalanx.operate.control.trace_requests import Pace, pace_of, view_of
from phalanx.operate.control.world import JobRecord

router = APIRouter(tags=["profile"])
_HOW: Final = "trace steps with --steps 5 while it runs, or with profile: {first: 100} in its job file"


@router.get("/jobs/{job}/profile", dependencies=[READS])
async def profile(
    services: ServicesHere,
    job: JobHere,
    attempt: Annotated[str, Query(max_length=100)] = "",
    first: Annotated[int, Query(ge=0, le=10**15)] = 0,
) -> ProfileView:
    """Of the newest attempt that has traces, or of `attempt`: those that begin with step `first`, else the last ones."""
    refuse_collected(job, "artifacts")
    only = attempt_of(job, attempt) if attempt else None
    return await on_blob_thread(_profile, services, job, job.attempts if only is None else (only,), first)


@router.post("/jobs/{job}/profile", dependencies=[SUBMITS], responses=refusals(409))
async def request_traces(services: ServicesHere, asker: AskerHere, job: JobToChange, request: TracesAsked) -> TraceRequestView:
    """Asks the running attempt to trace `steps` of its next steps, all its ranks from the same one on; of `ranks` alone where some
    are named. Refused while others are asked for, near the end of the run, where its records are held up, and where so many files
    are kept already that theirs would be too many."""
    looked_at = job.attempt  # the job may start again meanwhile
    pace = await asyncio.to_thread(_pace, services, looked_at) if looked_at else None
    asked = await change(
        services, asker, "job.trace", job.id, lambda controller: controller.request_traces(job.id, request, pace, asker.name)
    )
    return await on_blob_thread(_request, services, services.control.world.jobs[job.id], asked)


@router.get("/jobs/{job}/profile/request", dependencies=[READS])
async def trace_request(
    services: ServicesHere,
    job: JobHere,
    attempt: Annotated[str, Query(max_length=100)] = "",
    number: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> TraceRequestView:
    """How far a request of an attempt is; without a name of the newest one, without a number the newest."""
    found = attempt_of(job, attempt)
    if found is None:
        raise NotFound("attempt", attempt, f"{job.id} has none yet")
    return await on_blob_thread(_request, services, job, found, number)


def _pace(services: Services, attempt: AttemptId) -> Pace | None:
    newest = services.series.last_step(attempt)
    if newest is None:
        return None
    before = services.series.step_before(attempt, newest, PACE_STEPS)
    return pace_of(attempt, newest, before, artifacts.count(services.store, attempt))


def _request(services: Services, job: JobRecord, attempt: AttemptId, number: int = 0) -> TraceRequestView:
    record = services.control.world.attempts.get(attempt)
    known = [one for one in record.traces if number in (0, one.request.number)] if record is not None else []
    if record is None or not known:
        which = f"request {number} of {attempt} is not known" if number else f"nobody asked {attempt} for traces"
        raise NotFound("profile", job.id, f"{which}; `phalanx profile {job.id} --steps 5` asks for some")
    traces = known[-1]
    files = artifacts.of_attempts(services.store, (attempt,), (attempt, f"{FOLDER}/"), FILES_MAX)
    windows = profiles.windows_of((one.name for one in files), record.placement.world_size)
    newest = services.series.last_step(attempt)
    there = windows.get((traces.request.first, traces.request.last), {})
    return view_of(job, record, traces, there, newest.step if newest else 0)


def _profile(services: Services, job: JobRecord, attempts: tuple[AttemptId, ...], first: int) -> ProfileView:
    for attempt in reversed(attempts):
        files = {one.name: one for one in artifacts.of_attempts(services.store, (attempt,), (attempt, f"{FOLDER}/"), FILES_MAX)}
        windows = profiles.windows_of(files, _world_size(services, attempt))
        if windows:
            break
    else:
        raise NotFound("profile", job.id, f"it has no traces; {_HOW}")
    found = max((window for window in windows if first in (0, window[0])), default=None)
    if found is None:
        raise NotFound("first", first, f"{attempt} has traces of {_said(list(windows))}")
    names = dict(sorted(windows[found].items())[:RANKS_READ_MAX])
    means = for_each_blob(lambda name: _read(services, files[name]), names.values())
    read = dict(zip(names, means, strict=True))
    traces = {rank: trace for rank, trace in read.items() if trace is not None}
    if not traces:
        raise NotFound("profile", job.id, f"none of its summaries of steps {found[0]} to {found[1]} can be read; trace them again")
    return profiles.profile_of(
        job.id, attempt, found, traces, sorted(windows.keys() - {found}), sorted(read.keys() - traces.keys())
    )


def _world_size(services: Services, attempt: AttemptId) -> int:
    record = services.control.world.attempts.get(attempt)
    return RANKS_READ_MAX if record is None else record.placement.world_size


def _read(services: Services, file: ArtifactView) -> profiles.RankMeans | None:
    """Its means at once: a thousand summaries are many times as large. None for what is no summary, whatever its name says."""
    if file.size_bytes > SUMMARY_BYTES_MAX:
        return None
    try:
        trace: RankTrace = wire.loads(RankTrace, services.blobs.get(file.sha256))
    except (ValueError, NotFound):
        return None
    except SetupError as error:  # the store's: for the platform's admin to mend
        raise StoreUnavailable(str(error)) from error
    return profiles.means_of(trace)


def _said(windows: list[profiles.Window]) -> str:
    return ", ".join(f"{first} to {last}" for first, last in sorted(windows)[:10])
