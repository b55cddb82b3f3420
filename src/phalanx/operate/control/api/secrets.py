"""Secrets: stored, listed by name, removed; and handed to the node that starts ranks of a job which names them."""

import asyncio
from typing import Annotated

import structlog
from fastapi import APIRouter, Path, Query, Request, Response

from phalanx.core import wire
from phalanx.core.errors import Conflict, NotFound
from phalanx.core.ids import AttemptId
from phalanx.core.views import KeyRotatedView, SecretView
from phalanx.operate.control.api.access import NODES, RULES, SUBMITS, NamedNode, ServicesHere, team_for
from phalanx.operate.control.api.asker import AskerHere

router = APIRouter(tags=["secrets"])
Name = Annotated[str, Path(max_length=64)]
Team = Annotated[str, Query(max_length=64)]
NO_STORE = {"Cache-Control": "no-store"}

log = structlog.get_logger(__name__)


@router.put("/secrets/{name}", status_code=204, dependencies=[SUBMITS])
async def put_secret(services: ServicesHere, asker: AskerHere, name: Name, request: Request, team: Team = "") -> Response:
    """Stores the raw body as the team's value, in place of an older one."""
    whose = team_for(services, asker.person, team, "member")
    value = await request.body()
    note = asker.note("secret.set", named(whose, name), services.clock.now_ms())
    await services.control.call(lambda controller: services.secrets.put(controller.epoch, name, value, whose, note))
    log.info("secret_set", name=name, team=whose)
    return Response(status_code=204)


@router.get("/secrets", dependencies=[SUBMITS])
async def list_secrets(services: ServicesHere, asker: AskerHere) -> tuple[SecretView, ...]:
    """Names and dates, of the teams in which the caller is a member. No route gives a value to a person."""
    views = await asyncio.to_thread(services.secrets.views)
    return tuple(view for view in views if asker.person.has("member", view.team))


@router.delete("/secrets/{name}", status_code=204, dependencies=[SUBMITS])
async def remove_secret(services: ServicesHere, asker: AskerHere, name: Name, team: Team = "") -> Response:
    """Forgets it; ranks that run keep what they were given."""
    whose = team_for(services, asker.person, team, "member")
    note = asker.note("secret.remove", named(whose, name), services.clock.now_ms())
    await services.control.call(lambda controller: services.secrets.remove(controller.epoch, name, whose, note))
    log.info("secret_removed", name=name, team=whose)
    return Response(status_code=204)


def named(team: str, name: str) -> str:
    """As the audit log has it."""
    return f"{team}/{name}" if team else name


@router.post("/secret-key/rotate", dependencies=[RULES])
async def rotate_secret_key(services: ServicesHere, asker: AskerHere) -> KeyRotatedView:
    """Seals every stored value anew with a fresh key. Safe to repeat, also after an answer that was lost."""
    note = asker.note("secret.rotate_key", "", services.clock.now_ms())
    count = await services.control.call(lambda controller: services.secrets.rotate(controller.epoch, note))
    log.info("secret_key_rotated", secrets=count)
    return KeyRotatedView(secrets=count)


@router.get("/attempts/{attempt}/secrets", dependencies=[NODES])
async def secrets_of(
    services: ServicesHere,
    attempt: Annotated[str, Path(max_length=100)],
    node: NamedNode,
) -> Response:
    """The values that ranks of `attempt` on `node` are given, while the attempt holds devices there."""
    found = services.control.world.current(AttemptId(attempt), node)
    if found is None:
        raise NotFound("attempt", attempt, f"holds no devices of {node}")
    job, names, team = found[0].id, found[0].spec.all_secrets, found[0].spec.team
    values = await asyncio.to_thread(services.secrets.values, names, team)
    if missing := [name for name in names if name not in values]:
        again = f"is not stored any more; `phalanx secret set {missing[0]}`, then `phalanx retry {job}`"
        raise Conflict("secret", missing[0], again)
    log.info("secrets_given", attempt=attempt, node=node, names=names)
    return Response(wire.dumps(dict[str, str], values), media_type="application/json", headers=NO_STORE)
