"""The application: every route but /healthz stands behind a token, and everything behind the guards."""

from importlib.metadata import version
from typing import Final

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from phalanx.operate.control.api import (
    agents,
    artifacts,
    attempts,
    blobs,
    chaos,
    errors,
    events,
    gc,
    jobs,
    ledger,
    logs,
    models,
    nodes,
    openapi,
    plans,
    profiles,
    runs,
    secrets,
    sharing,
    status,
    streams,
    usage,
    webhooks,
)
from phalanx.operate.control.api.access import admin, admin_or_node, node
from phalanx.operate.control.api.guards import LOOPBACK, Guards
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.tags import Tags

_OF_ADMIN: Final = (
    status, streams, attempts, runs, usage, webhooks, jobs, chaos, plans, events, nodes, logs, ledger, models, secrets, artifacts,
    profiles, gc, sharing,
)  # fmt: skip


def create_app(services: Services, hosts: frozenset[str] = LOOPBACK) -> FastAPI:
    """`hosts` are the names by which the API may be reached."""
    app = FastAPI(
        title="Phalanx",
        description="The control plane: jobs, what became of them, and the fleet. See docs/api.md.",
        version=version("phalanx"),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=openapi.operation_id,
    )
    app.state.services = services
    for router in (*(part.router for part in _OF_ADMIN), agents.for_admin):
        app.include_router(router, prefix="/api/v1", dependencies=[Depends(admin)])
    app.include_router(blobs.router, prefix="/api/v1", dependencies=[Depends(admin_or_node)])
    app.include_router(secrets.for_nodes, prefix="/api/v1", dependencies=[Depends(node)])
    app.include_router(agents.router, prefix="/api/v1")
    openapi.install(app)
    app.add_api_route("/openapi.json", app.openapi, dependencies=[Depends(admin)], include_in_schema=False)
    app.add_api_route("/healthz", _healthz, include_in_schema=False)
    errors.install(app)
    app.add_middleware(Tags)
    app.add_middleware(Guards, hosts=hosts)
    return app


async def _healthz(request: Request) -> PlainTextResponse:
    """The only thing a stranger may learn: whether the platform works, and not merely answers."""
    services: Services = request.app.state.services
    return PlainTextResponse("ok") if services.control.healthy else PlainTextResponse("stalled", 503)
