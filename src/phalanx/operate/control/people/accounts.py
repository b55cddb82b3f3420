"""The organisation, its teams and users, and their tokens: every change in one transaction of the leader's, with its audit row.

The database holds the SHA-256 of a token and no more: 256 random bits, told once to whoever made it.
"""

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from sqlalchemy import Connection, Table, delete, insert, select, update

from phalanx.core.errors import Conflict, Forbidden, NotFound, SpecError, Unauthorized
from phalanx.core.ids import NAME
from phalanx.core.oidc import OidcConfig
from phalanx.core.people import ADMIN, DAY_MS, LIFETIME_MS_MAX, SCOPES, MadeTokenView, Person, Role, TokenRequest, TokenView, most
from phalanx.operate.control import auth, tables
from phalanx.operate.control.people import audit, directory
from phalanx.operate.control.people.directory import Directory
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.people.oidc import Identity
from phalanx.operate.control.rows import put
from phalanx.operate.control.store import Store

TOKEN_MARK: Final = "phx_"  # noqa: S105 (what every token begins with, so that scanners find one in a repository)
TOKEN_BYTES: Final = 32
LIFETIME_MS_MIN: Final = 60_000
USED_AGAIN_MS: Final = 600_000
"""A use is written down so long after the last that was: what is read a hundred times a second costs one write in ten minutes."""

KEPT_MS: Final = 30 * DAY_MS
"""How long a token that expired is remembered, so that whoever comes with it hears why."""

TOKENS_MAX: Final = 1_000
"""Of one user that have not expired."""

NAME_CHARS_MAX: Final = 100
_NAME_FORM: Final = "use 1 to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"


class Accounts:
    """The accounts of one home. Writes belong on the control thread; reads may come from any."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._known: Directory | None = None
        self._changes = 0
        self._strangers: bool | None = None
        self._lock = threading.Lock()

    @property
    def known(self) -> Directory | None:
        """The newest look, where nothing has changed since; it costs nothing."""
        return self._known

    def directory(self) -> Directory:
        """Everybody there is, read again after a change. Raises StoreUnavailable."""
        if (known := self._known) is not None:
            return known
        with self._lock:
            changes = self._changes
        with self._store.reading() as connection:
            found = directory.read(connection)
        with self._lock:
            if changes == self._changes:  # else it may be of before a change that was committed meanwhile
                self._known = found
        return found

    def strangers(self) -> bool:
        """Whether there are teams that were not said to trust each other. Of the control thread, which makes every change of that:
        asked in each tick, it is looked up after a change alone. Raises StoreUnavailable."""
        if (known := self._strangers) is None:
            known = self._strangers = self.directory().strangers
        return known

    def set_organisation(self, epoch: int, name: str, note: Note, trusting: bool | None = None) -> None:
        """trusting: whether its teams trust each other; None leaves that as it is. Raises SpecError, StoreUnavailable."""
        if not name.strip() or len(name) > NAME_CHARS_MAX or not name.isprintable():
            raise SpecError("name", name, f"write 1 to {NAME_CHARS_MAX} printable characters")
        with self._changing(epoch, note) as connection:
            connection.execute(put(tables.organisations, "id", "name"), {"id": 1, "name": name.strip()})
            if trusting is not None:
                _set_trusting(connection, trusting)

    def add_user(self, epoch: int, name: str, platform: bool, note: Note) -> None:
        """Raises SpecError, Conflict for a name that is or was another's, StoreUnavailable."""
        _check_name("user", name)
        if name == ADMIN:
            raise Conflict("user", name, "is the built-in user of the home's own token; choose another name")
        with self._changing(epoch, note) as connection:
            _refuse_taken(connection, tables.users, "user", name)
            row = {"name": name, "platform": platform, "created_ms": self._now_ms(), "removed_ms": None}
            connection.execute(insert(tables.users).values(row))

    def remove_user(self, epoch: int, name: str, note: Note) -> None:
        """With their roles and tokens. Their jobs stay as they are. Raises NotFound, StoreUnavailable."""
        with self._changing(epoch, note) as connection:
            directory.read(connection).need_user(name)
            connection.execute(delete(tables.access_tokens).where(tables.access_tokens.c.owner == name))
            connection.execute(delete(tables.members).where(tables.members.c.person == name))
            connection.execute(update(tables.users).where(tables.users.c.name == name).values(removed_ms=self._now_ms()))

    def set_platform(self, epoch: int, name: str, platform: bool, note: Note) -> None:
        """Whether that user may everything. Raises NotFound, StoreUnavailable."""
        with self._changing(epoch, note) as connection:
            directory.read(connection).need_user(name)
            connection.execute(update(tables.users).where(tables.users.c.name == name).values(platform=platform))

    def add_team(self, epoch: int, name: str, note: Note, trusting: bool = False) -> None:
        """trusting: it and all others trust each other from now on; without it none of them does.
        Raises SpecError, Conflict for a name that a team has or had, StoreUnavailable."""
        _check_name("team", name)
        with self._changing(epoch, note) as connection:
            _refuse_taken(connection, tables.teams, "team", name)
            connection.execute(insert(tables.teams).values(name=name, created_ms=self._now_ms(), removed_ms=None))
            _set_trusting(connection, trusting)

    def remove_team(self, epoch: int, name: str, note: Note) -> None:
        """With the roles in it and the tokens for it. Its jobs stay, seen by platform admins. Raises NotFound, StoreUnavailable."""
        with self._changing(epoch, note) as connection:
            directory.read(connection).need_team(name)
            connection.execute(delete(tables.access_tokens).where(tables.access_tokens.c.team == name))
            connection.execute(delete(tables.members).where(tables.members.c.team == name))
            connection.execute(update(tables.teams).where(tables.teams.c.name == name).values(removed_ms=self._now_ms()))

    def set_role(self, epoch: int, team: str, user: str, role: Role, note: Note) -> None:
        """Makes them a member of the team, or of another role in it. Raises NotFound, StoreUnavailable."""
        with self._changing(epoch, note) as connection:
            found = directory.read(connection)
            found.need_team(team)
            found.need_user(user)
            row = {"team": team, "person": user, "role": role}
            connection.execute(put(tables.members, *row), row)

    def remove_member(self, epoch: int, team: str, user: str, note: Note) -> None:
        """Raises NotFound, StoreUnavailable."""
        with self._changing(epoch, note) as connection:
            directory.read(connection).need_team(team)
            of_both = (tables.members.c.team == team, tables.members.c.person == user)
            if not connection.execute(delete(tables.members).where(*of_both)).rowcount:
                raise NotFound("user", user, f"is not in {team}; `phalanx team ls` shows who is")

    def make_token(self, epoch: int, asked: TokenRequest, note: Note) -> MadeTokenView:
        """A token of `asked.user`. Raises SpecError, NotFound, Conflict when they have too many, StoreUnavailable."""
        if asked.user == ADMIN:
            fix = "has the home's own token alone; make a user for whom you want another: `phalanx user create NAME --platform`"
            raise SpecError("user", ADMIN, fix)
        _check_token(asked)
        held = tables.access_tokens
        token, now_ms = f"{TOKEN_MARK}{secrets.token_urlsafe(TOKEN_BYTES)}", self._now_ms()
        row = {
            "sha256": auth.digest(token),
            "id": secrets.token_hex(6),
            "name": asked.name,
            "owner": asked.user,
            "scope": asked.scope,
            "team": asked.team,
            "created_ms": now_ms,
            "expires_ms": now_ms + asked.lifetime_ms,
            "used_ms": None,
        }
        with self._changing(epoch, note) as connection:
            connection.execute(delete(held).where(held.c.expires_ms < now_ms - KEPT_MS))
            _check_owner(directory.read(connection), asked, now_ms)
            connection.execute(insert(tables.access_tokens).values(row))
        view = TokenView(**{name: value for name, value in row.items() if name not in ("sha256", "owner")}, user=asked.user)  # type: ignore[arg-type]
        return MadeTokenView(token=token, view=view)

    def revoke_token(self, epoch: int, token: str, whose: Person, note: Note) -> None:
        """It opens nothing any more. Raises NotFound also for another's, where `whose` may not everything; Forbidden for another
        than the shown one without scope admin, or of other teams than that; StoreUnavailable."""
        held = tables.access_tokens.c
        with self._changing(epoch, note) as connection:
            found = connection.execute(select(held.owner, held.team).where(held.id == token)).first()
            if found is None or not (whose.rules or whose.user == found.owner):
                raise NotFound("token", token, "no such token; `phalanx token ls` shows yours")
            if token != whose.token:
                _refuse_others_of_theirs(whose, found.team)
            connection.execute(delete(tables.access_tokens).where(held.id == token))

    def user_of(self, epoch: int, who: Identity, config: OidcConfig, note: Note) -> str:
        """The user that the provider's subject is here, with the roles of their groups in the teams that groups are mapped to.
        Raises Conflict, Unauthorized, StoreUnavailable."""
        held = tables.identities.c
        with self._changing(epoch, note) as connection:
            found = directory.read(connection)
            known = (held.issuer == who.issuer, held.subject == who.subject)
            user = connection.execute(select(held.person).where(*known)).scalar()
            if user is None:
                user = self._made_user(connection, who, note)
            elif user not in found.users:
                raise Unauthorized("id_token", user, "is a user that was removed; ask an admin of this platform")
            _give_roles(connection, str(user), who.groups, config, found, note)
        return str(user)

    def _made_user(self, connection: Connection, who: Identity, note: Note) -> str:
        if who.name == ADMIN:
            raise Conflict("user", ADMIN, "is the built-in user of the home's own token; have the provider call you otherwise")
        _refuse_taken(connection, tables.users, "user", who.name)
        row = {"name": who.name, "platform": False, "created_ms": self._now_ms(), "removed_ms": None}
        connection.execute(insert(tables.users).values(row))
        connection.execute(insert(tables.identities).values(issuer=who.issuer, subject=who.subject, person=who.name))
        audit.write(connection, replace(note, what="user.add", target=who.name, detail="by its first login"))
        return who.name

    def note_used(self, epoch: int, used: Mapping[str, int]) -> None:
        """When each of these hashes was last shown, in Unix time. Raises StoreUnavailable."""
        held = tables.access_tokens.c
        with self._store.leading(epoch) as connection:
            for sha256, at_ms in used.items():
                connection.execute(update(tables.access_tokens).where(held.sha256 == sha256).values(used_ms=at_ms))
        with self._lock:  # everything else is as it was: whoever asks next need not look it all up again
            if self._known is not None:
                known = self._known.tokens
                seen = {sha256: replace(known[sha256], used_ms=at_ms) for sha256, at_ms in used.items() if sha256 in known}
                self._known = replace(self._known, tokens={**known, **seen})

    @contextmanager
    def _changing(self, epoch: int, note: Note) -> Iterator[Connection]:
        """One change with its row. Whatever became of it, even where nobody knows, everything is looked up again after it."""
        try:
            with self._store.leading(epoch) as connection:
                yield connection
                audit.write(connection, note)
        finally:
            self._strangers = None
            self._stale()

    def _stale(self) -> None:
        with self._lock:
            self._changes += 1
            self._known = None


def _set_trusting(connection: Connection, trusting: bool) -> None:
    connection.execute(put(tables.meta, "key", "value"), {"key": directory.TRUSTING, "value": int(trusting)})


def _give_roles(connection: Connection, user: str, groups: Set[str], config: OidcConfig, found: Directory, note: Note) -> None:
    """In teams that groups are mapped to, the most that theirs give, or none; in others, what somebody gave them. Each change has
    its row, as if an admin had made it."""
    note = replace(note, who=user)
    roles: dict[str, Role] = {}
    for group in groups & set(config.teams):
        for team, role in config.teams[group].items():
            roles[team] = most(roles.get(team), role) or role
    had = found.roles.get(user, {})
    for team in sorted(config.mapped & set(found.teams)):
        if roles.get(team) != had.get(team):
            _give_role(connection, user, team, roles.get(team), note)
    rules = not groups.isdisjoint(config.platform_groups)
    if config.platform_groups and rules != (user in found.users and found.users[user][0]):
        connection.execute(update(tables.users).where(tables.users.c.name == user).values(platform=rules))
        audit.write(
            connection, replace(note, what="user.platform", target=user, detail=f"{'an' if rules else 'no'} admin, by groups")
        )


def _give_role(connection: Connection, user: str, team: str, role: Role | None, note: Note) -> None:
    """None: takes what they were there."""
    connection.execute(delete(tables.members).where(tables.members.c.person == user, tables.members.c.team == team))
    if role is None:
        audit.write(connection, replace(note, what="team.unmember", target=team, detail=f"{user}, by groups"))
        return
    connection.execute(insert(tables.members).values(team=team, person=user, role=role))
    audit.write(connection, replace(note, what="team.member", target=team, detail=f"{user}: {role}, by groups"))


def _refuse_others_of_theirs(whose: Person, team: str) -> None:
    """A token does not end what reaches further than itself. Raises Forbidden."""
    if SCOPES[whose.scope] != "admin":
        raise Forbidden("scope", whose.scope, "takes a token of scope admin; with another one only that very token is revoked")
    if whose.team and team != whose.team:
        raise Forbidden("team", team, f"this token is for team {whose.team}, and so is what it revokes")


def _refuse_taken(connection: Connection, table: Table, what: str, name: str) -> None:
    row = connection.execute(select(table.c.removed_ms).where(table.c.name == name)).first()
    if row is None:
        return
    if row.removed_ms is None:
        raise Conflict(what, name, f"there is such a {what} already; `phalanx {what} ls` shows them all")
    raise Conflict(what, name, f"was a {what} that was removed, and whose jobs still name it; choose another name")


def _check_name(field: str, name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise SpecError(field, name, _NAME_FORM)


def _check_token(asked: TokenRequest) -> None:
    """What can be told without looking anything up. Raises SpecError."""
    if not asked.name.strip() or len(asked.name) > 64 or not asked.name.isprintable():
        raise SpecError("name", asked.name, "name what the token is for, in 1 to 64 printable characters")
    if not LIFETIME_MS_MIN <= asked.lifetime_ms <= LIFETIME_MS_MAX:
        raise SpecError("lifetime_ms", asked.lifetime_ms, f"choose {LIFETIME_MS_MIN} (a minute) to {LIFETIME_MS_MAX} (365 days)")


def _check_owner(found: Directory, asked: TokenRequest, now_ms: int) -> None:
    found.need_user(asked.user)
    if asked.team:
        found.need_team(asked.team)
        if asked.team not in found.roles.get(asked.user, {}) and not found.users[asked.user][0]:
            raise NotFound("team", asked.team, f"{asked.user} is not in it; `phalanx team ls` shows who is in which")
    alive = sum(token.user == asked.user and token.expires_ms > now_ms for token in found.tokens.values())
    if alive >= TOKENS_MAX:
        raise Conflict("user", asked.user, f"has {alive} tokens; revoke some: `phalanx token ls`, `phalanx token revoke ID`")


def logged_in(accounts: Accounts, epoch: int, who: Identity, config: OidcConfig, note: Note) -> MadeTokenView:
    """A token for whom the provider means: made a user at the first time, and each time with the roles that their groups give.
    Raises Conflict for a name that is another's, Unauthorized for who was removed, StoreUnavailable."""
    user = accounts.user_of(epoch, who, config, note)
    asked = TokenRequest(name="login", user=user, scope=config.given_scope, lifetime_ms=config.lifetime_ms)
    return accounts.make_token(epoch, asked, replace(note, what="token.make", target=user, detail="login"))
