"""The calls about people: who the caller is, users, teams, tokens, and the audit log."""

from typing import Any

from phalanx.client.http import Line, decoded
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

_JSON = {"Content-Type": "application/json"}


class People:
    """`client.people`: accounts of the control plane. Every method raises core.errors, as those of the client do."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def whoami(self) -> WhoView:
        """Whose token this client shows, and what it opens."""
        view: WhoView = self._line.read(WhoView, "/whoami")
        return view

    def name_organisation(self, name: str) -> OrganisationView:
        """Whose platform it is. Raises SpecError, Forbidden."""
        view: OrganisationView = self._sent(OrganisationView, "PUT", "/organisation", OrganisationView(name=name))
        return view

    def users(self) -> tuple[UserView, ...]:
        """Everybody, by name. Raises Forbidden but for admins of a team or of the platform."""
        views: tuple[UserView, ...] = self._line.read(tuple[UserView, ...], "/users")
        return views

    def add_user(self, user: str, platform: bool = False) -> UserView:
        """Somebody who may nothing yet, unless `platform`. Raises Conflict for a name that is or was somebody's."""
        view: UserView = self._sent(UserView, "POST", "/users", UserRequest(user=user, platform=platform))
        return view

    def remove_user(self, user: str) -> None:
        """With their roles and tokens; their jobs stay. Raises NotFound."""
        self._line.exchange("DELETE", f"/users/{_name('user', user)}")

    def teams(self) -> tuple[TeamView, ...]:
        """Those in which the caller has a role, by name."""
        views: tuple[TeamView, ...] = self._line.read(tuple[TeamView, ...], "/teams")
        return views

    def add_team(self, team: str, trusting: bool = False) -> TeamView:
        """With nobody in it yet. Raises Conflict for a name that a team has or had; and for a second team where jobs are not kept
        apart, unless the teams are `trusting` each other."""
        view: TeamView = self._sent(TeamView, "POST", "/teams", TeamRequest(team=team, trusting=trusting))
        return view

    def remove_team(self, team: str) -> None:
        """Its jobs go on, seen by admins of the platform alone. Raises NotFound."""
        self._line.exchange("DELETE", f"/teams/{_name('team', team)}")

    def set_member(self, team: str, user: str, role: Role = "member") -> TeamView:
        """Gives the user that role in the team, in place of another. Raises NotFound, Forbidden."""
        path = f"/teams/{_name('team', team)}/members/{_name('user', user)}"
        view: TeamView = self._sent(TeamView, "PUT", path, MemberRequest(role=role))
        return view

    def remove_member(self, team: str, user: str) -> None:
        """The user sees nothing of the team any more. Raises NotFound, Forbidden."""
        self._line.exchange("DELETE", f"/teams/{_name('team', team)}/members/{_name('user', user)}")

    def tokens(self) -> tuple[TokenView, ...]:
        """The caller's own, or everybody's for an admin of the platform; newest first."""
        views: tuple[TokenView, ...] = self._line.read(tuple[TokenView, ...], "/tokens")
        return views

    def make_token(
        self, name: str, *, user: str = "", scope: Scope = "submit", team: str = "", lifetime_ms: int = LIFETIME_MS
    ) -> MadeTokenView:
        """A token, told this once: whoever loses the answer makes another. Raises SpecError, NotFound, Forbidden."""
        asked = TokenRequest(name=name, user=user, scope=scope, team=team, lifetime_ms=lifetime_ms)
        view: MadeTokenView = self._sent(MadeTokenView, "POST", "/tokens", asked)
        return view

    def revoke_token(self, token: str) -> None:
        """The token of that id opens nothing any more. Raises NotFound."""
        if not (token.isascii() and token.isalnum()):
            raise NotFound("token", token, "no such token; `phalanx token ls` shows their ids")
        self._line.exchange("DELETE", f"/tokens/{token}")

    def begin_oidc(self) -> OidcView:
        """Where to log in by the platform's OpenID provider; needs no token. Raises NotFound when it knows none."""
        view: OidcView = self._line.read(OidcView, "/oidc")
        return view

    def end_oidc(self, id_token: str, nonce: str) -> MadeTokenView:
        """A token for whom the provider's id token means; needs no token. Raises Unauthorized."""
        asked = OidcLoginRequest(id_token=id_token, nonce=nonce)
        view: MadeTokenView = self._sent(MadeTokenView, "POST", "/oidc/login", asked)
        return view

    def audit(
        self,
        *,
        by: str = "",
        what: str = "",
        on: str = "",
        since_ms: int | None = None,
        after: int = 0,
        limit: int | None = None,
        newest: bool = False,
    ) -> tuple[AuditView, ...]:
        """Who changed what, beyond row `after`, oldest first: a page of at most `limit`. what: `job.cancel`, or `job` for all of
        its kind. newest: the last ones instead of the first. Raises Forbidden but for admins of the platform."""
        filters: dict[str, str | int | None] = {"by": by, "what": what, "on": on, "since_ms": since_ms, "limit": limit}
        params = {**filters, "after": after, "newest": "true" if newest else None}
        views: tuple[AuditView, ...] = self._line.read(tuple[AuditView, ...], "/audit", params)
        return views

    def _sent(self, kind: Any, method: str, path: str, body: Any) -> Any:
        answer = self._line.exchange(method, path, content=wire.dumps(type(body), body), headers=_JSON)
        return decoded(kind, answer, self._line.url)


def _name(field: str, name: str) -> str:
    """As a part of a path. Raises SpecError."""
    if NAME.fullmatch(name) is None:
        raise SpecError(field, name, "use 1 to 63 lower-case letters, digits and dashes, with a letter or digit at both ends")
    return name
