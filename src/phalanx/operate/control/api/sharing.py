"""How the fleet is shared: the policy, and what queues hold of it."""

from typing import Annotated

from fastapi import APIRouter, Depends

from phalanx.core.policy_parse import dump_policy, parse_policy
from phalanx.core.views import PolicyRequest, PolicyView, QueueView
from phalanx.operate.control.api.access import BY, ServicesHere
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.queue_views import queue_views

router = APIRouter(tags=["sharing"])


@router.get("/policy")
async def get_policy(services: ServicesHere) -> PolicyView:
    """What is in force; what nobody set is left out."""
    return PolicyView(policy=dump_policy(services.control.world.policy))


@router.put("/policy")
async def set_policy(services: ServicesHere, request: PolicyRequest) -> PolicyView:
    """Takes the place of the whole policy, from the next decision on. Refused as a whole for the first thing that cannot be."""
    policy = parse_policy(request.policy)
    if request.dry_run:
        warnings = await services.control.call(lambda controller: controller.check_policy(policy))
    else:
        warnings = await services.control.change(lambda controller: controller.set_policy(policy, BY))
    return PolicyView(policy=dump_policy(policy), warnings=tuple(warnings))


@router.get("/queues", responses=LINK)
async def list_queues(
    services: ServicesHere, page: Annotated[Page, Depends(Pages("queues", str, limit=None))]
) -> tuple[QueueView, ...]:
    """Every queue that is configured, has jobs or has had devices, by name, as of the newest decision."""
    snapshot = services.control.snapshot
    return page.of(queue_views(snapshot) if snapshot is not None else (), lambda one: (one.name,))
