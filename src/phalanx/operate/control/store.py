"""The database: event log, current tables and outbox, written together. One writer; every write checks that it still leads.

A database that is away, locked or full is StoreUnavailable: the same call may be made again. Nothing was changed then, unless the
error came with the commit itself: `last_seq` tells. A statement that the database refuses for what it says is a Bug. What makes a
home unusable (a newer schema, no permission to write) is a SetupError when it is opened.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, bindparam, create_engine, delete, event, func, select
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import StaticPool

from phalanx.core import wire
from phalanx.core.errors import Bug, SetupError, StoreUnavailable
from phalanx.core.events import Event
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.policy import Policy
from phalanx.operate.control import migrations, tables
from phalanx.operate.control.fold import world_of
from phalanx.operate.control.rows import Commit, event_of, put, written
from phalanx.operate.control.world import AttemptRecord, JobRecord, ModelRecord, NodeRecord, QueueUsage, World

BUSY_MS: Final = 5_000
"""How long a statement waits for another process's lock (a backup, a reader in a checkpoint) before it fails."""

Connect = Callable[[], sqlite3.Connection]

_WRITES: Final = "phalanx_writes"
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # a commit that was answered survives a power cut; WAL alone would not promise it
    "PRAGMA foreign_keys=ON",
)


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An entry that the tracker has yet to take over. `seq` is never used again."""

    seq: int
    entry: dict[str, Any]


class Store:
    """Opens, makes or upgrades the database at a path or SQLAlchemy URL. Usable from any thread; one thread should write."""

    def __init__(self, where: str | Path, busy_ms: int = BUSY_MS, connect: Connect | None = None) -> None:
        """`connect` opens the SQLite database instead, of which one connection then serves every thread: one in memory.

        Raises SetupError when the home is of a newer version or cannot be written."""
        is_url = isinstance(where, str) and "://" in where
        url = make_url(str(where)) if is_url else URL.create("sqlite", database=str(where))
        self._home = str(Path(url.database).parent) if url.database else str(url)
        self._engine = _engine(url, busy_ms, connect)
        try:
            with self._writing() as connection:
                migrations.upgrade(connection)
        except migrations.NewerSchema as error:
            self.close()
            newer = f"was written by a newer version of phalanx (schema {error.revision})"
            fix = f"{newer}; upgrade phalanx, or choose another PHALANX_HOME"
            raise SetupError("home", self._home, fix) from error
        except StoreUnavailable as error:
            self.close()
            problem = f"its database cannot be opened for writing ({error})"
            fix = f"{problem}; make the folder writable, or choose another PHALANX_HOME"
            raise SetupError("home", self._home, fix) from error

    def close(self) -> None:
        """Ends every connection."""
        self._engine.dispose()

    # Leadership

    def take_lead(self) -> int:
        """The next epoch, committed: from now on every older leader's write is refused."""
        with self._writing() as connection:
            epoch = _number(connection, "epoch") + 1
            connection.execute(put(tables.meta, "key", "value"), {"key": "epoch", "value": epoch})
        return epoch

    def raise_epoch(self, epoch: int, to: int) -> int:
        """Makes the leader's number `to`, and answers with it. Raises Bug when `epoch` leads no more, and StoreUnavailable: then it
        may be done all the same, and whether by this leader or by another one that chose the number, nobody can tell."""
        with self._leading(epoch) as connection:
            connection.execute(put(tables.meta, "key", "value"), {"key": "epoch", "value": max(epoch, to)})
        return max(epoch, to)

    @contextmanager
    def _leading(self, epoch: int) -> Iterator[Connection]:
        """A write transaction of the leader. Raises Bug when another took over: this process must end, not try again."""
        with self._writing() as connection:
            self._check_lead(connection, epoch)
            yield connection

    def check_lead(self, epoch: int) -> None:
        """Raises Bug when another took over, StoreUnavailable."""
        with self._reading() as connection:
            self._check_lead(connection, epoch)

    def _check_lead(self, connection: Connection, epoch: int) -> None:
        leader = _number(connection, "epoch")
        if leader != epoch:
            raise Bug(f"epoch {epoch} was superseded by {leader}: another control plane runs on {self._home}")

    # The log and what is true now

    def commit(self, epoch: int, commit: Commit) -> None:
        """All of it or nothing. Raises StoreUnavailable, then perhaps all of it is done; Bug when superseded."""
        with self._leading(epoch) as connection:
            for statement, rows in written(commit):
                connection.execute(statement, rows)

    def load(self) -> World:
        """Everything that is true now."""
        with self._reading() as connection:
            records = [wire.loads(kind, text) for kind, query in _LOADS for (text,) in connection.execute(query)]
            return world_of(records, _last_seq(connection), _number(connection, "sequence"))

    def last_seq(self) -> int:
        """Number of the newest event; 0 when there is none."""
        with self._reading() as connection:
            return _last_seq(connection)

    def events(
        self,
        after: int = 0,
        job: JobId | None = None,
        limit: int = 1000,
        kind: str = "",
        since_ms: int = 0,
        newest: bool = False,
        teams: Sequence[str] | None = None,
    ) -> list[Event]:
        """The log from the event after `after` on, of one job or of everything; of one kind, not before `since_ms`. In order, the
        first `limit` of them, or the last when `newest`. teams: of jobs of these alone."""
        log = tables.events.c
        query = select(tables.events).where(log.seq > after).order_by(log.seq.desc() if newest else log.seq).limit(limit)
        for asked, condition in ((job is not None, log.job == job), (kind, log.kind == kind), (since_ms, log.at_ms >= since_ms)):
            query = query.where(condition) if asked else query
        if teams is not None:
            query = query.where(log.job.in_(select(tables.jobs.c.id).where(tables.jobs.c.team.in_(list(teams)))))
        with self._reading() as connection:
            found = [event_of(row) for row in connection.execute(query)]
        return found[::-1] if newest else found

    def job_of_key(self, key: str) -> JobId | None:
        """The job that was submitted with `key`."""
        with self._reading() as connection:
            job = connection.execute(select(tables.submits.c.job).where(tables.submits.c.key == key)).scalar()
        return None if job is None else JobId(job)

    def records_offsets(self) -> dict[tuple[AttemptId, int], int]:
        """Up to where each rank's record file was read for facts."""
        with self._reading() as connection:
            return {(AttemptId(attempt), rank): offset for attempt, rank, offset in connection.execute(select(tables.streams))}

    def artifact_blobs(self) -> dict[JobId, frozenset[str]]:
        """Blobs that artifacts of each job name."""
        query = select(tables.attempts.c.job, tables.artifacts.c.sha256).join_from(tables.artifacts, tables.attempts).distinct()
        found: dict[JobId, set[str]] = {}
        with self._reading() as connection:
            for job, sha256 in connection.execute(query):
                found.setdefault(JobId(job), set()).add(sha256)
        return {job: frozenset(names) for job, names in found.items()}

    # The outbox

    def pending_outbox(self, limit: int) -> list[OutboxRow]:
        """The oldest entries."""
        query = select(tables.outbox).order_by(tables.outbox.c.seq).limit(limit)
        with self._reading() as connection:
            return [OutboxRow(seq, json.loads(entry)) for seq, entry in connection.execute(query)]

    def outbox_size(self) -> int:
        """Entries that wait."""
        with self._reading() as connection:
            return int(connection.execute(select(func.count()).select_from(tables.outbox)).scalar_one())

    def outbox_done(self, epoch: int, seq: int) -> None:
        """Drops an entry that was taken over; twice is harmless."""
        with self._leading(epoch) as connection:
            connection.execute(delete(tables.outbox).where(tables.outbox.c.seq == seq))

    # Tokens

    def set_tokens(self, roles: Mapping[str, str], created_ms: int) -> None:
        """Makes `roles` (SHA-256 of a token to its role) the tokens of this home; older ones open nothing any more."""
        with self._writing() as connection:
            connection.execute(delete(tables.tokens).where(tables.tokens.c.sha256.not_in(list(roles))))
            for sha256, role in roles.items():
                row = {"sha256": sha256, "role": role, "name": role, "created_ms": created_ms}
                connection.execute(upsert(tables.tokens).values(row).on_conflict_do_nothing())

    def tokens(self) -> dict[str, str]:
        """SHA-256 of each token to its role."""
        with self._reading() as connection:
            rows = connection.execute(select(tables.tokens)).all()
        return {row.sha256: row.role for row in rows}

    # Transactions

    def reading(self) -> AbstractContextManager[Connection]:
        """One consistent look, for tables whose statements live in a module of their own. Raises StoreUnavailable."""
        return self._reading()

    def leading(self, epoch: int) -> AbstractContextManager[Connection]:
        """A write of theirs. Raises StoreUnavailable; Bug when superseded."""
        return self._leading(epoch)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with _told_apart(), self._engine.connect() as opened:
            connection = opened.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with _told_apart(), self._engine.connect() as connection, connection.begin():
            yield connection


@contextmanager
def _told_apart() -> Iterator[None]:
    """The database's trouble from ours. A DatabaseError that is no kind of one is a file that is damaged or no database."""
    try:
        yield
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error)
        if isinstance(error, OperationalError | InterfaceError | PoolTimeout) or type(error) is DatabaseError:
            raise StoreUnavailable(said) from error
        raise Bug(f"the database refused a statement of ours: {said}") from error


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
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


_LOADS: Final = (
    (JobRecord, select(tables.jobs.c.record).order_by(tables.jobs.c.sequence)),
    (AttemptRecord, select(tables.attempts.c.record)),
    (NodeRecord, select(tables.nodes.c.record)),
    (ModelRecord, select(tables.models.c.record).order_by(tables.models.c.name, tables.models.c.version)),
    (QueueUsage, select(tables.usage.c.record)),
    (Policy, select(tables.policy.c.record)),
)


_VALUE: Final = select(tables.meta.c.value).where(tables.meta.c.key == bindparam("name"))
"""Made once: it is asked in every tick and in every transaction."""


def _number(connection: Connection, key: str) -> int:
    return int(connection.execute(_VALUE, {"name": key}).scalar() or 0)


def _last_seq(connection: Connection) -> int:
    return int(connection.execute(select(func.max(tables.events.c.seq))).scalar() or 0)
