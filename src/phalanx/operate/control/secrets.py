"""Values that jobs use and nobody is shown, sealed in the database with a key that lies in the home's `secret.key`.

The database, or a copy of it, opens none. A value leaves for a node that starts ranks of a job which names it, to sign a webhook,
and to be struck out of a log. No error, log line or event here ever has a value in it.
"""

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import delete, select

from phalanx.core.errors import NotFound, SetupError, SpecError
from phalanx.core.people import PLATFORM
from phalanx.core.views import SecretView
from phalanx.operate.control.people import audit
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.rows import put
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import secrets as table
from phalanx.storage.atomic import write_atomic

KEY_FILE: Final = "secret.key"
VALUE_BYTES_MAX: Final = 32 * 1024
"""Linux gives one environment variable 128 KiB, and all of them and the arguments a few MiB."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12  # of AES-GCM, NIST SP 800-38D
_AGAIN: Final = "or `phalanx secret rm` every name that `phalanx secret ls` shows and set them again under a new key"


class Secrets:
    """The secrets of one home. Writes belong on the control thread; reads may come from any."""

    def __init__(self, home: Path, store: Store, now_ms: Callable[[], int]) -> None:
        self._file = home / KEY_FILE
        self._store = store
        self._now_ms = now_ms

    def put(self, epoch: int, name: str, value: bytes, team: str = PLATFORM, note: Note | None = None) -> None:
        """Stores the team's `value` under `name`, in place of an older one. Raises SpecError, SetupError, StoreUnavailable."""
        check(name, value)
        sealed = self._sealed()
        others = {other: text for other, text in sealed.items() if other != (team, name)}
        key = self._key(make=not others)
        for other, text in list(others.items())[:1]:
            self._open(key, *other, text)  # else this value would be sealed with a key that is not the home's
        row = {"team": team, "name": name, "sealed": _seal(key, team, name, value), "created_ms": self._now_ms()}
        with self._store.leading(epoch) as connection:
            connection.execute(put(table, *row), row)
            audit.write(connection, note)

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

    def missing(self, names: Iterable[str], team: str = PLATFORM) -> tuple[str, ...]:
        """Those of `names` that the team does not have stored. Raises StoreUnavailable."""
        known = {view.name for view in self.views() if view.team == team}
        return tuple(name for name in names if name not in known)

    def values(self, names: Sequence[str], team: str = PLATFORM) -> dict[str, str]:
        """The team's values of those of `names` that are stored. Raises SetupError where the key opens none, StoreUnavailable."""
        sealed = {name: text for (owner, name), text in self._sealed().items() if owner == team and name in names}
        if not sealed:
            return {}
        key = self._key(make=False)
        return {name: self._open(key, team, name, text).decode() for name, text in sealed.items()}

    def _sealed(self) -> Mapping[tuple[str, str], str]:
        """By team and name."""
        with self._store.reading() as connection:
            rows = connection.execute(select(table.c.team, table.c.name, table.c.sealed))
            return {(row.team, row.name): row.sealed for row in rows}

    def _key(self, make: bool) -> bytes:
        """The home's key. `make`: nothing is sealed with it, so where there is none that can be used a new one is made."""
        try:
            text = self._file.read_bytes().strip()
            if self._file.stat().st_mode & 0o077:
                self._file.chmod(0o600)
            key = base64.b64decode(text, validate=True)
        except FileNotFoundError:
            if make:
                return self._made()
            raise self._unusable("is missing, so no stored secret can be opened; restore it from a backup") from None
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror}); make it readable for this user") from error
        except binascii.Error:
            key = b""
        if len(key) != _KEY_BYTES and make:
            return self._made()
        if len(key) != _KEY_BYTES:
            raise self._unusable("is damaged, so no stored secret can be opened; restore it from a backup")
        return key

    def _made(self) -> bytes:
        """Durable before the first value that only it opens."""
        key = os.urandom(_KEY_BYTES)
        write_atomic(self._file, base64.b64encode(key) + b"\n", 0o600)
        return key

    def _open(self, key: bytes, team: str, name: str, text: str) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 10 MB of memory, for homes with secrets only

        data = base64.b64decode(text)
        try:
            return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(team, name))
        except InvalidTag:
            raise self._unusable(f"is not the key that {name} was sealed with; restore it from a backup") from None

    def _unusable(self, why: str) -> SetupError:
        return SetupError("secret key", str(self._file), f"{why}, {_AGAIN}")


def _bound(team: str, name: str) -> bytes:
    """What a value is sealed under. The platform's own were sealed under their name alone before there were teams."""
    return f"{team}/{name}".encode() if team else name.encode()


def _seal(key: bytes, team: str, name: str, value: bytes) -> str:
    """Bound to its team and name: a row's value put under another opens nothing."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, value, _bound(team, name))).decode()


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
