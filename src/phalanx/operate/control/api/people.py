"""Who there is: the caller, the organisation, its users and teams."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from phalanx.core.errors import Conflict, Forbidden, NotFound
from phalanx.core.isolation import may_host
from phalanx.core.people import MemberRequest, OrganisationView, Person, TeamRequest, TeamView, UserRequest, UserView, WhoView
from phalanx.operate.control.api.access import LEADS, READS, RULES, SOMEBODY, ServicesHere
from phalanx.operate.control.api.asker import Asker, AskerHere, directory_of
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.people.accounts import Accounts
from phalanx.operate.control.people.directory import Directory
from phalanx.operate.control.people.notes import Note

router = APIRouter(tags=["people"])
Name = Annotated[str, Path(max_length=64)]
NO_CONTENT = 204


@router.get("/whoami", dependencies=[SOMEBODY])
async def whoami(services: ServicesHere, asker: AskerHere) -> WhoView:
    """Whose token it is, and what it opens."""
    person, directory = asker.person, await directory_of(services)
    token = next((one for one in directory.tokens.values() if one.id == person.token), None)
    return WhoView(
        user=person.user,
        platform=person.rules,
        teams=dict(sorted(person.roles.items())),
        token=person.token,
        scope=person.scope,
        team=person.team,
        expires_ms=token.expires_ms if token else None,
        organisation=directory.organisation,
    )


@router.put("/organisation", dependencies=[RULES])
async def name_organisation(services: ServicesHere, asker: AskerHere, request: OrganisationView) -> OrganisationView:
    """Whose platform this is, and whether its teams trust each other; null leaves that as it is."""
    detail = "" if request.trusting is None else "trusting" if request.trusting else "not trusting"

    def act(to: Accounts, epoch: int, note: Note) -> None:
        to.set_organisation(epoch, request.name, note, request.trusting)

    await account(services, asker, "organisation.set", request.name, act, detail)
    directory = await directory_of(services)
    return OrganisationView(name=directory.organisation, trusting=directory.trusting)


@router.get("/users", dependencies=[LEADS], responses=LINK)
async def list_users(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("users", str))]
) -> tuple[UserView, ...]:
    """Everybody, by name: an admin of a team adds people by their names. Of their roles those in the caller's teams."""
    views = page.of((await directory_of(services)).user_views(), lambda one: (one.user,))
    return tuple(_as_seen_by(asker.person, view) for view in views)


@router.post("/users", status_code=201, dependencies=[RULES], responses=refusals(409))
async def add_user(services: ServicesHere, asker: AskerHere, request: UserRequest) -> UserView:
    """Somebody who may nothing yet, unless `platform`."""
    detail = "platform" if request.platform else ""
    await account(
        services, asker, "user.add", request.user, lambda to, e, n: to.add_user(e, request.user, request.platform, n), detail
    )
    return _user(await directory_of(services), request.user)


@router.delete("/users/{user}", status_code=NO_CONTENT, dependencies=[RULES])
async def remove_user(services: ServicesHere, asker: AskerHere, user: Name) -> Response:
    """Their roles and tokens go with them, their jobs stay."""
    await account(services, asker, "user.remove", user, lambda to, e, n: to.remove_user(e, user, n))
    return Response(status_code=NO_CONTENT)


@router.get("/teams", dependencies=[READS], responses=LINK)
async def list_teams(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("teams", str))]
) -> tuple[TeamView, ...]:
    """Teams in which the caller has a role, with everybody in them."""
    views = (await directory_of(services)).team_views()
    return page.of((view for view in views if asker.person.sees(view.team)), lambda one: (one.team,))


@router.post("/teams", status_code=201, dependencies=[RULES], responses=refusals(409))
async def add_team(services: ServicesHere, asker: AskerHere, request: TeamRequest) -> TeamView:
    """With nobody in it yet. Where jobs are not kept apart a second team is refused, unless teams are said to be `trusting`."""
    if not request.trusting:
        await _refuse_strangers(services, request.team)
    detail = "trusting" if request.trusting else ""

    def act(to: Accounts, epoch: int, note: Note) -> None:
        to.add_team(epoch, request.team, note, request.trusting)

    await account(services, asker, "team.add", request.team, act, detail)
    return _team(await directory_of(services), request.team)


async def _refuse_strangers(services: Services, team: str) -> None:
    """Raises Conflict for one team too many for what keeps jobs apart here."""
    nodes = {str(node): record.shape.isolation for node, record in services.control.world.nodes.items()}
    teams = (await directory_of(services)).teams
    if team not in teams and (why := may_host(len(teams) + 1, nodes)) is not None:
        raise Conflict("team", team, f"{why}; or make it with `--trusting`: then each team can read what the others' jobs can")


@router.delete("/teams/{team}", status_code=NO_CONTENT, dependencies=[RULES])
async def remove_team(services: ServicesHere, asker: AskerHere, team: Name) -> Response:
    """Its jobs go on, and admins of the platform alone see them from now on."""
    await account(services, asker, "team.remove", team, lambda to, e, n: to.remove_team(e, team, n))
    return Response(status_code=NO_CONTENT)


@router.put("/teams/{team}/members/{user}", dependencies=[LEADS])
async def set_member(services: ServicesHere, asker: AskerHere, team: Name, user: Name, request: MemberRequest) -> TeamView:
    """Gives somebody a role in the team, in place of another."""
    _refuse_others(asker.person, team)
    detail = f"{user}: {request.role}"
    await account(services, asker, "team.member", team, lambda to, e, n: to.set_role(e, team, user, request.role, n), detail)
    return _team(await directory_of(services), team)


@router.delete("/teams/{team}/members/{user}", status_code=NO_CONTENT, dependencies=[LEADS])
async def remove_member(services: ServicesHere, asker: AskerHere, team: Name, user: Name) -> Response:
    """They see nothing of the team any more."""
    _refuse_others(asker.person, team)
    await account(services, asker, "team.unmember", team, lambda to, e, n: to.remove_member(e, team, user, n), user)
    return Response(status_code=NO_CONTENT)


async def account(
    services: Services, asker: Asker, what: str, on: str, act: Callable[[Accounts, int, Note], None], detail: str = ""
) -> None:
    """One change of the accounts, on the control thread, with its row of the audit log."""
    note = asker.note(what, on, services.clock.now_ms(), detail)
    await services.control.call(lambda controller: act(services.accounts, controller.epoch, note))


def _refuse_others(person: Person, team: str) -> None:
    """Raises NotFound for a team that they are not in, as for none; Forbidden where they are no admin."""
    if person.role(team) is None:
        raise NotFound("team", team, "no such team; `phalanx team ls` shows yours")
    if not person.has("admin", team):
        raise Forbidden("team", team, "takes an admin of it, with a token of scope admin")


def _as_seen_by(person: Person, view: UserView) -> UserView:
    return replace(view, teams={team: role for team, role in view.teams.items() if person.sees(team)})


def _user(directory: Directory, name: str) -> UserView:
    found = next((view for view in directory.user_views() if view.user == name), None)
    if found is None:
        raise NotFound("user", name, "was removed meanwhile")
    return found


def _team(directory: Directory, name: str) -> TeamView:
    found = next((view for view in directory.team_views() if view.team == name), None)
    if found is None:
        raise NotFound("team", name, "was removed meanwhile")
    return found
