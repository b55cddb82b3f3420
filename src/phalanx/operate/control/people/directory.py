"""Everybody there is and what their tokens open: one frozen look at the accounts, and from it who asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sqlalchemy import Connection, select

from phalanx.core.errors import NotFound, Unauthorized
from phalanx.core.people import Person, Role, Scope, TeamView, TokenView, UserView, capped
from phalanx.operate.control import tables

TRUSTING: Final = "trusting"
"""The row of `meta` that says so; without it nobody did."""

_NEW = "make a new one with `phalanx token create`, or ask an admin of this platform for one"


@dataclass(frozen=True, slots=True)
class Directory:
    """users: those not removed, with whether they are platform admins and since when. teams: likewise. roles: of users, by team.
    tokens: by SHA-256. trusting: whether its teams were said to trust each other."""

    organisation: str = ""
    trusting: bool = False
    users: Mapping[str, tuple[bool, int]] = field(default_factory=dict)
    teams: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, Role]] = field(default_factory=dict)
    tokens: Mapping[str, TokenView] = field(default_factory=dict)

    @property
    def strangers(self) -> bool:
        """Whether there are teams whose jobs may not meet."""
        return len(self.teams) > 1 and not self.trusting

    def person(self, sha256: str, now_ms: int) -> Person:
        """Who shows the token of that hash, and as far as it reaches. Raises Unauthorized."""
        token = self.tokens.get(sha256)
        if token is None or token.user not in self.users:
            raise Unauthorized("Authorization", "(an unknown token)", f"it was revoked, or never made here; {_NEW}")
        if token.expires_ms <= now_ms:
            raise Unauthorized("Authorization", "(an expired token)", _NEW)
        return self._person(token)

    def _person(self, token: TokenView) -> Person:
        """A token never reaches further than its owner does now; one for a team makes of a platform admin one of that team."""
        platform = self.users[token.user][0]
        own = dict(self.roles.get(token.user, {}))
        if token.team:
            own = {token.team: "admin"} if platform else {team: role for team, role in own.items() if team == token.team}
        return Person(
            user=token.user,
            token=token.id,
            scope=token.scope,
            roles={team: capped(role, token.scope) for team, role in own.items() if team in self.teams},
            everywhere=capped("admin", token.scope) if platform and not token.team else None,
            team=token.team,
        )

    def user_views(self) -> tuple[UserView, ...]:
        """By name."""
        return tuple(
            UserView(user=name, platform=platform, teams=dict(sorted(self.roles.get(name, {}).items())), created_ms=created_ms)
            for name, (platform, created_ms) in sorted(self.users.items())
        )

    def team_views(self) -> tuple[TeamView, ...]:
        """By name."""
        return tuple(
            TeamView(team=team, members=self._members(team), created_ms=created_ms)
            for team, created_ms in sorted(self.teams.items())
        )

    def _members(self, team: str) -> dict[str, Role]:
        return {user: roles[team] for user, roles in sorted(self.roles.items()) if team in roles}

    def need_user(self, name: str) -> None:
        """Raises NotFound."""
        if name not in self.users:
            raise NotFound("user", name, "no such user; `phalanx user ls` shows them all")

    def need_team(self, name: str) -> None:
        """Raises NotFound."""
        if name not in self.teams:
            raise NotFound("team", name, "no such team; `phalanx team ls` shows yours")


def read(connection: Connection) -> Directory:
    """As the database has it. Raises StoreUnavailable through the store's transaction."""
    users = connection.execute(select(tables.users).where(tables.users.c.removed_ms.is_(None))).all()
    teams = connection.execute(select(tables.teams).where(tables.teams.c.removed_ms.is_(None))).all()
    roles: dict[str, dict[str, Role]] = {}
    for row in connection.execute(select(tables.members)):
        roles.setdefault(row.person, {})[row.team] = cast(Role, row.role)
    return Directory(
        organisation=connection.execute(select(tables.organisations.c.name)).scalar() or "",
        trusting=bool(connection.execute(select(tables.meta.c.value).where(tables.meta.c.key == TRUSTING)).scalar()),
        users={row.name: (bool(row.platform), row.created_ms) for row in users},
        teams={row.name: row.created_ms for row in teams},
        roles=roles,
        tokens={row.sha256: _token_view(row) for row in connection.execute(select(tables.access_tokens))},
    )


def _token_view(row: Any) -> TokenView:
    return TokenView(
        id=row.id,
        name=row.name,
        user=row.owner,
        scope=cast(Scope, row.scope),
        team=row.team,
        created_ms=row.created_ms,
        expires_ms=row.expires_ms,
        used_ms=row.used_ms,
    )
