"""Where the devices' time went."""

import asyncio
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query

from phalanx.core.devices import CPU_SLOT
from phalanx.core.errors import SpecError
from phalanx.core.ids import AttemptId
from phalanx.core.records import StepRecord
from phalanx.core.views import LedgerView
from phalanx.fabric.catalogue import lookup
from phalanx.operate.control import views
from phalanx.operate.control.api.access import READS, ServicesHere, job_for, sees
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.world import JobRecord, World
from phalanx.record.telemetry.ledger import account_of, cost

Time = Annotated[int | None, Query(ge=0, le=2**53)]
router = APIRouter(tags=["ledger"])


@router.get("/ledger", dependencies=[READS], responses=refusals(404))
async def ledger(
    services: ServicesHere,
    asker: AskerHere,
    job: Annotated[str, Query(max_length=100)] = "",
    since_ms: Time = None,
    until_ms: Time = None,
) -> LedgerView:
    """Device time of a window by category: of the fleet, or of the devices that one job held. People of a team have the devices of
    its jobs for a fleet. Without bounds, all so far; what
    has not happened yet is in no window."""
    world = services.control.world
    record = job_for(services, asker, job) if job else None
    now_ms = services.clock.now_ms()
    last_ms = (record.finished_ms if record else None) or now_ms
    until = last_ms if until_ms is None else min(until_ms, now_ms)
    if since_ms is not None and since_ms > until:
        raise SpecError("since_ms", since_ms, f"write a time before the end of the window, {until}")
    own = None if asker.person.everywhere is not None else [one for one in world.jobs.values() if sees(asker, one)]
    jobs = [record] if record else own
    return await asyncio.to_thread(_account, services, world, record, jobs, since_ms, until)


def _account(
    services: Services, world: World, job: JobRecord | None, jobs: list[JobRecord] | None, since_ms: int | None, until_ms: int
) -> LedgerView:
    """jobs: of which it is, `job` or a team's; None is the fleet's."""
    history, begun_ms = services.ledger_past.history(services.store)
    first_ms = job.submitted_ms if job else (until_ms if begun_ms is None else begun_ms)
    since = min(first_ms, until_ms) if since_ms is None else since_ms
    of_jobs = None if jobs is None else frozenset(one.id for one in jobs)
    booked = account_of(history, _steps(services, world, jobs, since, until_ms), since, until_ms, of_jobs)
    return LedgerView(
        job=job.id if job else None,
        since_ms=since,
        until_ms=until_ms,
        capacity=booked.capacity,
        categories=booked.categories,
        balanced=booked.balanced,
        devices_are=views.devices_are(world),
        cost=cost(booked.by_type, _price),
        notes=(*_notes(booked.by_type), *_collected(world, jobs, since, until_ms)),
    )


def _steps(
    services: Services, world: World, asked: list[JobRecord] | None, since_ms: int, until_ms: int
) -> dict[AttemptId, list[StepRecord]]:
    """Of every attempt of each job that held devices in the window: what counts as done again depends on those before."""
    some = list(world.jobs.values()) if asked is None else asked
    jobs = some if len(some) == 1 else [one for one in some if _held_in(world, one, since_ms, until_ms)]
    return {attempt: services.series.steps(attempt) for one in jobs for attempt in one.attempts}


def _held_in(world: World, job: JobRecord, since_ms: int, until_ms: int) -> bool:
    spans = ((world.attempts[one].placed_ms, world.attempts[one].ended_ms) for one in job.attempts)
    return any(placed < until_ms and (ended is None or ended > since_ms) for placed, ended in spans)


def _collected(world: World, asked: list[JobRecord] | None, since_ms: int, until_ms: int) -> tuple[str, ...]:
    """Without their step records nobody knows any more how they spent their time."""
    jobs = list(world.jobs.values()) if asked is None else asked
    count = sum(one.collected_ms is not None and _held_in(world, one, since_ms, until_ms) for one in jobs)
    whose = "1 job was" if count == 1 else f"{count} jobs were"
    return (f"the measurements of {whose} collected, so that time counts as unmeasured",) if count else ()


def _price(device_type: str) -> float | None:
    known = lookup(device_type)
    return known.price_per_hour if known else None


def _notes(by_type: Mapping[str, int]) -> tuple[str, ...]:
    unpriced = sorted(kind for kind, amount in by_type.items() if amount and _price(kind) is None)
    slots = ["a device is one CPU slot here, at the catalogue's price for one"] if by_type.get(CPU_SLOT) else []
    return (*slots, *(f"no price is known for {kind}, so there is no cost" for kind in unpriced))
