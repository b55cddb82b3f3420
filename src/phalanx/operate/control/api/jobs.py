"""Jobs: submit, look, ask why, cancel."""

import asyncio
from itertools import islice
from typing import Annotated, Final

from fastapi import APIRouter, Query

from phalanx.core.errors import SpecError
from phalanx.core.records import StepRecord
from phalanx.core.spec_parse import parse_spec
from phalanx.core.states import Pending
from phalanx.core.views import EventView, JobView, Progress, SubmitRequest, WhyView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import JobHere, ServicesHere
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.world import JobRecord

EVENTS_MAX: Final = 1000
JOBS_MAX: Final = 1000
BY: Final = "admin"
"""The only user there is until there are accounts."""

router = APIRouter(tags=["jobs"])
Filter = Annotated[str, Query(max_length=100)]


@router.post("/jobs", status_code=201)
async def submit(services: ServicesHere, request: SubmitRequest) -> JobView:
    """Accepts a job, or refuses it with the one thing to change."""
    spec = parse_spec(dict(request.spec))
    if request.code and not await asyncio.to_thread(services.blobs.has, request.code):
        raise SpecError("code", request.code, "send the packed workdir to /api/v1/blobs first")
    job = await services.control.change(lambda controller: controller.submit(spec, request.code, request.key, BY))
    return await _view(services, services.control.world.jobs[job])


@router.get("/jobs")
async def list_jobs(
    services: ServicesHere,
    queue: Filter = "",
    project: Filter = "",
    state: Filter = "",
    limit: Annotated[int, Query(ge=1, le=JOBS_MAX)] = 100,
) -> tuple[JobView, ...]:
    """Jobs, newest first."""
    newest_first = reversed(list(services.control.world.jobs.values()))
    found = (
        job
        for job in newest_first
        if queue in ("", job.spec.queue) and project in ("", job.spec.project) and state in ("", job.state.name)
    )
    return tuple([await _view(services, job) for job in islice(found, limit)])


@router.get("/jobs/{job}")
async def get_job(services: ServicesHere, job: JobHere) -> JobView:
    """One job."""
    return await _view(services, job)


@router.get("/jobs/{job}/why")
async def why(services: ServicesHere, job: JobHere) -> WhyView:
    """Why it is where it is."""
    return views.why_view(services.control.world, job, services.control.waiting)


@router.post("/jobs/{job}/cancel")
async def cancel(services: ServicesHere, job: JobHere) -> JobView:
    """Asks it to end; its ranks get SIGTERM, and SIGKILL later."""
    await services.control.change(lambda controller: controller.cancel(job.id, BY))
    return await _view(services, services.control.world.jobs[job.id])


@router.get("/jobs/{job}/events")
async def events(
    services: ServicesHere,
    job: JobHere,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = EVENTS_MAX,
) -> tuple[EventView, ...]:
    """Its part of the log beyond event `after`, a page of at most `limit`; the last one's `seq` is the next page's `after`."""
    found = await asyncio.to_thread(services.store.events, after, job.id, limit)
    return tuple(views.event_view(event) for event in found)


async def _view(services: Services, job: JobRecord) -> JobView:
    newest = None
    if job.attempt is not None and not isinstance(job.state, Pending):
        newest = await asyncio.to_thread(services.series.last_step, job.attempt)
    progress = progress_of(newest) if newest else None
    return views.job_view(services.control.world, job, services.control.waiting, progress)


def progress_of(newest: StepRecord) -> Progress:
    """Where a run stands by its newest step. The rest is taken to go as fast as that step."""
    rate_known = newest.tokens > 0 and newest.tokens_per_s > 0
    left_s = (newest.total_steps - newest.step) * newest.tokens / newest.tokens_per_s if rate_known else None
    return Progress(
        step=newest.step,
        total_steps=newest.total_steps,
        loss=newest.loss,
        tokens_per_s=newest.tokens_per_s,
        mfu=newest.mfu,
        eta_ms=None if left_s is None else max(0, round(left_s * 1000)),
    )
