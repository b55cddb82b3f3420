"""The application: every route declares who may use it, and everything behind the guards."""

from importlib.metadata import version
from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from phalanx.operate.control.api import (
    agents,
    artifacts,
    attempts,
    auditing,
    blobs,
    channels,
    chaos,
    errors,
    events,
    gc,
    jobs,
    ledger,
    logs,
    models,
    nodes,
    oidc,
    openapi,
    people,
    plans,
    profiles,
    refusals,
    runs,
    secrets,
    sharing,
    status,
    streams,
    tokens,
    usage,
    webhooks,
)
from phalanx.operate.control.api.access import ANYBODY, SOMEBODY, authorities
from phalanx.operate.control.api.guards import LOOPBACK, Guards
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.tags import Tags

_PARTS: Final = (
    status, streams, attempts, runs, usage, webhooks, jobs, chaos, plans, events, nodes, logs, ledger, models, secrets, artifacts,
    profiles, gc, sharing, blobs, agents, people, tokens, auditing, oidc, channels,
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
    for part in _PARTS:
        app.include_router(part.router, prefix="/api/v1")
    openapi.install(app)
    app.add_api_route("/openapi.json", app.openapi, dependencies=[SOMEBODY], include_in_schema=False)
    app.add_api_route("/healthz", _healthz, dependencies=[ANYBODY], include_in_schema=False)
    for _ in authorities(app.routes):
        pass  # one that declares nothing ends the start
    errors.install(app)
    refusals.install(app)
    app.add_middleware(Tags)
    app.add_middleware(Guards, hosts=hosts)
    return app


async def _healthz(request: Request) -> PlainTextResponse:
    """The only thing a stranger may learn: whether the platform works, and not merely answers."""
    services: Services = request.app.state.services
    return PlainTextResponse("ok") if services.control.healthy else PlainTextResponse("stalled", 503)
