"""The platform at a glance."""

import asyncio
from importlib.metadata import version

from fastapi import APIRouter

from phalanx.core.views import StatusView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import ServicesHere

router = APIRouter(tags=["status"])


@router.get("/status")
async def status(services: ServicesHere) -> StatusView:
    """Devices, nodes, jobs, processes."""
    world = services.control.world
    total, held = views.device_counts(world)
    return StatusView(
        version=version("phalanx"),
        home=str(services.home),
        url=services.url,
        epoch=services.control.epoch,
        devices_are=views.devices_are(world),
        devices_total=total,
        devices_held=held,
        jobs=views.job_counts(world),
        nodes=views.node_views(world, services.desk.seen_ms),
        outbox=await asyncio.to_thread(services.store.outbox_size),
        processes=await asyncio.to_thread(services.processes),
    )
