"""Which database a home's decisions are in: its own SQLite file, or PostgreSQL as `database.json` says, for its owner alone.

Chosen once and never changed by accident: each database has a number that goes with its rows, so a new address or password of the
same one is taken, and another database is refused, with which the home's jobs would be forgotten.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phalanx.core.errors import Conflict, SetupError
from phalanx.operate.control.databases import address
from phalanx.operate.control.store import FIRST_LEASED, Store
from phalanx.storage.atomic import write_atomic

FILE: Final = "database.json"
OWN: Final = "phalanx.db"
VARIABLE: Final = "PHALANX_DATABASE"
OPTION: Final = "--database"


@dataclass(frozen=True, slots=True)
class Remembered:
    """url: with its password, '' for the home's own file. id: the database's number."""

    url: str = ""
    id: int = 0

    def __repr__(self) -> str:
        return f"Remembered({address.masked(self.url)!r}, {self.id})"


def remembered(home: Path) -> Remembered:
    """What the home knows. Raises SetupError for a file that nobody could follow."""
    file = home / FILE
    try:
        data = json.loads(file.read_bytes())
        return Remembered(str(data["url"]), int(data["id"]))
    except FileNotFoundError:
        return Remembered()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError("database", str(file), f"cannot be read; remove it, and name the database with {OPTION}") from error


def remember(home: Path, url: str, number: int) -> None:
    """From now on the home's decisions are there."""
    write_atomic(home / FILE, json.dumps({"url": url, "id": number}).encode() + b"\n", 0o600)


def place(home: Path) -> str | Path:
    """What a `Store` of the home opens. Raises SetupError."""
    return remembered(home).url or home / OWN


def named(asked: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """(field, URL) of the database that somebody names: --database, else PHALANX_DATABASE; the URL is '' where nobody does.

    Raises SetupError for a URL that is none, and for a password where every user of the machine reads it."""
    field, text = (OPTION, asked) if asked else (VARIABLE, environ.get(VARIABLE, ""))
    if not text:
        return field, ""
    url = address.parsed(text, field)
    if field == OPTION and (url.password or any("password" in name for name in url.query)):
        fix = f"shows its password to whoever lists processes; put the URL into {VARIABLE}, or the password into ~/.pgpass"
        raise SetupError(OPTION, address.shown(url), fix)
    return field, address.plain(url)


def choose(home: Path, asked: str, environ: Mapping[str, str], running: bool) -> None:
    """Makes the database that is named the home's. Raises Conflict while a server runs with another one, and SetupError: for one
    that cannot be used, that is of a newer version, or that is not the one in which the home's decisions are."""
    field, url = named(asked, environ)
    known = remembered(home)
    if not url or _is_same(url, known.url):
        return
    shown = address.shown(address.parsed(url, field))
    now = address.masked(known.url) or str(home / OWN)
    if running:
        raise Conflict(field, shown, f"the platform is up with {now}; `phalanx down` first")
    if not known.url and (home / OWN).exists():
        raise SetupError(field, shown, _elsewhere(now))
    number = _number_of(url)
    if known.url and number != known.id:
        raise SetupError(field, shown, _elsewhere(now))
    remember(home, url, number)


def _elsewhere(now: str) -> str:
    move = "to move it, `phalanx backup FILE`, `phalanx down`, and `phalanx restore FILE --database URL` into an empty one"
    return f"this home's decisions are in {now}; {move}"


def _is_same(url: str, known: str) -> bool:
    """The known one may have a password besides, from the time when it was named with one."""
    if url == known or not known:
        return url == known
    one, two = address.parsed(url, "database"), address.parsed(known, "database")
    return one.password is None and one.set(password=two.password) == two


def _number_of(url: str) -> int:
    """Of the database there; an empty one gets its tables, and with them a number. One that others lead is left as it is."""
    store = Store(url, upgrade=False)
    try:
        if store.revision() < FIRST_LEASED:
            store.upgrade()
        return store.identity()
    finally:
        store.close()
