"""The application: every route declares who may use it, and everything behind the guards."""

from importlib.metadata import version

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from phalanx.operate.control.api import (
    agents,
    artifacts,
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
    people,
    plans,
    profiles,
    refusals,
    secrets,
    sharing,
    status,
    tokens,
)
from phalanx.operate.control.api.access import ANYBODY, SOMEBODY, authorities
from phalanx.operate.control.api.guards import LOOPBACK, Guards
from phalanx.operate.control.api.services import Services


def create_app(services: Services, hosts: frozenset[str] = LOOPBACK) -> FastAPI:
    """`hosts` are the names by which the API may be reached."""
    app = FastAPI(title="Phalanx", version=version("phalanx"), docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = services
    for part in (
        status, jobs, chaos, plans, events, nodes, logs, ledger, models, secrets, artifacts, profiles, gc, sharing, blobs, agents,
        people, tokens, auditing, oidc, channels,
    ):  # fmt: skip
        app.include_router(part.router, prefix="/api/v1")
    app.add_api_route("/openapi.json", app.openapi, dependencies=[SOMEBODY], include_in_schema=False)
    app.add_api_route("/healthz", _healthz, dependencies=[ANYBODY], include_in_schema=False)
    for _ in authorities(app.routes):
        pass  # one that declares nothing ends the start
    errors.install(app)
    refusals.install(app)
    app.add_middleware(Guards, hosts=hosts)
    return app


async def _healthz(request: Request) -> PlainTextResponse:
    """The only thing a stranger may learn: whether the platform works, and not merely answers."""
    services: Services = request.app.state.services
    return PlainTextResponse("ok") if services.control.healthy else PlainTextResponse("stalled", 503)
