"""The audit log, for who answers for the platform."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from phalanx.core.people import AuditView
from phalanx.operate.control.api.access import RULES, ServicesHere
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.people import audit

router = APIRouter(tags=["audit"])
Filter = Annotated[str, Query(max_length=255)]


@router.get("/audit", dependencies=[RULES], responses=LINK)
async def list_audit(
    services: ServicesHere,
    page: Annotated[Page, Depends(Pages("audit", int))],
    by: Filter = "",
    what: Filter = "",
    on: Filter = "",
    since_ms: Annotated[int, Query(ge=0, le=2**53)] = 0,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    newest: bool = False,
) -> tuple[AuditView, ...]:
    """Rows beyond number `after`, oldest first; the last one's `seq` is the next page's `after`. what: `job.cancel`, or `job` for
    all of its kind. newest: the last `limit` instead of the first, and no page follows."""
    wanted = {"by": by, "what": what, "on": on}
    beyond = int(page.after[0]) if page.after else after
    limit = (page.limit or audit.PAGE_MAX) + (not newest)
    found = await asyncio.to_thread(audit.page, services.store, wanted, since_ms, beyond, limit, newest)
    return found if newest else page.cut(found, lambda one: (one.seq,))
