"""The audit log, for who answers for the platform."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from phalanx.core.people import AuditView
from phalanx.operate.control.api.access import RULES, ServicesHere
from phalanx.operate.control.people import audit

router = APIRouter(tags=["audit"])
Filter = Annotated[str, Query(max_length=255)]


@router.get("/audit", dependencies=[RULES])
async def show(
    services: ServicesHere,
    by: Filter = "",
    what: Filter = "",
    on: Filter = "",
    since_ms: Annotated[int, Query(ge=0, le=2**53)] = 0,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=audit.PAGE_MAX)] = audit.PAGE_MAX,
    newest: bool = False,
) -> tuple[AuditView, ...]:
    """Rows beyond number `after`, oldest first; the last one's `seq` is the next page's `after`. what: `job.cancel`, or `job` for
    all of its kind. newest: the last `limit` instead of the first."""
    wanted = {"by": by, "what": what, "on": on}
    return await asyncio.to_thread(audit.page, services.store, wanted, since_ms, after, limit, newest)
