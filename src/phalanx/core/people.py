"""Who may what, as data: roles, scopes of tokens, and a person as a token shows them. Also what the API says of accounts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Strict

from phalanx.core.wire import CLOSED

Role = Literal["viewer", "member", "admin"]
Scope = Literal["read", "submit", "admin"]

ROLES: Final[tuple[Role, ...]] = ("viewer", "member", "admin")
"""From the least to the most; each may what those before it may."""

SCOPES: Final[Mapping[Scope, Role]] = {"read": "viewer", "submit": "member", "admin": "admin"}
"""The most that a token of that scope makes of its owner, in every team."""

ADMIN: Final = "admin"
"""The built-in user, whose token is the file `token` in the home."""

PLATFORM: Final = ""
"""As a team: the platform's own. Jobs and secrets of nobody's team are its admins' alone."""

DAY_MS: Final = 86_400_000
LIFETIME_MS: Final = 30 * DAY_MS
"""Of a token for which nobody says another."""

LIFETIME_MS_MAX: Final = 365 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Who asks, as far as their token reaches.

    token: its id, for people. roles: in each of their teams. everywhere: the role that a platform admin has in every team and in
    the platform's own; None for everybody else. team: the one that the token is for, else ''.
    """

    user: str
    token: str
    scope: Scope = "admin"
    roles: Mapping[str, Role] = field(default_factory=dict)
    everywhere: Role | None = None
    team: str = ""

    def role(self, team: str) -> Role | None:
        """In that team; None for a stranger to it."""
        return most(self.roles.get(team), self.everywhere)

    def has(self, role: Role, team: str) -> bool:
        """Whether they may there what `role` may."""
        own = self.role(team)
        return own is not None and ROLES.index(own) >= ROLES.index(role)

    def sees(self, team: str) -> bool:
        """Whether they may read what that team has: as `has("viewer", team)`, and quick, since lists ask it of every job."""
        return self.everywhere is not None or team in self.roles

    def may_change(self, team: str, owner: str) -> bool:
        """Whether they may change a job of `owner` in that team: a member their own, an admin all."""
        return self.has("admin", team) or (self.user == owner and self.has("member", team))

    @property
    def rules(self) -> bool:
        """Whether they may everything: nodes, policy, accounts."""
        return self.everywhere == "admin"

    @property
    def best(self) -> Role | None:
        """The most that they are anywhere."""
        return most(self.everywhere, *self.roles.values())

    def teams_as(self, role: Role) -> tuple[str, ...]:
        """Their own teams in which they may what `role` may, by name."""
        return tuple(sorted(team for team in self.roles if self.has(role, team)))


BUILT_IN: Final = Person(user=ADMIN, token=ADMIN, everywhere="admin")
"""Whoever shows the home's own token."""


def most(*roles: Role | None) -> Role | None:
    """The highest of them."""
    return max((role for role in roles if role is not None), key=ROLES.index, default=None)


def capped(role: Role, scope: Scope) -> Role:
    """What is left of a role behind a token of that scope."""
    return min(role, SCOPES[scope], key=ROLES.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoView:
    """Who the caller is, and what their token lets them do. teams: their roles. platform: whether they may everything.
    expires_ms: Unix time; None for the home's own token."""

    user: str
    platform: bool
    teams: Mapping[str, Role]
    token: str
    scope: Scope
    team: str
    expires_ms: int | None
    organisation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserView:
    """One user. teams: their roles there. platform: an admin of all of it."""

    user: str
    platform: bool
    teams: Mapping[str, Role]
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """Body of POST /users."""

    __pydantic_config__ = CLOSED

    user: str
    platform: Annotated[bool, Strict()] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamView:
    """One team and the roles in it."""

    team: str
    members: Mapping[str, Role]
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRequest:
    """Body of POST /teams. trusting: also where jobs are not kept apart, so that those of one team can read what another's can."""

    __pydantic_config__ = CLOSED

    team: str
    trusting: Annotated[bool, Strict()] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRequest:
    """Body of PUT /teams/{team}/members/{user}."""

    __pydantic_config__ = CLOSED

    role: Role = "member"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganisationView:
    """The name of whose platform this is; '' until somebody gave it one. trusting: whether its teams trust each other. Also the
    body of PUT /organisation, where null leaves that as it is."""

    __pydantic_config__ = CLOSED

    name: str
    trusting: Annotated[bool, Strict()] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """Body of POST /tokens. user: whose it shall be; '' is the caller's. team: the only one that it is for; '' is all of the
    owner's. lifetime_ms: after which it opens nothing any more."""

    __pydantic_config__ = CLOSED

    name: str
    user: str = ""
    scope: Scope = "submit"
    team: str = ""
    lifetime_ms: int = LIFETIME_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """One token, without what it is. used_ms: Unix time of about its last use; None for none."""

    id: str
    name: str
    user: str
    scope: Scope
    team: str
    created_ms: int
    expires_ms: int
    used_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeTokenView:
    """A token just made; `token` is told this once."""

    token: str
    view: TokenView


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """One row of the audit log. by: who; token: the id of theirs. what: such as `job.cancel`; on: its name. address: from where.
    outcome: `done`, or `refused` with why in `detail`."""

    seq: int
    at_ms: int
    by: str
    token: str
    what: str
    on: str
    address: str
    outcome: str
    detail: str
