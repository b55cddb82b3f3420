"""How the fleet is shared: the policy, and what queues hold of it."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from phalanx.core import wire
from phalanx.core.errors import NotFound
from phalanx.core.policy import Policy
from phalanx.core.policy_parse import dump_policy, parse_policy
from phalanx.core.use_views import QuotaView
from phalanx.core.views import PolicyRequest, PolicyView, QueueView
from phalanx.operate.control.api.access import BY, ServicesHere
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.tags import IfMatch, check_match, tag_of, unless_known
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.queue_views import queue_views, quota_views

router = APIRouter(tags=["sharing"])


@router.get("/policy")
async def get_policy(services: ServicesHere, request: Request, response: Response) -> PolicyView:
    """What is in force; what nobody set is left out."""
    policy = services.control.world.policy
    unless_known(request, response, _tag(policy))
    return _view(policy)


@router.put("/policy", responses=refusals(412))
async def set_policy(services: ServicesHere, request: PolicyRequest, response: Response, if_match: IfMatch = "") -> PolicyView:
    """Takes the place of the whole policy, from the next decision on. Refused as a whole for the first thing that cannot be; with
    If-Match also when another one is in force than its writer has read."""
    policy = parse_policy(request.policy)
    if request.dry_run:
        warnings = await services.control.call(lambda controller: controller.check_policy(policy))
        return _view(policy, warnings)

    def act(controller: Controller) -> Sequence[str]:
        check_match("policy", _tag(controller.world.policy), if_match)
        return controller.set_policy(policy, BY)

    warnings = await services.control.change(act)
    response.headers["ETag"] = _tag(policy)
    return _view(policy, warnings)


def _tag(policy: Policy) -> str:
    return tag_of(wire.dumps(Policy, policy))


def _view(policy: Policy, warnings: Sequence[str] = ()) -> PolicyView:
    return PolicyView(policy=dump_policy(policy), warnings=tuple(warnings), tag=_tag(policy))


@router.get("/quotas", responses=LINK)
async def list_quotas(
    services: ServicesHere, page: Annotated[Page, Depends(Pages("quotas", str, str, limit=None))]
) -> tuple[QuotaView, ...]:
    """What each queue holds and may have of each type of device that it holds any of or the policy names, by queue and type."""
    snapshot = services.control.snapshot
    return page.of(quota_views(snapshot) if snapshot is not None else (), lambda one: (one.queue, one.type))


@router.get("/queues/{queue}")
async def get_queue(services: ServicesHere, queue: Annotated[str, Path(max_length=100)]) -> QueueView:
    """One queue, with those below it."""
    snapshot = services.control.snapshot
    found = next((one for one in queue_views(snapshot) if one.name == queue), None) if snapshot is not None else None
    if found is None:
        raise NotFound("queue", queue, "no such queue; `phalanx queue ls` shows them all")
    return found


@router.get("/queues", responses=LINK)
async def list_queues(
    services: ServicesHere, page: Annotated[Page, Depends(Pages("queues", str, limit=None))]
) -> tuple[QueueView, ...]:
    """Every queue that is configured, has jobs or has had devices, by name, as of the newest decision."""
    snapshot = services.control.snapshot
    return page.of(queue_views(snapshot) if snapshot is not None else (), lambda one: (one.name,))
