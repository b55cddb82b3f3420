"""Events and logs as they come. Each stream reads what is durable, from where its reader stopped, so none is kept for anybody."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from phalanx.core import wire
from phalanx.core.errors import SpecError, Unauthorized
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.states import Finished
from phalanx.core.stream_views import LogGap
from phalanx.core.views import LogPage
from phalanx.operate.control.api.access import READS, JobHere, RankQuery, ServicesHere, attempt_of, refuse_collected, sees
from phalanx.operate.control.api.asker import Again, AgainHere, Asker, AskerHere
from phalanx.operate.control.api.events import KINDS, check_kind
from phalanx.operate.control.api.logs import log_page
from phalanx.operate.control.api.sending import STREAM, EventStream, LastEventId, Sent, end
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.veil import veil_of
from phalanx.operate.control.world import JobRecord

TOGETHER_S: Final = 0.2
"""What comes within it is looked for once: a busy fleet wakes nobody a hundred times a second."""

LOOK_S: Final = 2.0
"""What changes wakes who waits for it. That a token was revoked, or that the server ends, which waits 3 s, is found by looking."""

CLOSED: Final = "this token does not open it any more"
PAGE_BYTES: Final = 65_536
LAG_BYTES: Final = (PAGE_BYTES, 2**40)
router = APIRouter(tags=["streams"])
Kind = Annotated[str, Query(max_length=100, json_schema_extra={"enum": ["", *KINDS]})]
After = Annotated[int | None, Query(ge=0, le=2**53)]


@router.get("/events/stream", dependencies=[READS], response_class=StreamingResponse, responses=STREAM)
async def stream_events(
    services: ServicesHere,
    asker: AskerHere,
    again: AgainHere,
    after: After = None,
    kind: Kind = "",
    last_event_id: LastEventId = "",
) -> EventStream:
    """The log as it grows: from event `after` on, or from now on without it; for ever. `id` is an event's `seq`. Of people of a
    team: what happens to its jobs."""
    check_kind(kind)
    events = _events(services, again, None, kind, _seq(services, after, last_event_id))
    return services.streams.response(asker.person, events)


@router.get("/jobs/{job}/events/stream", dependencies=[READS], response_class=StreamingResponse, responses=STREAM)
async def stream_events_of_job(
    services: ServicesHere,
    asker: AskerHere,
    again: AgainHere,
    job: JobHere,
    after: After = 0,
    kind: Kind = "",
    last_event_id: LastEventId = "",
) -> EventStream:
    """A job's part of the log, from its beginning or event `after` on, until it has finished."""
    check_kind(kind)
    events = _events(services, again, job.id, kind, _seq(services, after, last_event_id))
    return services.streams.response(asker.person, events)


@router.get("/jobs/{job}/logs/stream", dependencies=[READS], response_class=StreamingResponse, responses=STREAM)
async def stream_logs(
    services: ServicesHere,
    asker: AskerHere,
    again: AgainHere,
    job: JobHere,
    rank: RankQuery = 0,
    attempt: Annotated[str, Query(max_length=100)] = "",
    offset: Annotated[int, Query(ge=0, le=2**60)] = 0,
    max_lag: Annotated[int | None, Query(ge=LAG_BYTES[0], le=LAG_BYTES[1])] = None,
    last_event_id: LastEventId = "",
) -> EventStream:
    """One rank's log as it grows, attempt after attempt, until the job has finished; with `attempt` that one's alone. A reader who
    is further behind than `max_lag` bytes is taken to the end, and told by a `gap` what it missed; without it nobody misses a byte.
    """
    refuse_collected(job, "logs")
    first = attempt_of(job, attempt)
    if last_event_id:
        first, offset = _place(job, last_event_id)
    pages = _logs(services, again, job.id, rank, first, offset, bool(attempt), max_lag)
    return services.streams.response(asker.person, pages)


def _seq(services: Services, after: int | None, last: str) -> int:
    """Raises SpecError for an id that no event has."""
    if not last:
        return services.control.world.seq if after is None else after
    if not last.isascii() or not last.isdecimal() or int(last) > services.control.world.seq:
        raise SpecError("Last-Event-ID", last, f"is no event's; the newest is {services.control.world.seq}")
    return int(last)


def _place(job: JobRecord, last: str) -> tuple[AttemptId, int]:
    """Raises SpecError for an id that no page of the log had."""
    attempt, _, offset = last.rpartition("@")
    if AttemptId(attempt) not in job.attempts or not offset.isascii() or not offset.isdecimal() or len(offset) > 18:
        raise SpecError("Last-Event-ID", last, f"is no place in a log of {job.id}; send the id of the last event, or none")
    return AttemptId(attempt), int(offset)


async def _still(again: Again, services: Services, job: JobId | None) -> Asker | None:
    """Who reads, as they are now; None once they may not: every turn asks, for a stream may be open for weeks."""
    try:
        asker = await again()
    except Unauthorized:
        return None
    sees_it = job is None or sees(asker, services.control.world.jobs[job])
    return asker if sees_it and asker.person.best is not None else None


async def _events(services: Services, again: Again, job: JobId | None, kind: str, at: int) -> AsyncGenerator[Sent | None]:
    while (asker := await _still(again, services, job)) is not None:
        ticket = services.control.changed.ticket()
        over = job is not None and isinstance(services.control.world.jobs[job].state, Finished)  # asked before looking
        teams = None if asker.person.everywhere is not None else asker.person.teams_as("viewer")
        told, at = await services.tail.beyond(at, job, kind, teams)
        veil = veil_of(services, asker)
        for one in told:
            if (data := veil.told(one)) is not None:
                yield Sent("event", data, str(one.seq))
        if over and at >= services.control.world.seq:
            yield end(f"{job} has finished")
            return
        yield None
        if not told:
            await ticket.wait(LOOK_S)
            await asyncio.sleep(TOGETHER_S)
    yield end(CLOSED)


async def _logs(
    services: Services,
    again: Again,
    job: JobId,
    rank: int,
    attempt: AttemptId | None,
    at: int,
    only: bool,
    max_lag: int | None,
) -> AsyncGenerator[Sent | None]:
    bell = services.grown.of(job, rank)
    while attempt is None:
        ticket = bell.ticket()
        if await _still(again, services, job) is None:
            yield end(CLOSED)
            return
        record = services.control.world.jobs[job]
        if record.attempt is None and isinstance(record.state, Finished):
            yield end(f"{job} has finished, and never ran")
            return
        attempt = record.attempt
        yield None
        if attempt is None:
            await ticket.wait(LOOK_S)
    async for sent in _from(services, again, job, rank, attempt, at, only, max_lag):
        yield sent


async def _from(
    services: Services, again: Again, job: JobId, rank: int, attempt: AttemptId, at: int, only: bool, max_lag: int | None
) -> AsyncGenerator[Sent | None]:
    bell = services.grown.of(job, rank)
    while await _still(again, services, job) is not None:
        ticket = bell.ticket()
        if (missed := await asyncio.to_thread(_gap, services, attempt, rank, at, max_lag)) is not None:
            at = missed.next_offset
            yield Sent("gap", wire.dumps(LogGap, missed), f"{attempt}@{at}")
        page = await asyncio.to_thread(_page, services, job, attempt, rank, at)
        moved, at = page.next_offset != at, page.next_offset
        if page.text:
            yield Sent("log", wire.dumps(LogPage, page), f"{attempt}@{at}")
        if page.ended:
            following = None if only else _after(services, job, attempt)
            if following is None and (only or isinstance(services.control.world.jobs[job].state, Finished)):
                yield end(f"{attempt if only else job} has finished")
                return
            if following is not None:
                attempt, at, moved = following, 0, True
        yield None
        while not moved and not await ticket.wait(LOOK_S):
            if await _still(again, services, job) is None:
                break
            yield None
    yield end(CLOSED)


def _page(services: Services, job: JobId, attempt: AttemptId, rank: int, at: int) -> LogPage:
    """Nothing at all of a rank that the attempt does not have: an earlier one, or a later one, may."""
    record = services.control.world.attempts[attempt]
    page = log_page(services, attempt, rank, at, PAGE_BYTES, services.control.world.jobs[job].spec)
    return page if rank < record.placement.world_size else replace(page, ended=record.ended_ms is not None)


def _gap(services: Services, attempt: AttemptId, rank: int, at: int, max_lag: int | None) -> LogGap | None:
    """What a reader at `at` is to miss: all but the end of what lies before it, where that is more than `max_lag`."""
    if max_lag is None:
        return None
    size = services.journal.size("log", attempt, rank)
    if size - at <= max_lag:
        return None
    following = size - PAGE_BYTES
    return LogGap(attempt=attempt, rank=rank, offset=at, next_offset=following, missed_bytes=following - at)


def _after(services: Services, job: JobId, attempt: AttemptId) -> AttemptId | None:
    known = services.control.world.jobs[job].attempts
    return next(iter(known[known.index(attempt) + 1 :]), None) if attempt in known else next(iter(known), None)
