"""SQLite in memory under the real `Store`: real SQL and real transactions, with trouble at the points where a disk has it."""

import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from phalanx.operate.control.store import Store

Trouble = Callable[[str], None]
"""Called at each point of a transaction's life ('begin', 'before commit', 'after commit'); raises what goes wrong there."""


class Database:
    """One database file, as it were: what is committed stays, whoever crashes.

    `committed` is called after each commit that changed something, before any trouble that follows it.
    """

    def __init__(self, trouble: Trouble, committed: Callable[[], None]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, factory=_Connection)
        self._connection.deserialize(_migrated())
        self.store = Store("sqlite://", connect=lambda: self._connection)
        self._connection.set(trouble, committed)

    def rows(self, query: str, *values: object) -> list[Any]:
        """A look past the store, and past its trouble."""
        return self._connection.look(query, values)

    def close(self) -> None:
        self.store.close()
        self._connection.shut()


class _Connection(sqlite3.Connection):
    """The one connection. Closing it is what a crash does to a file: what was not committed is gone, the rest stays."""

    _trouble: Trouble | None = None
    _committed: Callable[[], None] = staticmethod(lambda: None)
    _changes = 0

    def set(self, trouble: Trouble, committed: Callable[[], None]) -> None:
        self._trouble, self._committed = trouble, committed

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        if self._trouble is not None and not self.in_transaction:
            self._trouble("begin")
        return super().cursor(factory)

    def commit(self) -> None:
        wrote = self.total_changes != self._changes
        if self._trouble is not None and wrote:
            self._trouble("before commit")
        super().commit()
        self._changes = self.total_changes
        if self._trouble is not None and wrote:
            self._committed()
            self._trouble("after commit")

    def rollback(self) -> None:
        super().rollback()
        self._changes = self.total_changes

    def close(self) -> None:
        self.rollback()

    def look(self, query: str, values: tuple[object, ...]) -> list[Any]:
        return super().cursor().execute(query, values).fetchall()

    def shut(self) -> None:
        super().close()


@cache
def _migrated() -> bytes:
    """An empty database of the newest schema: migrated once a process, copied for each history."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "phalanx.db"
        Store(path).close()
        opened = sqlite3.connect(path)
        opened.execute("PRAGMA journal_mode=DELETE")
        data = opened.serialize()
        opened.close()
    return data
