"""The platform at a glance."""

import asyncio
import statistics
from importlib.metadata import version

from fastapi import APIRouter

from phalanx.core.isolation import trust
from phalanx.core.views import StatusView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import ServicesHere

router = APIRouter(tags=["status"])


@router.get("/status")
async def status(services: ServicesHere) -> StatusView:
    """Devices, nodes, jobs, processes, ticks."""
    world, tick_ms = services.control.world, services.control.tick_ms
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
        tick_ms=round(statistics.median(tick_ms), 3) if tick_ms else 0.0,
        tick_ms_max=round(max(tick_ms, default=0.0), 3),
        trust=trust({node: record.shape.isolation for node, record in world.nodes.items()}),
    )
