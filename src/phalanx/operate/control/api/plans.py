"""What the scheduler would do, and why it does what it does: why, plan, the saved snapshot. Decided on threads of their own, one
question after the other, so that neither ticks nor other routes wait."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Query
from starlette.responses import Response

from phalanx.core import wire
from phalanx.core.errors import StoreUnavailable
from phalanx.core.ids import JobId
from phalanx.core.spec_parse import parse_spec
from phalanx.core.states import Pending
from phalanx.core.views import PlanRequest, PlanView, WhyView
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.operate.control import refused, views
from phalanx.operate.control.api import others_files
from phalanx.operate.control.api.access import READS, RULES, SUBMITS, JobHere, ServicesHere
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.jobs import with_team
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.veil import veil_of
from phalanx.operate.control.dry_views import plan_view, why_waiting
from phalanx.operate.control.outcomes import Outcomes
from phalanx.operate.control.snapshots import job_facts

T = TypeVar("T")
router = APIRouter(tags=["plans"])
SAVED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A `Snapshot` of this version", "content": {"application/json": {"schema": {"type": "object"}}}}
}
_asked: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plans")


@router.get("/jobs/{job}/why", dependencies=[READS])
async def why(services: ServicesHere, asker: AskerHere, job: JobHere, changes: Annotated[bool, Query()] = False) -> WhyView:
    """Why it is where it is. `changes`: of one that waits also when it is expected to start, and what would start it now; this
    takes as long as a decision."""
    view = views.why_view(services.control.world, job, services.control.waiting, services.clock.now_ms())
    snapshot = services.control.snapshot
    if not changes or snapshot is None or not isinstance(job.state, Pending):
        return veil_of(services, asker).why(view, job.spec)
    return veil_of(services, asker).why(await _on_thread(lambda: why_waiting(snapshot, view)), job.spec)


@router.post("/plan", dependencies=[SUBMITS])
async def plan(services: ServicesHere, asker: AskerHere, request: PlanRequest) -> PlanView:
    """What would be decided of a job if it were submitted now. Nothing is submitted."""
    spec = with_team(services, asker, await asyncio.to_thread(parse_spec, dict(request.spec)))
    await asyncio.to_thread(others_files.refuse, services, asker.person, spec)
    snapshot = _snapshot(services)
    refused.refuse_unmeetable(services.control.world, spec, snapshot.now_ms)
    facts = job_facts(JobId(spec.name), spec, snapshot.now_ms, 0, asker.name)
    jobs = spec.array.count if spec.array else 1
    unmet, failed = Outcomes(services.control.world).of(spec.after)
    return veil_of(services, asker).plan(await _on_thread(lambda: plan_view(snapshot, facts, jobs, unmet, failed)), spec)


@router.get("/snapshot", dependencies=[RULES], responses=SAVED)
async def get_snapshot(services: ServicesHere) -> Response:
    """All that the newest decision was made from, for `phalanx sim replay`. Not a view: it reads as `Snapshot` of this version."""
    snapshot = _snapshot(services)
    text = await _on_thread(lambda: wire.dumps(Snapshot, snapshot))
    return Response(text, media_type="application/json")


def _snapshot(services: Services) -> Snapshot:
    """Raises StoreUnavailable before the first tick."""
    snapshot = services.control.snapshot
    if snapshot is None:
        raise StoreUnavailable("nothing was decided yet since the control plane started; ask again in a second")
    return snapshot


async def _on_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_asked, work)
