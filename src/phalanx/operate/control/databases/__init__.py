"""What the store needs of a database, and nothing of one kind: SQLite's ways are in `sqlite`, PostgreSQL's in `postgres`.

Both give reads one consistent look, and writes one after another. Whoever writes as the leader locks the lease row first, so on
either a superseded leader's transaction cannot be committed after another took over.
"""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from sqlalchemy import Connection, TextClause
from sqlalchemy.exc import SQLAlchemyError

from phalanx.core.errors import SetupError

BUSY_MS: Final = 5_000
"""How long a statement waits for another's lock (a backup, a reader in a checkpoint) before it fails."""

Connect = Callable[[], sqlite3.Connection]


class Database(Protocol):
    """Connections of one database. `shown`: which one, for people, without its password. `now_ms`: its clock, Unix time, as SQL."""

    shown: str
    now_ms: TextClause

    def writing(self, durable: bool = True) -> AbstractContextManager[Connection]:
        """A transaction that writes. Not `durable`: a crash of the machine may forget it, and its commit waits for no disk."""

    def migrating(self) -> AbstractContextManager[Connection]:
        """A transaction in which nobody else migrates."""

    def reading(self) -> AbstractContextManager[Connection]:
        """One consistent look."""

    def is_away(self, error: SQLAlchemyError) -> bool:
        """Whether the database is away, locked or full, so that the same may work later; else it refused what was said."""

    def words(self, error: BaseException) -> str:
        """What the database said, in one line."""

    def unusable(self, error: SQLAlchemyError) -> SetupError | None:
        """The error for a database that cannot be opened, where somebody can mend that; else it is ours."""

    def newer(self, revision: str) -> SetupError:
        """The error for one that a newer version wrote."""

    def close(self) -> None:
        """Ends every connection."""


def open_database(where: str | Path, busy_ms: int = BUSY_MS, connect: Connect | None = None) -> Database:
    """The database at a path or URL; nothing is asked of it yet. Raises SetupError for a URL that is none of ours."""
    from phalanx.operate.control.databases import address
    from phalanx.operate.control.databases.sqlite import Sqlite

    if isinstance(where, str) and address.is_postgres(where):
        from phalanx.operate.control.databases.postgres import Postgres

        return Postgres(address.parsed(where, "database"), busy_ms)
    return Sqlite(where, busy_ms, connect)
