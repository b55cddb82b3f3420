"""Faults in running jobs that allow them."""

import asyncio

from fastapi import APIRouter

from phalanx.core.chaos import Asked
from phalanx.core.views import JobView
from phalanx.operate.control.api.access import SUBMITS, JobToChange, ServicesHere, change
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.jobs import job_view_of
from phalanx.operate.control.api.openapi import refusals

router = APIRouter(tags=["chaos"])


@router.post("/jobs/{job}/chaos", dependencies=[SUBMITS], responses=refusals(409))
async def chaos(services: ServicesHere, asker: AskerHere, job: JobToChange, request: Asked) -> JobView:
    """Plans a fault in the job's running attempt, of whose ranks one meets it at the step. Only where the job's file says
    `chaos: true`; a step that has passed and a rank that does not exist are refused."""
    looked_at = job.attempt  # the job may start again meanwhile
    step = await asyncio.to_thread(services.series.last_step, looked_at) if looked_at else None
    newest = (looked_at, step) if looked_at and step else None
    await change(
        services,
        asker,
        "job.chaos",
        job.id,
        lambda controller: controller.chaos(job.id, request, newest, asker.name),
        request.fault,
    )
    return await job_view_of(services, asker, services.control.world.jobs[job.id])
