"""The log: what happened, of one job or of everything."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Final, get_args

from fastapi import APIRouter, Depends, Query

from phalanx.core.errors import SpecError
from phalanx.core.events import EventBody
from phalanx.core.views import EventView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import JobHere, ServicesHere

EVENTS_MAX: Final = 1000
KINDS: Final = tuple(str(one.default) for body in get_args(get_args(EventBody)[0]) for one in fields(body) if one.name == "kind")
router = APIRouter(tags=["events"])


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of the log: beyond event `after`, of `kind` alone, not before `since_ms`; the oldest `limit`, or the `newest`."""

    after: int
    limit: int
    kind: str
    since_ms: int
    newest: bool


def page(
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = EVENTS_MAX,
    kind: Annotated[str, Query(max_length=100, json_schema_extra={"enum": ["", *KINDS]})] = "",
    since_ms: Annotated[int, Query(ge=0, le=2**53)] = 0,
    newest: bool = False,
) -> Page:
    """The part that the query names. Raises SpecError for a kind that there is not."""
    if kind and kind not in KINDS:
        raise SpecError("kind", kind, f"write one of {', '.join(KINDS)}")
    return Page(after, limit, kind, since_ms, newest)


PageAsked = Annotated[Page, Depends(page)]


@router.get("/events")
async def events(services: ServicesHere, asked: PageAsked) -> Sequence[EventView]:
    """The log beyond event `after`, oldest first, a page of at most `limit`; the last one's `seq` is the next page's `after`.

    newest: the last `limit` of them instead of the first.
    """
    found = await asyncio.to_thread(services.store.events, asked.after, None, asked.limit, asked.kind, asked.since_ms, asked.newest)
    return tuple(views.event_view(event) for event in found)


@router.get("/jobs/{job}/events")
async def events_of_job(services: ServicesHere, job: JobHere, asked: PageAsked) -> Sequence[EventView]:
    """A job's part of the log, likewise."""
    found = await asyncio.to_thread(
        services.store.events, asked.after, job.id, asked.limit, asked.kind, asked.since_ms, asked.newest
    )
    return tuple(views.event_view(event) for event in found)
