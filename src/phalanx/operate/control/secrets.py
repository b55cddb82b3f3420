"""Values that jobs use and nobody is shown, sealed in the database with a key that lies in the home's `secret.key`.

The database, or a copy of it, opens none. A value leaves for a node that starts ranks of a job which names it, to sign a webhook,
and to be struck out of a log. No error, log line or event here ever has a value in it.
"""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import delete, select, update

from phalanx.core.errors import NotFound, SpecError
from phalanx.core.people import PLATFORM
from phalanx.core.views import SecretView
from phalanx.operate.control.people import audit
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.rows import put
from phalanx.operate.control.secret_keys import KEY_BYTES, KeyFile, seal
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import secrets as table

FIRST_OF_TEAMS: Final = "0005"
"""The revision of the schema from which on this version finds them."""

KEY_FILE: Final = "secret.key"
VALUE_BYTES_MAX: Final = 32 * 1024
"""Linux gives one environment variable 128 KiB, and all of them and the arguments a few MiB."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Secrets:
    """The secrets of one home. Writes belong on the control thread; reads may come from any."""

    def __init__(self, home: Path, store: Store, now_ms: Callable[[], int]) -> None:
        self._keys = KeyFile(home / KEY_FILE)
        self._store = store
        self._now_ms = now_ms
        self._turning = threading.Lock()  # values and keys are read together, or after both have changed

    def put(self, epoch: int, name: str, value: bytes, team: str = PLATFORM, note: Note | None = None) -> None:
        """Stores the team's `value` under `name`, in place of an older one. Raises SpecError, SetupError, StoreUnavailable."""
        check(name, value)
        sealed = self._sealed()
        others = {other: text for other, text in sealed.items() if other != (team, name)}
        keys = self._keys.read(make=not others)
        for other, text in list(others.items())[:1]:
            self._keys.opened(keys, _bound(*other), text)  # else this value would be sealed with a key that is not the home's
        row = {"team": team, "name": name, "sealed": seal(keys[-1], _bound(team, name), value), "created_ms": self._now_ms()}
        with self._store.leading(epoch) as connection:
            connection.execute(put(table, *row), row)
            audit.write(connection, note)

    def rotate(self, epoch: int, note: Note | None = None) -> int:
        """Seals every value anew with a fresh key, in one transaction, and forgets the older ones then; answers how many. Whatever
        breaks in between leaves all values readable, and the same call goes on. A leader that was superseded
        leaves the file as it is. Raises SetupError, StoreUnavailable, and Bug when superseded."""
        with self._turning, self._keys.alone():
            sealed = self._sealed()
            keys = self._keys.read(make=not sealed)
            values = {owned: self._keys.opened(keys, _bound(*owned), text) for owned, text in sealed.items()}
            fresh = os.urandom(KEY_BYTES)
            self._store.check_lead(epoch)
            self._keys.replace(keys, (*keys, fresh))
            with self._store.leading(epoch) as connection:
                for (team, name), value in values.items():
                    here = update(table).where(table.c.team == team, table.c.name == name)
                    connection.execute(here.values(sealed=seal(fresh, _bound(team, name), value)))
                audit.write(connection, note)
            self._store.check_lead(epoch)
            self._keys.replace((*keys, fresh), (fresh,))
        return len(values)

    def remove(self, epoch: int, name: str, team: str = PLATFORM, note: Note | None = None) -> None:
        """Raises NotFound, StoreUnavailable."""
        with self._store.leading(epoch) as connection:
            gone = connection.execute(delete(table).where(table.c.team == team, table.c.name == name)).rowcount
            if gone:
                audit.write(connection, note)
        if not gone:
            raise NotFound("secret", name, "is not stored; `phalanx secret ls` shows the names")

    def views(self) -> tuple[SecretView, ...]:
        """Names and dates of all teams', by team and name. Raises StoreUnavailable."""
        query = select(table).order_by(table.c.team, table.c.name)
        with self._store.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(SecretView(name=row.name, set_ms=row.created_ms, team=row.team, tag=_tag(row.sealed)) for row in rows)

    def check_key(self) -> None:
        """Raises SetupError where the home's key does not open every value that is stored, StoreUnavailable."""
        with self._turning:
            sealed = self._sealed()
            keys = self._keys.read(make=False) if sealed else ()
        for owned, text in sealed.items():
            self._keys.opened(keys, _bound(*owned), text)

    def missing(self, names: Iterable[str], team: str = PLATFORM) -> tuple[str, ...]:
        """Those of `names` that the team does not have stored. Raises StoreUnavailable."""
        known = {view.name for view in self.views() if view.team == team}
        return tuple(name for name in names if name not in known)

    def values(self, names: Sequence[str], team: str = PLATFORM) -> dict[str, str]:
        """The team's values of those of `names` that are stored. Raises SetupError where the key opens none, StoreUnavailable."""
        with self._turning:
            sealed = {name: text for (owner, name), text in self._sealed().items() if owner == team and name in names}
            keys = self._keys.read(make=False) if sealed else ()
        return {name: self._keys.opened(keys, _bound(team, name), text).decode() for name, text in sealed.items()}

    def _sealed(self) -> Mapping[tuple[str, str], str]:
        """By team and name."""
        with self._store.reading() as connection:
            rows = connection.execute(select(table.c.team, table.c.name, table.c.sealed))
            return {(row.team, row.name): row.sealed for row in rows}


def _bound(team: str, name: str) -> str:
    """What a value is sealed under. The platform's own were sealed under their name alone before there were teams."""
    return f"{team}/{name}" if team else name


def _tag(sealed: str) -> str:
    """Of one sealing of one value, of which it tells nothing: each has a nonce of its own."""
    return f'"{hashlib.sha256(sealed.encode()).hexdigest()[:24]}"'


def check(name: str, value: bytes) -> None:
    """Raises SpecError, which tells of the value no more than what is wrong with it."""
    if _NAME.fullmatch(name) is None:
        raise SpecError("secret", name, "name secrets with letters, digits and '_', at most 64, not beginning with a digit")
    if name.startswith("PHALANX_"):
        raise SpecError("secret", name, "PHALANX_ names belong to the platform")
    if not 0 < len(value) <= VALUE_BYTES_MAX:
        raise SpecError("value", f"({len(value)} bytes)", f"give 1 to {VALUE_BYTES_MAX} bytes")
    try:
        whole = "\0" not in value.decode()
    except UnicodeDecodeError:
        whole = False
    if not whole:
        raise SpecError(
            "value", "(not shown)", "give UTF-8 text without NUL, which an environment variable can hold; encode it as base64"
        )
