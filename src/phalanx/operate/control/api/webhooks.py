"""Deliveries to webhooks: those not accepted yet, to look at and to send again now, and the newest of those that are over."""

import asyncio
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Path

from phalanx.core.errors import NotFound
from phalanx.core.use_views import DeliveryView, EndedDeliveryView
from phalanx.operate.control import notices
from phalanx.operate.control.api.access import READS, SUBMITS, ServicesHere, sees, to_change
from phalanx.operate.control.api.asker import Asker, AskerHere
from phalanx.operate.control.api.pages import LIMIT_MAX, LINK, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.notices import Ended, Waiting
from phalanx.operate.control.world import JobRecord

router = APIRouter(tags=["webhooks"])


@router.get("/webhooks/deliveries", dependencies=[READS], responses=LINK)
async def list_deliveries(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("deliveries", int))]
) -> tuple[DeliveryView, ...]:
    """Those of jobs that the caller may see which wait to be made, or to be tried again; oldest first."""
    after = int(page.after[0]) if page.after else 0
    found = await asyncio.to_thread(_seen, services, asker, after, (page.limit or LIMIT_MAX) + 1)
    return tuple(_view(one) for one in page.cut(found, lambda one: (one.notice.seq,)))


@router.get("/webhooks/history", dependencies=[READS], responses=LINK)
async def list_history(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("history", int, limit=100))]
) -> tuple[EndedDeliveryView, ...]:
    """Those of jobs that the caller may see which were accepted, or given up after a day; the last to end comes first. Of a team to
    one webhook 100 are kept, to all its webhooks 2,000."""
    before = int(page.after[0]) if page.after else None
    found = await asyncio.to_thread(_seen_of_past, services, asker, before, (page.limit or LIMIT_MAX) + 1)
    return tuple(_past_view(one) for one in page.cut(found, lambda one: (one.seq,)))


@router.post("/webhooks/deliveries/{delivery}/redeliver", dependencies=[SUBMITS], status_code=202)
async def redeliver(services: ServicesHere, asker: AskerHere, delivery: Annotated[int, Path(ge=1, le=2**53)]) -> DeliveryView:
    """It, and what waits behind it for the same receiver, is due now."""
    now_ms = services.clock.now_ms()

    def act(controller: Controller) -> Waiting | None:
        job = _job_of(services, asker, delivery)
        note = asker.note("webhook.redeliver", job.id, now_ms, f"delivery {delivery}")
        return notices.hurry(services.store, controller.epoch, delivery, now_ms, note)

    found = await services.control.call(act)
    if found is None:
        raise _none(delivery)
    return _view(found)


def _seen(services: Services, asker: Asker, after: int, limit: int) -> list[Waiting]:
    """The first `limit` beyond number `after` of jobs that they may see."""
    found: list[Waiting] = []
    while len(found) < limit and (some := notices.waiting(services.store, after, LIMIT_MAX)):
        found += [one for one in some if _is_seen(services, asker, one)]
        after = some[-1].notice.seq
    return found[:limit]


def _seen_of_past(services: Services, asker: Asker, before: int | None, limit: int) -> list[Ended]:
    """The last `limit` before number `before` of jobs that they may see."""
    found: list[Ended] = []
    while len(found) < limit and (some := notices.history(services.store, before, LIMIT_MAX)):
        found += [one for one in some if _is_seen(services, asker, one)]
        before = some[-1].seq
    return found[:limit]


def _is_seen(services: Services, asker: Asker, one: Waiting | Ended) -> bool:
    job = services.control.world.jobs.get(one.notice.entry["job"])
    return job is not None and sees(asker, job)


def _job_of(services: Services, asker: Asker, delivery: int) -> JobRecord:
    """Whose it is, for who may change that job. Raises NotFound, Forbidden."""
    some = notices.waiting(services.store, delivery - 1, 1)
    if not some or some[0].notice.seq != delivery or not _is_seen(services, asker, some[0]):
        raise _none(delivery)
    return to_change(asker, services.control.world.jobs[some[0].notice.entry["job"]])


def _none(delivery: int) -> NotFound:
    return NotFound("delivery", delivery, "none of that number waits; it was accepted or given up")


def _view(one: Waiting) -> DeliveryView:
    """Of the webhook its host alone: paths of many services are their password."""
    entry = one.notice.entry
    return DeliveryView(
        id=one.notice.seq,
        job=entry["job"],
        event=entry["id"],
        occasion=entry["occasion"],
        host=urlsplit(one.notice.webhook).hostname or "",
        at_ms=entry["at_ms"],
        tries=one.notice.tries,
        due_ms=one.due_ms,
    )


def _past_view(one: Ended) -> EndedDeliveryView:
    """Likewise."""
    entry = one.notice.entry
    return EndedDeliveryView(
        id=one.notice.seq,
        job=entry["job"],
        event=entry["id"],
        occasion=entry["occasion"],
        host=urlsplit(one.notice.webhook).hostname or "",
        at_ms=entry["at_ms"],
        tries=one.notice.tries,
        ended_ms=one.ended_ms,
        outcome=one.outcome,
        detail=one.detail,
    )
