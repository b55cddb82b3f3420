"""The platform at a glance."""

import asyncio
import statistics
from functools import cache
from importlib import metadata

from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter

from phalanx.core.isolation import trust
from phalanx.core.views import StatusView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import READS, ServicesHere
from phalanx.operate.control.api.asker import Asker, AskerHere, directory_of
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.veil import veil_of

router = APIRouter(tags=["status"])
_STATUS = TypeAdapter(StatusView)


@router.get("/status", dependencies=[READS], response_model=StatusView)
async def status(services: ServicesHere, asker: AskerHere, request: Request) -> Response:
    """Devices, nodes, jobs, processes, ticks. People of a team see its jobs counted, and nothing of the machine that the server
    runs on."""
    strangers = (await directory_of(services)).strangers

    async def rendered() -> bytes:
        return _STATUS.dump_json(await _status(services, asker, strangers))

    key = ("status", asker.sight, services.control.world.seq, strangers)
    return await services.answers.answer(key, rendered, request.headers.get("accept-encoding", ""))


@cache
def _version() -> str:
    return metadata.version("phalanx")


async def _status(services: Services, asker: Asker, strangers: bool) -> StatusView:
    veil = veil_of(services, asker)
    world, tick_ms = services.control.world, services.control.tick_ms
    total, held = views.device_counts(world)
    return StatusView(
        version=_version(),
        home=str(services.home) if veil.is_open else "",
        url=services.url,
        epoch=services.control.epoch,
        devices_are=views.devices_are(world),
        devices_total=total,
        devices_held=held,
        jobs=views.job_counts(world, asker.person.sees),
        nodes=veil.nodes(views.node_views(world, services.desk.seen_ms, strangers)),
        outbox=await asyncio.to_thread(services.store.outbox_size),
        processes=await asyncio.to_thread(services.processes) if veil.is_open else {},
        tick_ms=round(statistics.median(tick_ms), 3) if tick_ms else 0.0,
        tick_ms_max=round(max(tick_ms, default=0.0), 3),
        database=services.store.shown if veil.is_open else "",
        trust=trust({node: record.shape.isolation for node, record in world.nodes.items()}),
    )
