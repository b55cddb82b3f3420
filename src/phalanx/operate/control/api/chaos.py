"""Faults in running jobs that allow them."""

import asyncio

from fastapi import APIRouter

from phalanx.core.chaos import Asked
from phalanx.core.views import JobView
from phalanx.operate.control.api.access import BY, JobHere, ServicesHere
from phalanx.operate.control.api.jobs import job_view_of
from phalanx.operate.control.api.openapi import refusals

router = APIRouter(tags=["chaos"])


@router.post("/jobs/{job}/chaos", responses=refusals(409))
async def chaos(services: ServicesHere, job: JobHere, request: Asked) -> JobView:
    """Plans a fault in the job's running attempt, of whose ranks one meets it at the step. Only where the job's file says
    `chaos: true`; a step that has passed and a rank that does not exist are refused."""
    looked_at = job.attempt  # the job may start again meanwhile
    step = await asyncio.to_thread(services.series.last_step, looked_at) if looked_at else None
    newest = (looked_at, step) if looked_at and step else None
    await services.control.change(lambda controller: controller.chaos(job.id, request, newest, BY))
    return await job_view_of(services, services.control.world.jobs[job.id])
