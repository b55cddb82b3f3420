"""PostgreSQL: reads are REPEATABLE READ, writes queue at the lease row, and a server that stalls is shown the door.

A leader that is stopped in the middle of a transaction holds the lease row's lock. So the database itself ends sessions that sit
idle in a transaction: their commit can never land, and whoever waits for the lease gets it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from phalanx.core.errors import SetupError
from phalanx.operate.control.databases import BUSY_MS
from phalanx.operate.control.databases.address import shown

IDLE_MS: Final = 2_000
"""A transaction of ours never waits for anything but the database; less than a lease, which a stopped leader must not outlive."""

STATEMENT_MS: Final = 60_000
CONNECT_S: Final = 5
SILENT_MS: Final = 10_000
"""An answer that the network swallowed is given up after this: tcp_user_timeout of libpq."""

_MIGRATES: Final = 0x7068616C616E78
"""Key of the advisory lock under which one process at a time migrates: 'phalanx'."""

_AWAY: Final = ("08", "25", "40", "53", "55", "57", "58")
"""SQLSTATE classes (PostgreSQL's appendix A): connection, invalid transaction (idle too long, a read-only replica), rollback of a
transaction, resources, locks, shut-downs, the operating system."""

_FIXES: Final = {
    "28P01": "put its right password into PHALANX_DATABASE, or into ~/.pgpass",
    "28000": "name a user that the server's pg_hba.conf lets in from here",
    "3D000": "make that database first: `createdb` on its server",
    "42501": "give its user the right to make tables there: GRANT CREATE, USAGE ON SCHEMA public",
    "42P07": "has tables that are not of Phalanx; name an empty database",
}
_SIGNS: Final = {
    "28P01": ("password authentication failed", "no password supplied"),
    "28000": ("no pg_hba.conf entry", "Peer authentication failed", "role "),
    "3D000": ("database ",),
}
_START: Final = "start it, or mend the address that PHALANX_DATABASE or --database gives"


class Postgres:
    """One database of a PostgreSQL server of version 12 or newer, in UTF-8."""

    now_ms = text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)")

    def __init__(self, url: URL, busy_ms: int = BUSY_MS) -> None:
        """Raises SetupError where psycopg is not installed."""
        self.shown = shown(url)
        self._secret = url.password or ""
        try:
            self._reads = _engine(url, busy_ms, idle_ms=0).execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            self._writes = _engine(url, busy_ms, IDLE_MS).execution_options(isolation_level="READ COMMITTED")
        except ModuleNotFoundError as error:
            raise SetupError("database", self.shown, "needs psycopg: pip install 'phalanx[postgres]'") from error

    @contextmanager
    def writing(self, durable: bool = True) -> Iterator[Connection]:
        """Each statement sees what was committed before it, and none but the first runs without the lease row's lock: so what one
        transaction reads and writes is as if it were alone."""
        with self._writes.connect() as connection, connection.begin():
            if not durable:
                connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            yield connection

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        with self.writing() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # another that migrates is waited for
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATES})")
            encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
            if encoding != "UTF8":
                raise SetupError("database", self.shown, f"keeps text as {encoding}; make one with ENCODING 'UTF8'")
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._reads.connect() as connection, connection.begin():
            yield connection

    def is_away(self, error: SQLAlchemyError) -> bool:
        if isinstance(error, OperationalError | InterfaceError | PoolTimeout):
            return True
        return isinstance(error, DBAPIError) and (error.connection_invalidated or _state(error)[:2] in _AWAY)

    def words(self, error: BaseException) -> str:
        """Without what the server adds to it: there stand whole rows. libpq tells no password; should it ever, it is struck out."""
        ours = getattr(error, "orig", None) or error
        told = getattr(getattr(ours, "diag", None), "message_primary", None)
        said = " ".join(str(told or ours).split())
        return said.replace(self._secret, "***") if len(self._secret) > 3 else said

    def unusable(self, error: SQLAlchemyError) -> SetupError | None:
        said = self.words(error)
        fix = next(
            (fix for sign, fix in _FIXES.items() if sign in (_state(error), *_signs(said))), _START if self.is_away(error) else ""
        )
        return SetupError("database", self.shown, f"cannot be used ({said}); {fix}") if fix else None

    def newer(self, revision: str) -> SetupError:
        problem = f"was written by a newer version of phalanx (schema {revision})"
        return SetupError("database", self.shown, f"{problem}; upgrade phalanx, or name another database")

    def close(self) -> None:
        self._reads.dispose()
        self._writes.dispose()


def _engine(url: URL, busy_ms: int, idle_ms: int) -> Engine:
    """With a pool of its own: what a session may do is told as it begins."""
    limits = {"lock_timeout": busy_ms, "idle_in_transaction_session_timeout": idle_ms, "statement_timeout": STATEMENT_MS}
    settings = {
        "application_name": "phalanx",
        "connect_timeout": CONNECT_S,
        "tcp_user_timeout": SILENT_MS,
        "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
    }
    return create_engine(url, connect_args=settings, hide_parameters=True)


def _signs(said: str) -> Iterator[str]:
    """A connection that was refused has no SQLSTATE: there the words tell, which a server may say in another language."""
    for sign, words in _SIGNS.items():
        if any(one in said for one in words):
            yield sign


def _state(error: BaseException) -> str:
    """Its SQLSTATE."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
