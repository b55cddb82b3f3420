"""How the fleet is shared: the policy, and what queues hold of it."""

from dataclasses import replace

from fastapi import APIRouter

from phalanx.core.people import Person
from phalanx.core.policy import Policy
from phalanx.core.policy_parse import dump_policy, parse_policy
from phalanx.core.views import PolicyRequest, PolicyView, QueueView
from phalanx.operate.control.api.access import READS, RULES, ServicesHere, change
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.queue_views import queue_views

router = APIRouter(tags=["sharing"])


@router.get("/policy", dependencies=[READS])
async def show(services: ServicesHere, asker: AskerHere) -> PolicyView:
    """What is in force, without other teams' queues and bookings; what nobody set is left out."""
    return PolicyView(policy=dump_policy(seen_by(asker.person, services.control.world.policy)))


@router.put("/policy", dependencies=[RULES])
async def put(services: ServicesHere, asker: AskerHere, request: PolicyRequest) -> PolicyView:
    """Takes the place of the whole policy, from the next decision on. Refused as a whole for the first thing that cannot be."""
    policy = parse_policy(request.policy)
    if request.dry_run:
        warnings = await services.control.call(lambda controller: controller.check_policy(policy))
    else:
        warnings = await change(
            services, asker, "policy.set", "fleet", lambda controller: controller.set_policy(policy, asker.name)
        )
    return PolicyView(policy=dump_policy(policy), warnings=tuple(warnings))


@router.get("/queues", dependencies=[READS])
async def queues(services: ServicesHere, asker: AskerHere) -> tuple[QueueView, ...]:
    """Every queue that is configured, has jobs or has had devices, by name, as of the newest decision; other
    teams' are left out."""
    snapshot = services.control.snapshot
    if snapshot is None:
        return ()
    return tuple(view for view in queue_views(snapshot) if _is_open(asker.person, snapshot.policy, view.name))


def seen_by(person: Person, policy: Policy) -> Policy:
    """As they may see it."""
    queues = {name: queue for name, queue in policy.queues.items() if _is_open(person, policy, name)}
    bookings = {name: one for name, one in policy.bookings.items() if _is_open(person, policy, one.queue)}
    return policy if person.everywhere is not None else replace(policy, queues=queues, bookings=bookings)


def _is_open(person: Person, policy: Policy, queue: str) -> bool:
    team = policy.team_of(queue)
    return not team or person.sees(team)
