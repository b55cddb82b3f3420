"""Garbage collection: begin one, look at it."""

from fastapi import APIRouter

from phalanx.core.errors import NotFound, SpecError
from phalanx.core.units import duration_ms
from phalanx.core.views import GcRequest, GcView
from phalanx.operate.control.api.access import RULES, ServicesHere
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.people import audit

router = APIRouter(tags=["gc"])


@router.post("/gc", status_code=202, dependencies=[RULES], responses=refusals(409))
async def collect(services: ServicesHere, asker: AskerHere, request: GcRequest) -> GcView:
    """Begins a collection, at most one at a time; GET shows how it ends. A dry run only says what would be collected."""
    try:
        older_than_ms = duration_ms(request.older_than)
    except ValueError as error:
        raise SpecError("older_than", request.older_than, str(error)) from error
    services.collector.refuse_second()
    if not request.dry_run:  # before it begins: where the row cannot be written nothing is removed
        note = asker.note("gc.start", f"older than {request.older_than}", services.clock.now_ms())
        await services.control.call(lambda controller: audit.append(services.store, controller.epoch, note))
    return services.collector.start(older_than_ms, request.dry_run, asker.name)


@router.get("/gc", dependencies=[RULES], responses=refusals(404))
async def collection(services: ServicesHere) -> GcView:
    """The collection that runs, or the last one since the server started."""
    view = services.collector.view
    if view is None:
        raise NotFound("gc", "", "none was begun since the server started; POST /api/v1/gc begins one")
    return view
