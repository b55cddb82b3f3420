"""Tokens of people: made, listed without what they are, revoked."""

from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Response

from phalanx.core.errors import Forbidden
from phalanx.core.people import SCOPES, MadeTokenView, Person, TokenRequest, TokenView
from phalanx.operate.control.api.access import SOMEBODY, ServicesHere
from phalanx.operate.control.api.asker import AskerHere, directory_of
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.pages import LINK, Page, Pages

router = APIRouter(tags=["tokens"])
TIME_MS_MAX: Final = 2**53
"""Whatever is newest has the smallest key."""

NO_STORE = {"Cache-Control": "no-store"}


@router.get("/tokens", dependencies=[SOMEBODY], responses=LINK)
async def list_tokens(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("tokens", int, str))]
) -> tuple[TokenView, ...]:
    """The caller's own; everybody's for an admin of the platform. Newest first."""
    directory = await directory_of(services)
    seen = (view for view in directory.tokens.values() if asker.person.rules or view.user == asker.person.user)
    return page.of(seen, lambda view: (TIME_MS_MAX - view.created_ms, view.id))


@router.post("/tokens", status_code=201, dependencies=[SOMEBODY], responses=refusals(404, 409))
async def make_token(services: ServicesHere, asker: AskerHere, request: TokenRequest, response: Response) -> MadeTokenView:
    """A token, told this once. Of another user for an admin of the platform alone."""
    asked = replace(request, user=request.user or asker.person.user, team=request.team or asker.person.team)
    _refuse_more(asker.person, asked)
    note = asker.note("token.make", asked.user, services.clock.now_ms(), _said(asked))
    made = await services.control.call(lambda controller: services.accounts.make_token(controller.epoch, asked, note))
    response.headers.update(NO_STORE)
    return made


@router.delete("/tokens/{token}", status_code=204, dependencies=[SOMEBODY])
async def revoke_token(services: ServicesHere, asker: AskerHere, token: Annotated[str, Path(max_length=16)]) -> Response:
    """It opens nothing any more. By the id that the list shows."""
    note = asker.note("token.revoke", token, services.clock.now_ms())
    person = asker.person
    await services.control.call(lambda controller: services.accounts.revoke_token(controller.epoch, token, person, note))
    return Response(status_code=204)


def _refuse_more(person: Person, asked: TokenRequest) -> None:
    """A token makes none that reaches further than itself. Raises Forbidden."""
    if SCOPES[person.scope] != "admin":
        raise Forbidden("scope", person.scope, "takes a token of scope admin; with another one no token is made")
    if asked.user != person.user and not person.rules:
        raise Forbidden("user", asked.user, "only they themselves, or an admin of the platform, may make a token of theirs")
    if person.team and asked.team != person.team:
        raise Forbidden("team", asked.team, f"this token is for team {person.team}, and so is what it makes")


def _said(asked: TokenRequest) -> str:
    team = f", team {asked.team}" if asked.team else ""
    return f"{asked.name}: scope {asked.scope}{team}, {asked.lifetime_ms} ms"
