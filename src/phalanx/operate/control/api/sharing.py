"""How the fleet is shared: the policy, and what queues hold of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import TypeAdapter

from phalanx.core import wire
from phalanx.core.errors import Conflict, NotFound
from phalanx.core.people import Person
from phalanx.core.policy import Policy
from phalanx.core.policy_parse import dump_policy, parse_policy
from phalanx.core.use_views import QueueShareRequest, QuotaView
from phalanx.core.views import PolicyRequest, PolicyView, QueueView
from phalanx.operate.control.api.access import LEADS, READS, RULES, ServicesHere, change, sees
from phalanx.operate.control.api.asker import Asker, AskerHere
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.tags import IfMatch, check_match, tag_of, unless_known
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.queue_shares import parted
from phalanx.operate.control.queue_views import queue_views, quota_views

router = APIRouter(tags=["sharing"])
_QUEUES = TypeAdapter(tuple[QueueView, ...])

TRIES: Final = 5
"""Of a change that is worked out beside the control thread, before its asker is told that others are quicker."""


@router.get("/policy", dependencies=[READS])
async def get_policy(services: ServicesHere, asker: AskerHere, request: Request, response: Response) -> PolicyView:
    """What is in force, without other teams' queues and bookings; what nobody set is left out."""
    policy = services.control.world.policy
    unless_known(request, response, _tag(asker, policy))
    return _view(asker, policy)


@router.put("/policy", dependencies=[RULES], responses=refusals(412))
async def set_policy(
    services: ServicesHere, asker: AskerHere, request: PolicyRequest, response: Response, if_match: IfMatch = ""
) -> PolicyView:
    """Takes the place of the whole policy, from the next decision on. Refused as a whole for the first thing that cannot be; with
    If-Match also when another one is in force than its writer has read."""
    policy = parse_policy(request.policy)
    if request.dry_run:
        warnings = await services.control.call(lambda controller: controller.check_policy(policy))
        return _view(asker, policy, warnings)

    def act(controller: Controller) -> Sequence[str]:
        check_match("policy", _tag(asker, controller.world.policy), if_match)
        return controller.set_policy(policy, asker.name)

    warnings = await change(services, asker, "policy.set", "fleet", act)
    response.headers["ETag"] = _tag(asker, policy)
    return _view(asker, policy, warnings)


def _tag(asker: Asker, policy: Policy) -> str:
    """Of what they see of it."""
    return tag_of(asker.sight, wire.dumps(Policy, seen_by(asker.person, policy)))


def _view(asker: Asker, policy: Policy, warnings: Sequence[str] = ()) -> PolicyView:
    seen = seen_by(asker.person, policy)
    return PolicyView(policy=dump_policy(seen), warnings=tuple(warnings), tag=_tag(asker, policy))


@router.get("/quotas", dependencies=[READS], responses=LINK)
async def list_quotas(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("quotas", str, str, limit=None))]
) -> tuple[QuotaView, ...]:
    """What each queue holds and may have of each type of device that it holds any of or the policy names, by queue and type; other
    teams' queues are left out."""
    snapshot = services.control.snapshot
    if snapshot is None:
        return ()
    known = (one for one in quota_views(snapshot) if _is_open(asker.person, snapshot.policy, one.queue))
    return page.of(known, lambda one: (one.queue, one.type))


@router.get("/queues/{queue}", dependencies=[READS])
async def get_queue(services: ServicesHere, asker: AskerHere, queue: Annotated[str, Path(max_length=100)]) -> QueueView:
    """One queue, with those below it."""
    found = next((one for one in _queues(services, asker) if one.name == queue), None)
    if found is None:
        raise NotFound("queue", queue, "no such queue; `phalanx queue ls` shows them all")
    return found


@router.get("/queues", dependencies=[READS], responses=LINK, response_model=tuple[QueueView, ...])
async def list_queues(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("queues", str, limit=None))]
) -> tuple[QueueView, ...] | Response:
    """Every queue that is configured, has jobs or has had devices, by name, as of the newest decision; other
    teams' are left out, and so are their jobs where `running` and `waiting` are counted."""

    def found() -> tuple[QueueView, ...]:
        return page.of(_queues(services, asker), lambda one: (one.name,))

    async def rendered() -> bytes:
        return _QUEUES.dump_json(found())

    if page.after or page.limit:
        return found()
    snapshot = services.control.snapshot
    key = ("queues", asker.sight, services.control.world.seq, snapshot and snapshot.now_ms)
    return await services.answers.answer(key, rendered, page.request.headers.get("accept-encoding", ""))


@router.patch("/queues/{queue}", dependencies=[LEADS], responses=refusals(404, 409, 412))
async def part_queue(
    services: ServicesHere,
    asker: AskerHere,
    queue: Annotated[str, Path(max_length=100)],
    request: QueueShareRequest,
    response: Response,
    if_match: IfMatch = "",
) -> PolicyView:
    """Another weight, quota or limit of one queue, from the next decision on: by admins of its team for queues below the team's
    highest, within what that one is guaranteed and limited to; by platform admins for all. If-Match is of the policy, which is
    answered."""

    for _ in range(TRIES):
        policy = services.control.world.policy
        found = await asyncio.to_thread(_parted, asker, policy, queue, request, if_match)
        if await change(services, asker, "queue.part", queue, partial(_put, policy, found, asker)):
            response.headers["ETag"] = _tag(asker, found)
            return _view(asker, found)
    raise Conflict("policy", None, "was changed by others each time while this was worked out; ask again")


def _parted(asker: Asker, policy: Policy, queue: str, request: QueueShareRequest, if_match: str) -> Policy:
    """What comes of it. Off the control thread: to check the whole of a large policy would hold up a fleet."""
    if queue not in policy.queues or not _is_open(asker.person, policy, queue):
        raise NotFound("queue", queue, "no such queue in the policy; `phalanx policy show` has them")
    check_match("policy", _tag(asker, policy), if_match)
    return parted(policy, queue, request, asker.person)


def _put(before: Policy, found: Policy, asker: Asker, controller: Controller) -> bool:
    """Whether the policy still was the one that was read, and is `found` now."""
    if controller.world.policy is not before:
        return False
    if asker.person.rules:
        controller.set_policy(found, asker.name)
    else:
        controller.part_policy(found, asker.name)
    return True


def _queues(services: Services, asker: Asker) -> tuple[QueueView, ...]:
    """Those that they may see."""
    snapshot = services.control.snapshot
    if snapshot is None:
        return ()
    jobs = services.control.world.jobs
    known = queue_views(snapshot, lambda job: job in jobs and sees(asker, jobs[job]))
    return tuple(view for view in known if _is_open(asker.person, snapshot.policy, view.name))


def seen_by(person: Person, policy: Policy) -> Policy:
    """As they may see it."""
    queues = {name: queue for name, queue in policy.queues.items() if _is_open(person, policy, name)}
    bookings = {name: one for name, one in policy.bookings.items() if _is_open(person, policy, one.queue)}
    return policy if person.everywhere is not None else replace(policy, queues=queues, bookings=bookings)


def _is_open(person: Person, policy: Policy, queue: str) -> bool:
    team = policy.team_of(queue)
    return not team or person.sees(team)
