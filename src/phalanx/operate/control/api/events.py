"""The log: what happened, of one job or of everything."""

import asyncio
from dataclasses import dataclass, fields
from typing import Annotated, Final, get_args

from fastapi import APIRouter, Depends, Query

from phalanx.core.errors import SpecError
from phalanx.core.events import EventBody
from phalanx.core.ids import JobId
from phalanx.core.views import EventView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import READS, JobHere, ServicesHere
from phalanx.operate.control.api.asker import Asker, AskerHere
from phalanx.operate.control.api.pages import LIMIT_MAX, LINK, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.veil import veil_of

KINDS: Final = tuple(str(one.default) for body in get_args(get_args(EventBody)[0]) for one in fields(body) if one.name == "kind")
router = APIRouter(tags=["events"])


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of the log: beyond event `after`, of `kind` alone, not before `since_ms`; the oldest `limit`, or the `newest`."""

    page: Page
    after: int
    limit: int
    kind: str
    since_ms: int
    newest: bool


def part(
    page: Annotated[Page, Depends(Pages("events", int))],
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    kind: Annotated[str, Query(max_length=100, json_schema_extra={"enum": ["", *KINDS]})] = "",
    since_ms: Annotated[int, Query(ge=0, le=2**53)] = 0,
    newest: bool = False,
) -> Part:
    """The part that the query names. Raises SpecError for a kind that there is not."""
    check_kind(kind)
    beyond = int(page.after[0]) if page.after else after
    return Part(page, beyond, page.limit or LIMIT_MAX, kind, since_ms, newest)


def check_kind(kind: str) -> None:
    """Raises SpecError for a kind that there is not; '' is each."""
    if kind and kind not in KINDS:
        raise SpecError("kind", kind, f"write one of {', '.join(KINDS)}")


PartAsked = Annotated[Part, Depends(part)]


@router.get("/events", dependencies=[READS], responses=LINK)
async def events(services: ServicesHere, asker: AskerHere, asked: PartAsked) -> tuple[EventView, ...]:
    """The log beyond event `after`, oldest first, a page of at most `limit`; the last one's `seq` is the next page's `after`.

    newest: the last `limit` of them instead of the first. Of people of a team: what happened to its jobs.
    """
    return await _events(services, asker, asked, None)


@router.get("/jobs/{job}/events", dependencies=[READS], responses=LINK)
async def events_of_job(services: ServicesHere, asker: AskerHere, job: JobHere, asked: PartAsked) -> tuple[EventView, ...]:
    """A job's part of the log, likewise."""
    return await _events(services, asker, asked, job.id)


async def _events(services: Services, asker: Asker, asked: Part, job: JobId | None) -> tuple[EventView, ...]:
    """Nothing follows the newest."""
    veil, limit = veil_of(services, asker), asked.limit + (not asked.newest)
    teams = None if veil.is_open else asker.person.teams_as("viewer")
    found = await asyncio.to_thread(services.store.events, asked.after, job, limit, asked.kind, asked.since_ms, asked.newest, teams)
    page = found if asked.newest else asked.page.cut(found, lambda one: (one.seq,))
    return tuple(veil.event(views.event_view(event)) for event in page)
