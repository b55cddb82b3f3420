"""What the traces of a job say, made of its ranks' own summaries when it is asked for."""

from typing import Annotated, Final

from fastapi import APIRouter, Query

from phalanx.core import wire
from phalanx.core.artifact_names import FILES_MAX
from phalanx.core.errors import NotFound, SetupError, StoreUnavailable
from phalanx.core.ids import AttemptId
from phalanx.core.profile import FOLDER, RANKS_READ_MAX, SUMMARY_BYTES_MAX, ProfileView, RankTrace
from phalanx.core.views import ArtifactView
from phalanx.operate.control import artifacts, profiles
from phalanx.operate.control.api.access import JobHere, ServicesHere, attempt_of, refuse_collected
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.blob_threads import for_each_blob, on_blob_thread
from phalanx.operate.control.world import JobRecord

router = APIRouter(tags=["profile"])
_HOW: Final = "trace steps with profile: {first: 100} in its job file"


@router.get("/jobs/{job}/profile")
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
