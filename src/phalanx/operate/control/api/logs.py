"""What ranks wrote and measured: pages of logs and of step records."""

import asyncio
import codecs
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query

from phalanx.core.curves import POINTS, POINTS_MAX, CurvesView
from phalanx.core.errors import NotFound
from phalanx.core.ids import AttemptId
from phalanx.core.spec import JobSpec
from phalanx.core.views import LogPage, StepPage
from phalanx.operate.control import masking
from phalanx.operate.control.api.access import READS, JobHere, RankQuery, ServicesHere, attempt_of, refuse_collected
from phalanx.operate.control.api.services import Services
from phalanx.record.telemetry.curves import curves_of
from phalanx.record.telemetry.series import PAGE_MAX

LIMIT_MIN: Final = 4
"""The longest UTF-8 character, so that every full page moves on."""

LIMIT_MAX: Final = 1024 * 1024
router = APIRouter(tags=["logs"])


@router.get("/jobs/{job}/steps", dependencies=[READS])
async def steps(
    services: ServicesHere,
    job: JobHere,
    after: Annotated[str, Query(max_length=1000)] = "",
    rank: RankQuery | None = None,
    attempt: Annotated[str, Query(max_length=100)] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_MAX,
) -> StepPage:
    """Step records and metrics newer than `after`, of all attempts in arrival order, a page of at most `limit`."""
    only = attempt_of(job, attempt) if attempt else None
    refuse_collected(job, "steps")
    return await asyncio.to_thread(services.series.page, job.attempts, after, rank, only, limit)


@router.get("/jobs/{job}/curves", dependencies=[READS])
async def curves(
    services: ServicesHere,
    job: JobHere,
    rank: RankQuery = 0,
    points: Annotated[int, Query(ge=1, le=POINTS_MAX)] = POINTS,
) -> CurvesView:
    """The step records of one rank over all attempts, as many to a point that about `points` are left."""
    refuse_collected(job, "steps")
    return await asyncio.to_thread(curves_of, services.series, job.id, job.attempts, rank, points)


@router.get("/jobs/{job}/logs", dependencies=[READS])
async def logs(
    services: ServicesHere,
    job: JobHere,
    rank: RankQuery = 0,
    attempt: Annotated[str, Query(max_length=100)] = "",
    offset: Annotated[int, Query(ge=0, le=2**60)] = 0,
    limit: Annotated[int, Query(ge=LIMIT_MIN, le=LIMIT_MAX)] = 65_536,
) -> LogPage:
    """Part of one rank's log from byte `offset` on."""
    one = attempt_of(job, attempt)
    refuse_collected(job, "logs")
    if one is None:
        raise NotFound("attempt", job.id, "it has not started yet; `phalanx why` says what it waits for")
    world_size = services.control.world.attempts[one].placement.world_size
    if rank >= world_size:
        raise NotFound("rank", rank, f"{one} has the ranks 0 to {world_size - 1}")
    return await asyncio.to_thread(log_page, services, one, rank, offset, limit, job.spec)


def log_page(services: Services, attempt: AttemptId, rank: int, offset: int, limit: int, spec: JobSpec) -> LogPage:
    """UTF-8 with replacement, without the values of the job's secrets. A character that is not whole yet is left for the next page,
    unless nothing will follow."""
    over = services.control.world.attempts[attempt].ended_ms is not None  # asked before reading: what follows is the whole log
    known = services.secrets.values(spec.all_secrets, spec.team) if spec.all_secrets else {}
    values = [value.encode() for value in known.values()]
    page = masking.page(partial(services.journal.read, "log", attempt, rank), offset, limit, values, over)
    last = over and page.taken < limit
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(page.shown, final=last)
    following = offset + page.taken - len(decoder.getstate()[0])
    ended = over and following >= services.journal.size("log", attempt, rank)
    return LogPage(attempt=attempt, rank=rank, offset=offset, next_offset=following, text=text, ended=ended)
