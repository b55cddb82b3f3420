"""Secrets: stored, listed by name, removed; and handed to the node that starts ranks of a job which names them."""

import asyncio
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from phalanx.core import wire
from phalanx.core.errors import Conflict, NotFound
from phalanx.core.ids import AttemptId
from phalanx.core.views import KeyRotatedView, SecretView
from phalanx.operate.control.api.access import NODES, RULES, SUBMITS, NamedNode, ServicesHere, team_for
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.openapi import RAW_BODY, refusals
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.tags import IfMatch, IfNoneMatch, check_match, unless_known
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.secrets import check

router = APIRouter(tags=["secrets"])
Name = Annotated[str, Path(max_length=64, json_schema_extra={"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"})]
Team = Annotated[str, Query(max_length=64)]
SECRETS: Final = refusals(409) | {
    200: {
        "description": "Name to value",
        "content": {"application/json": {"schema": {"type": "object", "additionalProperties": {"type": "string"}}}},
    }
}
NO_STORE = {"Cache-Control": "no-store"}

log = structlog.get_logger(__name__)


@router.put("/secrets/{name}", status_code=204, dependencies=[SUBMITS], openapi_extra=RAW_BODY, responses=refusals(412))
async def put_secret(
    services: ServicesHere,
    asker: AskerHere,
    name: Name,
    request: Request,
    team: Team = "",
    if_match: IfMatch = "",
    if_none_match: IfNoneMatch = "",
) -> Response:
    """Stores the raw body as the team's value, in place of an older one; with If-Match only of the one that its writer has seen,
    with `If-None-Match: *` of none."""
    whose = team_for(services, asker.person, team, "member")
    value = await request.body()
    check(name, value)
    note = asker.note("secret.set", named(whose, name), services.clock.now_ms())

    def act(controller: Controller) -> None:
        if if_match or if_none_match:
            check_match("secret", _tag(services, whose, name), if_match, if_none_match)
        services.secrets.put(controller.epoch, name, value, whose, note)

    await services.control.call(act)
    log.info("secret_set", name=name, team=whose)
    return Response(status_code=204)


@router.get("/secrets", dependencies=[SUBMITS], responses=LINK)
async def list_secrets(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("secrets", str, str, limit=None))]
) -> tuple[SecretView, ...]:
    """Names and dates, of the teams in which the caller is a member, by team and name. No route gives a value to a person."""
    views = await asyncio.to_thread(services.secrets.views)
    return page.of((view for view in views if asker.person.has("member", view.team)), lambda one: (one.team, one.name))


@router.get("/secrets/{name}", dependencies=[SUBMITS])
async def get_secret(
    services: ServicesHere, asker: AskerHere, name: Name, request: Request, response: Response, team: Team = ""
) -> SecretView:
    """Its name, and when it was set. No route gives a value to a person."""
    view = await asyncio.to_thread(_find, services, team_for(services, asker.person, team, "member"), name)
    if view is None:
        raise NotFound("secret", name, "is not stored; `phalanx secret ls` shows the names")
    unless_known(request, response, view.tag)
    return view


def _find(services: Services, team: str, name: str) -> SecretView | None:
    return next((view for view in services.secrets.views() if (view.team, view.name) == (team, name)), None)


def _tag(services: Services, team: str, name: str) -> str | None:
    view = _find(services, team, name)
    return view.tag if view else None


@router.delete("/secrets/{name}", status_code=204, dependencies=[SUBMITS], responses=refusals(412))
async def remove_secret(services: ServicesHere, asker: AskerHere, name: Name, team: Team = "", if_match: IfMatch = "") -> Response:
    """Forgets it; ranks that run keep what they were given."""
    whose = team_for(services, asker.person, team, "member")
    note = asker.note("secret.remove", named(whose, name), services.clock.now_ms())

    def act(controller: Controller) -> None:
        if if_match and (tag := _tag(services, whose, name)) is not None:
            check_match("secret", tag, if_match)
        services.secrets.remove(controller.epoch, name, whose, note)

    await services.control.call(act)
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


@router.get("/attempts/{attempt}/secrets", dependencies=[NODES], response_class=Response, responses=SECRETS)
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
