"""Tracked runs: of each job that has begun, what it was configured with and where it stands. A run spans the job's attempts."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from phalanx.core.curves import POINTS, POINTS_MAX, CurvesView
from phalanx.core.errors import NotFound
from phalanx.core.states import Finished
from phalanx.core.use_views import RunView
from phalanx.operate.control.api.access import READS, JobHere, RankQuery, ServicesHere, refuse_collected, sees
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.jobs import newest_first
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.world import JobRecord
from phalanx.record.telemetry.curves import curves_of

router = APIRouter(tags=["runs"])


@router.get("/runs", dependencies=[READS], responses=LINK)
async def list_runs(
    services: ServicesHere,
    asker: AskerHere,
    page: Annotated[Page, Depends(Pages("runs", int, limit=100))],
    project: Annotated[str, Query(max_length=100)] = "",
) -> tuple[RunView, ...]:
    """Runs of jobs that the caller may see, newest first."""
    known = newest_first(services.control.world, page.after)
    begun = (job for job in known if sees(asker, job) and job.started_ms is not None and project in ("", job.spec.project))
    return tuple([await _view(services, job) for job in page.cut(begun, lambda job: (job.sequence,))])


@router.get("/runs/{job}", dependencies=[READS])
async def get_run(services: ServicesHere, job: JobHere) -> RunView:
    """The run of a job."""
    return await _view(services, _begun(job))


@router.get("/runs/{job}/metrics", dependencies=[READS])
async def run_metrics(
    services: ServicesHere, job: JobHere, rank: RankQuery = 0, points: Annotated[int, Query(ge=1, le=POINTS_MAX)] = POINTS
) -> CurvesView:
    """What the run measured over all its attempts, as many steps to a point that about `points` are left: only points leave the
    server, however long the run."""
    refuse_collected(_begun(job), "metrics")
    return await asyncio.to_thread(curves_of, services.series, job.id, job.attempts, rank, points)


def _begun(job: JobRecord) -> JobRecord:
    """Raises NotFound for one that has not: there is no run of it."""
    if job.started_ms is None:
        raise NotFound("run", job.id, "it has not started yet; `phalanx why` says what it waits for")
    return job


async def _view(services: Services, job: JobRecord) -> RunView:
    newest = await asyncio.to_thread(services.series.last_step, job.attempt) if job.attempt else None
    assert job.started_ms is not None
    return RunView(
        run=job.id,
        name=job.spec.name,
        project=job.spec.project,
        state=job.state.outcome if isinstance(job.state, Finished) else job.state.name,
        user=job.by,
        config=dict(job.spec.hyperparameters),
        config_hash=job.config,
        code=job.code,
        started_ms=job.started_ms,
        finished_ms=job.finished_ms,
        attempts=len(job.attempts),
        step=newest.step if newest else 0,
        total_steps=newest.total_steps if newest else 0,
        loss=newest.loss if newest else None,
        model=job.model,
    )
