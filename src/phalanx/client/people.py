"""The calls about people: who the caller is, users, teams, tokens, and the audit log."""

from typing import TYPE_CHECKING, Any, TypeVar

from phalanx.client.steps import JSON, Ask, Method, Params, Program, decoded, read, read_all
from phalanx.core import wire
from phalanx.core.errors import NotFound, SpecError
from phalanx.core.ids import NAME
from phalanx.core.oidc import OidcLoginRequest, OidcView
from phalanx.core.people import (
    LIFETIME_MS,
    AuditView,
    MadeTokenView,
    MemberRequest,
    OrganisationView,
    Role,
    Scope,
    TeamRequest,
    TeamView,
    TokenRequest,
    TokenView,
    UserRequest,
    UserView,
    WhoView,
)

if TYPE_CHECKING:
    from phalanx.client.api import Client
    from phalanx.client.asynchronous import AsyncClient

T = TypeVar("T")


def whoami() -> Program[WhoView]:
    """Whose token this client shows, and what it opens."""
    return (yield from read(WhoView, "/whoami"))


def name_organisation(name: str, trusting: bool | None = None) -> Program[OrganisationView]:
    """Whose platform it is, and whether its teams trust each other; None leaves that as it is. Raises SpecError, Forbidden."""
    return (yield from _sent(OrganisationView, "PUT", "/organisation", OrganisationView(name=name, trusting=trusting)))


def users() -> Program[tuple[UserView, ...]]:
    """Everybody, by name. Raises Forbidden but for admins of a team or of the platform."""
    return (yield from read_all(UserView, "/users"))


def add_user(user: str, platform: bool = False) -> Program[UserView]:
    """Somebody who may nothing yet, unless `platform`. Raises Conflict for a name that is or was somebody's."""
    return (yield from _sent(UserView, "POST", "/users", UserRequest(user=user, platform=platform)))


def remove_user(user: str) -> Program[None]:
    """With their roles and tokens; their jobs stay. Raises NotFound."""
    yield _delete(f"/users/{_name('user', user)}")


def teams() -> Program[tuple[TeamView, ...]]:
    """Those in which the caller has a role, by name."""
    return (yield from read_all(TeamView, "/teams"))


def add_team(team: str, trusting: bool = False) -> Program[TeamView]:
    """With nobody in it yet. Raises Conflict for a name that a team has or had; and for a second team where jobs are not kept
    apart, unless the teams are `trusting` each other."""
    return (yield from _sent(TeamView, "POST", "/teams", TeamRequest(team=team, trusting=trusting)))


def remove_team(team: str) -> Program[None]:
    """Its jobs go on, seen by admins of the platform alone. Raises NotFound."""
    yield _delete(f"/teams/{_name('team', team)}")


def set_member(team: str, user: str, role: Role = "member") -> Program[TeamView]:
    """Gives the user that role in the team, in place of another. Raises NotFound, Forbidden."""
    path = f"/teams/{_name('team', team)}/members/{_name('user', user)}"
    return (yield from _sent(TeamView, "PUT", path, MemberRequest(role=role)))


def remove_member(team: str, user: str) -> Program[None]:
    """The user sees nothing of the team any more. Raises NotFound, Forbidden."""
    yield _delete(f"/teams/{_name('team', team)}/members/{_name('user', user)}")


def tokens() -> Program[tuple[TokenView, ...]]:
    """The caller's own, or everybody's for an admin of the platform; newest first."""
    return (yield from read_all(TokenView, "/tokens"))


def make_token(
    name: str, *, user: str = "", scope: Scope = "submit", team: str = "", lifetime_ms: int = LIFETIME_MS
) -> Program[MadeTokenView]:
    """A token, told this once: whoever loses the answer makes another. Raises SpecError, NotFound, Forbidden."""
    asked = TokenRequest(name=name, user=user, scope=scope, team=team, lifetime_ms=lifetime_ms)
    return (yield from _sent(MadeTokenView, "POST", "/tokens", asked))


def revoke_token(token: str) -> Program[None]:
    """The token of that id opens nothing any more. Raises NotFound."""
    if not (token.isascii() and token.isalnum()):
        raise NotFound("token", token, "no such token; `phalanx token ls` shows their ids")
    yield _delete(f"/tokens/{token}")


def begin_oidc() -> Program[OidcView]:
    """Where to log in by the platform's OpenID provider; needs no token. Raises NotFound when it knows none."""
    return (yield from read(OidcView, "/oidc"))


def end_oidc(id_token: str, nonce: str, device: bool = False) -> Program[MadeTokenView]:
    """A token for whom the provider's id token means; needs no token. device: it was given for a code that was typed elsewhere.
    Raises Unauthorized."""
    request = OidcLoginRequest(id_token=id_token, nonce=nonce, device=device)
    return (yield from _sent(MadeTokenView, "POST", "/oidc/login", request))


def audit(
    *,
    by: str = "",
    what: str = "",
    on: str = "",
    since_ms: int | None = None,
    after: int = 0,
    limit: int | None = None,
    newest: bool = False,
) -> Program[tuple[AuditView, ...]]:
    """Who changed what, beyond row `after`, oldest first: a page of at most `limit`. what: `job.cancel`, or `job` for all of
    its kind. newest: the last ones instead of the first. Raises Forbidden but for admins of the platform."""
    filters: Params = {"by": by, "what": what, "on": on, "since_ms": since_ms, "limit": limit}
    params = {**filters, "after": after, "newest": "true" if newest else None}
    return (yield from read(tuple[AuditView, ...], "/audit", params))


class Accounts:
    """What `client.people` has, of either client."""

    whoami = Method(whoami)
    name_organisation = Method(name_organisation)
    users = Method(users)
    add_user = Method(add_user)
    remove_user = Method(remove_user)
    teams = Method(teams)
    add_team = Method(add_team)
    remove_team = Method(remove_team)
    set_member = Method(set_member)
    remove_member = Method(remove_member)
    tokens = Method(tokens)
    make_token = Method(make_token)
    revoke_token = Method(revoke_token)
    begin_oidc = Method(begin_oidc)
    end_oidc = Method(end_oidc)
    audit = Method(audit)


class People(Accounts):
    """`client.people`: accounts of the control plane. Every method raises core.errors, as those of the client do."""

    def __init__(self, client: "Client") -> None:
        self.carry_out = client.carry_out


class AsyncPeople(Accounts):
    """The same, to be awaited."""

    def __init__(self, client: "AsyncClient") -> None:
        self.carry_out = client.carry_out


def _sent(kind: type[T], method: str, path: str, body: Any) -> Program[T]:
    content = wire.dumps(type(body), body)
    value: T = decoded(kind, (yield Ask(method=method, path=path, content=content, headers=JSON, may_repeat=False)))
    return value


def _delete(path: str) -> Ask:
    return Ask(method="DELETE", path=path, may_repeat=False)


def _name(field: str, name: str) -> str:
    """As a part of a path. Raises SpecError."""
    if NAME.fullmatch(name) is None:
        raise SpecError(field, name, "use 1 to 63 lower-case letters, digits and dashes, with a letter or digit at both ends")
    return name
