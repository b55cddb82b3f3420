"""Deliveries to webhooks that were not accepted yet: look at them, send one again now."""

import asyncio
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Path

from phalanx.core.errors import NotFound
from phalanx.core.use_views import DeliveryView
from phalanx.operate.control import notices
from phalanx.operate.control.api.access import ServicesHere
from phalanx.operate.control.api.pages import LIMIT_MAX, LINK, Page, Pages
from phalanx.operate.control.notices import Waiting

router = APIRouter(tags=["webhooks"])


@router.get("/webhooks/deliveries", responses=LINK)
async def list_deliveries(
    services: ServicesHere, page: Annotated[Page, Depends(Pages("deliveries", int))]
) -> tuple[DeliveryView, ...]:
    """Those that wait to be made, or to be tried again, oldest first. What was accepted, or given up after a day, is not kept."""
    after = int(page.after[0]) if page.after else 0
    found = await asyncio.to_thread(notices.waiting, services.store, after, (page.limit or LIMIT_MAX) + 1)
    return tuple(_view(one) for one in page.cut(found, lambda one: (one.notice.seq,)))


@router.post("/webhooks/deliveries/{delivery}/redeliver", status_code=202)
async def redeliver(services: ServicesHere, delivery: Annotated[int, Path(ge=1, le=2**53)]) -> DeliveryView:
    """It, and what waits behind it for the same receiver, is due now."""
    now_ms = services.clock.now_ms()
    found = await services.control.call(lambda controller: notices.hurry(services.store, controller.epoch, delivery, now_ms))
    if found is None:
        raise NotFound("delivery", delivery, "none of that number waits; it was accepted or given up")
    return _view(found)


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
