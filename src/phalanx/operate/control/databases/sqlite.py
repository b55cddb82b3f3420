"""SQLite: a file in the home, with one writer, a write-ahead log, and transactions that begin when they are told to."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import StaticPool

from phalanx.core.errors import SetupError
from phalanx.operate.control.databases import BUSY_MS, Connect

_BEGIN: Final = "phalanx_begin"
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # a commit that was answered survives a power cut; WAL alone would not promise it
    "PRAGMA foreign_keys=ON",
)


class Sqlite:
    """`connect` opens the database instead, of which one connection then serves every thread: one in memory."""

    now_ms = text("SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)")

    def __init__(self, where: str | Path, busy_ms: int = BUSY_MS, connect: Connect | None = None) -> None:
        is_url = isinstance(where, str) and "://" in where
        url = make_url(str(where)) if is_url else URL.create("sqlite", database=str(where))
        self.shown = f"SQLite, {url.database}" if url.database else "SQLite in memory"
        self._home = str(Path(url.database).parent) if url.database else str(url)
        self._engine = _engine(url, busy_ms, connect)

    @contextmanager
    def writing(self, durable: bool = True) -> Iterator[Connection]:
        with self._engine.connect() as opened:
            connection = opened.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
            if not durable:
                _set_synchronous(connection, "NORMAL")
            try:
                with connection.begin():
                    yield connection
            finally:
                if not durable:
                    _set_synchronous(connection, "FULL")

    def migrating(self) -> AbstractContextManager[Connection]:
        return self.writing()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._engine.connect() as connection, connection.begin():
            yield connection

    def is_away(self, error: SQLAlchemyError) -> bool:
        """A DatabaseError that is no kind of one is a file that is damaged or no database."""
        return isinstance(error, OperationalError | InterfaceError | PoolTimeout) or type(error) is DatabaseError

    def words(self, error: BaseException) -> str:
        return str(getattr(error, "orig", None) or error)

    def unusable(self, error: SQLAlchemyError) -> SetupError | None:
        if not self.is_away(error):
            return None
        problem = f"its database cannot be opened for writing ({self.words(error)})"
        return SetupError("home", self._home, f"{problem}; make the folder writable, or choose another PHALANX_HOME")

    def newer(self, revision: str) -> SetupError:
        problem = f"was written by a newer version of phalanx (schema {revision})"
        return SetupError("home", self._home, f"{problem}; upgrade phalanx, or choose another PHALANX_HOME")

    def close(self) -> None:
        self._engine.dispose()


def _set_synchronous(connection: Connection, mode: str) -> None:
    """Past SQLAlchemy, which would begin a transaction, in which SQLite ignores it."""
    driver: Any = connection.connection.driver_connection
    driver.execute(f"PRAGMA synchronous={mode}").close()


def _engine(url: URL, busy_ms: int, connect: Connect | None) -> Engine:
    """SQLite with explicit transactions: the driver's own would begin them late, and its reads would not be snapshots."""
    engine = create_engine(url) if connect is None else create_engine(url, creator=connect, poolclass=StaticPool)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        for pragma in (f"PRAGMA busy_timeout={busy_ms}", *_PRAGMAS):
            connection.execute(pragma).close()

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))

    return engine
