"""Which units a cache holds and who uses them: a table that all processes of the node share, in the cache's folder.

Each method is one transaction, so a kill at any point leaves the state before it or after it. Nothing in it must outlive the
machine: the first process to come makes the table anew of the files that are there. Files are removed before their rows, and made
after them: a row may lack its file, and no file lacks its row, so what a killed process leaves is always counted and found.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from phalanx.storage.cache import needs
from phalanx.storage.cache.evict import Kept, to_evict

FORMAT: Final = 1
NUMBER_BITS: Final = 24
_BUSY_S: Final = 60.0
_SCHEMA: Final = """
CREATE TABLE contents (id INTEGER PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE);
CREATE TABLE units (key INTEGER PRIMARY KEY, size INTEGER NOT NULL, used INTEGER NOT NULL, claimed INTEGER);
CREATE INDEX by_use ON units (used);
CREATE INDEX by_claim ON units (claimed) WHERE claimed IS NOT NULL;
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER unit_added AFTER INSERT ON units BEGIN UPDATE total SET bytes = bytes + NEW.size; END;
CREATE TRIGGER unit_removed AFTER DELETE ON units BEGIN UPDATE total SET bytes = bytes - OLD.size; END;
CREATE TABLE processes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, limit_bytes INTEGER NOT NULL,
  needs BLOB NOT NULL DEFAULT x'', version INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE leases (key INTEGER NOT NULL, process INTEGER NOT NULL, PRIMARY KEY (key, process)) WITHOUT ROWID;
CREATE INDEX by_process ON leases (process);
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of some content: what is fetched, checked and removed as one. number: of the piece in it."""

    sha256: str
    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Of what was asked for: what the asker now has to fetch, and what others are fetching, with who does."""

    mine: Sequence[Unit]
    others: Sequence[tuple[Unit, int]]


Remove = Callable[[str, int], None]
"""Removes the file of a unit, by its content and number; one that is not there is removed."""


class Index:
    """Raises sqlite3.Error where the folder's disk fails or is full."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._contents: dict[str, int] = {}
        self._needs: dict[int, tuple[int, needs.Needs]] = {}

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Until it is left, no other thread or process writes; what is done within is done wholly or not at all."""
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        self._contents.clear()
        if self._db.in_transaction:  # on a full disk SQLite may have done it already
            self._db.execute("ROLLBACK")

    def make(self, found: Iterable[tuple[Unit, int]]) -> None:
        """A new table of these units, each with when it was last used in nanoseconds."""
        self._db.executescript(_SCHEMA)
        with self.alone():
            for unit, used in found:
                self._db.execute("INSERT INTO units VALUES (?, ?, ?, NULL)", (self._key(unit), unit.size_bytes, used))
            self._db.execute(f"PRAGMA user_version={FORMAT}")

    @property
    def is_made(self) -> bool:
        """Whether `make` has come to its end."""
        return bool(self._db.execute("PRAGMA user_version").fetchone() == (FORMAT,))

    # Processes

    def enter(self, limit_bytes: int) -> int:
        """The number of a new process, which is never given again."""
        with self.alone():
            return int(self._db.execute("INSERT INTO processes (limit_bytes) VALUES (?)", (limit_bytes,)).lastrowid or 0)

    def processes(self) -> list[int]:
        with self._lock:
            return [number for (number,) in self._db.execute("SELECT id FROM processes ORDER BY id")]

    def limit_bytes(self) -> int:
        """The smallest that a process has asked for."""
        with self._lock:
            return int(self._db.execute("SELECT COALESCE(MIN(limit_bytes), 0) FROM processes").fetchone()[0])

    def leave(self, process: int, settle: Callable[[Unit], bool]) -> None:
        """Of a process that has ended. settle: whether a unit that it was fetching is there whole; removes what it left of it."""
        with self.alone():
            for key, size in self._db.execute("SELECT key, size FROM units WHERE claimed = ?", (process,)).fetchall():
                if settle(self._unit(key, size)):
                    self._db.execute("UPDATE units SET claimed = NULL WHERE key = ?", (key,))
                else:
                    self._db.execute("DELETE FROM units WHERE key = ?", (key,))
            self._db.execute("DELETE FROM leases WHERE process = ?", (process,))
            self._db.execute("DELETE FROM processes WHERE id = ?", (process,))

    def publish(self, process: int, due: bytes) -> None:
        """What it will need; see `needs`."""
        with self.alone():
            self._db.execute("UPDATE processes SET needs = ?, version = version + 1 WHERE id = ?", (due, process))

    # Units

    def take(self, process: int, units: Sequence[Unit], remove: Remove, lease: bool, beyond: int = -1) -> Taken | None:
        """Those that nobody has are the process's to fetch from now on, their bytes reserved, and with `lease` none of all these is
        removed before `release`. None, and nothing is changed, where there is no room: others hold it, or need it within `beyond`
        steps."""
        with self.alone():
            known = {unit: self._row(unit) for unit in units}
            mine = [unit for unit, row in known.items() if row is None]
            if not self._make_room(sum(unit.size_bytes for unit in mine), units, remove, beyond):
                return None
            now = time.time_ns()
            for unit, row in known.items():
                key = self._key(unit)
                if row is None:
                    self._db.execute("INSERT INTO units VALUES (?, ?, ?, ?)", (key, unit.size_bytes, now, process))
                if lease:
                    self._db.execute("INSERT OR IGNORE INTO leases VALUES (?, ?)", (key, process))
                    self._db.execute("UPDATE units SET used = ? WHERE key = ?", (now, key))
            return Taken(mine, [(unit, row[0]) for unit, row in known.items() if row is not None and row[0] is not None])

    def fetched(self, units: Sequence[Unit]) -> None:
        """Their files are there."""
        with self.alone():
            self._db.executemany("UPDATE units SET claimed = NULL WHERE key = ?", [(self._key(unit),) for unit in units])

    def forget(self, units: Sequence[Unit], remove: Remove, process: int | None = None) -> None:
        """Those that nobody fetches, or that this process does, are not in the cache any more; their leases stay."""
        with self.alone():
            for unit in units:
                row = self._row(unit)
                if row is not None and row[0] in (None, process):
                    remove(unit.sha256, unit.number)
                    self._db.execute("DELETE FROM units WHERE key = ?", (self._key(unit),))

    def release(self, process: int, units: Sequence[Unit]) -> None:
        with self.alone():
            keys = [(self._key(unit), process) for unit in units]
            self._db.executemany("DELETE FROM leases WHERE key = ? AND process = ?", keys)

    def fetching(self, units: Sequence[Unit]) -> list[tuple[Unit, int]]:
        """Those of them that somebody fetches right now, with who does."""
        with self._lock:
            rows = [(unit, self._row(unit)) for unit in units]
        return [(unit, row[0]) for unit, row in rows if row is not None and row[0] is not None]

    def held_bytes(self) -> int:
        """Of all units, those that are being fetched too."""
        with self._lock:
            return int(self._db.execute("SELECT bytes FROM total").fetchone()[0])

    def shrink(self, remove: Remove) -> None:
        """To the limit, as far as nobody holds what is above it."""
        with self.alone():
            if not self._make_room(0, (), remove, -1):
                (spare,) = self._db.execute(
                    "SELECT COALESCE(SUM(size), 0) FROM units WHERE claimed IS NULL AND key NOT IN (SELECT key FROM leases)"
                ).fetchone()
                self._free(spare, (), remove, -1)

    def key(self, unit: Unit) -> int:
        """By which `publish` names it."""
        with self._lock:
            if unit.sha256 in self._contents:
                return self._key(unit)
            with self.alone():
                return self._key(unit)

    def _row(self, unit: Unit) -> tuple[int | None] | None:
        found: tuple[int | None] | None = self._db.execute("SELECT claimed FROM units WHERE key = ?", (self.key(unit),)).fetchone()
        return found

    def _make_room(self, size_bytes: int, wanted: Sequence[Unit], remove: Remove, beyond: int) -> bool:
        return self._free(self.held_bytes() + size_bytes - self.limit_bytes(), wanted, remove, beyond)

    def _free(self, lacking: int, wanted: Sequence[Unit], remove: Remove, beyond: int) -> bool:
        if lacking <= 0:
            return True
        held = {key for (key,) in self._db.execute("SELECT DISTINCT key FROM leases")} | {self._key(unit) for unit in wanted}
        oldest: Iterable[Kept] = self._db.execute("SELECT key, size FROM units WHERE claimed IS NULL ORDER BY used")
        victims = to_evict(oldest, held, partial(needs.distance, self._all_needs()), lacking, beyond)
        for key in victims or ():
            unit = self._unit(key, 0)
            remove(unit.sha256, unit.number)
            self._db.execute("DELETE FROM units WHERE key = ?", (key,))
        return victims is not None

    def _all_needs(self) -> list[needs.Needs]:
        found = dict(self._db.execute("SELECT id, version FROM processes").fetchall())
        for process in self._needs.keys() - found.keys():
            del self._needs[process]
        for process, version in found.items():
            if self._needs.get(process, (0,))[0] != version:
                (data,) = self._db.execute("SELECT needs FROM processes WHERE id = ?", (process,)).fetchone()
                self._needs[process] = (version, needs.unpacked(data))
        return [one for _, one in self._needs.values()]

    def _key(self, unit: Unit) -> int:
        known = self._contents.get(unit.sha256)
        if known is None:
            self._db.execute("INSERT OR IGNORE INTO contents (sha256) VALUES (?)", (unit.sha256,))
            (known,) = self._db.execute("SELECT id FROM contents WHERE sha256 = ?", (unit.sha256,)).fetchone()
            self._contents[unit.sha256] = known
        return known << NUMBER_BITS | unit.number

    def _unit(self, key: int, size_bytes: int) -> Unit:
        (sha256,) = self._db.execute("SELECT sha256 FROM contents WHERE id = ?", (key >> NUMBER_BITS,)).fetchone()
        return Unit(sha256, key & (1 << NUMBER_BITS) - 1, size_bytes)
