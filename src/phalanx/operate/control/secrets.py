"""Values that jobs use and nobody is shown, sealed in the database with a key that lies in the home's `secret.key`.

The database, or a copy of it, opens none. A value leaves for a node that starts ranks of a job which names it, to sign a webhook,
and to be struck out of a log. No error, log line or event here ever has a value in it.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.sqlite import insert

from phalanx.core.errors import NotFound, SpecError
from phalanx.core.views import SecretView
from phalanx.operate.control.secret_keys import KEY_BYTES, KeyFile, seal
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import secrets as table

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

    def put(self, epoch: int, name: str, value: bytes) -> None:
        """Stores `value` under `name`, in place of an older one. Raises SpecError, SetupError, StoreUnavailable."""
        _check(name, value)
        sealed = self._sealed()
        others = {other: text for other, text in sealed.items() if other != name}
        keys = self._keys.read(make=not others)
        for other, text in list(others.items())[:1]:
            self._keys.opened(keys, other, text)  # else this value would be sealed with a key that is not the home's
        row = {"name": name, "sealed": seal(keys[-1], name, value), "created_ms": self._now_ms()}
        with self._store.leading(epoch) as connection:
            connection.execute(insert(table).values(row).on_conflict_do_update(index_elements=["name"], set_=row))

    def rotate(self, epoch: int) -> int:
        """Seals every value anew with a fresh key, in one transaction, and forgets the older ones then; answers how many. Whatever
        breaks in between leaves all values readable, and the same call goes on. Raises SetupError, StoreUnavailable."""
        with self._turning:
            sealed = self._sealed()
            keys = self._keys.read(make=not sealed)
            values = {name: self._keys.opened(keys, name, text) for name, text in sealed.items()}
            fresh = os.urandom(KEY_BYTES)
            self._keys.write([*keys, fresh])
            with self._store.leading(epoch) as connection:
                for name, value in values.items():
                    renewed = update(table).where(table.c.name == name).values(sealed=seal(fresh, name, value))
                    connection.execute(renewed)
            self._keys.write([fresh])
        return len(values)

    def remove(self, epoch: int, name: str) -> None:
        """Raises NotFound, StoreUnavailable."""
        with self._store.leading(epoch) as connection:
            gone = connection.execute(delete(table).where(table.c.name == name)).rowcount
        if not gone:
            raise NotFound("secret", name, "is not stored; `phalanx secret ls` shows the names")

    def views(self) -> tuple[SecretView, ...]:
        """Names and dates, by name. Raises StoreUnavailable."""
        with self._store.reading() as connection:
            rows = connection.execute(select(table.c.name, table.c.created_ms).order_by(table.c.name)).all()
        return tuple(SecretView(name=row.name, set_ms=row.created_ms) for row in rows)

    def missing(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of `names` that are not stored. Raises StoreUnavailable."""
        known = {view.name for view in self.views()}
        return tuple(name for name in names if name not in known)

    def values(self, names: Sequence[str]) -> dict[str, str]:
        """The values of those of `names` that are stored. Raises SetupError when the key does not open them, StoreUnavailable."""
        with self._turning:
            sealed = {name: text for name, text in self._sealed().items() if name in names}
            keys = self._keys.read(make=False) if sealed else ()
        return {name: self._keys.opened(keys, name, text).decode() for name, text in sealed.items()}

    def _sealed(self) -> Mapping[str, str]:
        with self._store.reading() as connection:
            return {row.name: row.sealed for row in connection.execute(select(table.c.name, table.c.sealed))}


def _check(name: str, value: bytes) -> None:
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
