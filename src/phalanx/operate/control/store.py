"""The database: event log, current tables and outbox, written together. One writer; every write checks that it still leads.

A database that is away, locked or full is StoreUnavailable: the same call may be made again. Nothing was changed then, unless the
error came with the commit itself: `last_seq` tells. A statement that the database refuses for what it says is a Bug. What makes a
home unusable (a newer schema, no permission to write) is a SetupError when it is opened.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, Table, create_engine, delete, event, func, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.sql.dml import Insert

from phalanx.core import wire
from phalanx.core.errors import Bug, SetupError, StoreUnavailable
from phalanx.core.events import Event, EventBody
from phalanx.core.ids import AttemptId, JobId
from phalanx.operate.control import migrations, tables
from phalanx.operate.control.fold import Changes, world_of
from phalanx.operate.control.world import AttemptRecord, JobRecord, ModelRecord, NodeRecord, World

BUSY_MS: Final = 5_000
"""How long a statement waits for another process's lock (a backup, a reader in a checkpoint) before it fails."""

_WRITES: Final = "phalanx_writes"
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # a commit that was answered survives a power cut; WAL alone would not promise it
    "PRAGMA foreign_keys=ON",
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: events, what they changed, outbox entries; and a submit key or a stream offset that came with them."""

    events: Sequence[Event]
    changes: Changes
    outbox: Sequence[Mapping[str, Any]] = ()
    sequence: int = 0
    key: tuple[str, JobId] | None = None
    offset: tuple[AttemptId, int, int] | None = None


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An entry that the tracker has yet to take over. `seq` is never used again."""

    seq: int
    entry: dict[str, Any]


class Store:
    """Opens, makes or upgrades the database at a path or SQLAlchemy URL. Usable from any thread; one thread should write."""

    def __init__(self, where: str | Path, busy_ms: int = BUSY_MS) -> None:
        """Raises SetupError when the home is of a newer version or cannot be written."""
        is_url = isinstance(where, str) and "://" in where
        url = make_url(str(where)) if is_url else URL.create("sqlite", database=str(where))
        self._home = str(Path(url.database).parent) if url.database else str(url)
        self._engine = _engine(url, busy_ms)
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
            connection.execute(_put(tables.meta, {"key": "epoch", "value": epoch}))
        return epoch

    @contextmanager
    def _leading(self, epoch: int) -> Iterator[Connection]:
        """A write transaction of the leader. Raises Bug when another took over: this process must end, not try again."""
        with self._writing() as connection:
            leader = _number(connection, "epoch")
            if leader != epoch:
                raise Bug(f"epoch {epoch} was superseded by {leader}: another control plane runs on {self._home}")
            yield connection

    # The log and what is true now

    def commit(self, epoch: int, commit: Commit) -> None:
        """All of it or nothing. Raises StoreUnavailable, then perhaps all of it is done; Bug when superseded."""
        with self._leading(epoch) as connection:
            _insert_all(connection, tables.events, [_event_row(item) for item in commit.events])
            _insert_all(connection, tables.outbox, [{"entry": json.dumps(entry)} for entry in commit.outbox])
            for statement in _puts(commit):
                connection.execute(statement)

    def load(self) -> World:
        """Everything that is true now."""
        with self._reading() as connection:
            records = [wire.loads(kind, text) for kind, query in _LOADS for (text,) in connection.execute(query)]
            return world_of(records, _last_seq(connection), _number(connection, "sequence"))

    def last_seq(self) -> int:
        """Number of the newest event; 0 when there is none."""
        with self._reading() as connection:
            return _last_seq(connection)

    def events(self, after: int = 0, job: JobId | None = None, limit: int = 1000) -> list[Event]:
        """The log from the event after `after` on, of one job or of everything."""
        query = select(tables.events).where(tables.events.c.seq > after).order_by(tables.events.c.seq).limit(limit)
        if job is not None:
            query = query.where(tables.events.c.job == job)
        with self._reading() as connection:
            return [_event(row) for row in connection.execute(query)]

    def job_of_key(self, key: str) -> JobId | None:
        """The job that was submitted with `key`."""
        with self._reading() as connection:
            job = connection.execute(select(tables.submits.c.job).where(tables.submits.c.key == key)).scalar()
        return None if job is None else JobId(job)

    def records_offsets(self) -> dict[tuple[AttemptId, int], int]:
        """Up to where each rank's record file was read for facts."""
        with self._reading() as connection:
            return {(AttemptId(attempt), rank): offset for attempt, rank, offset in connection.execute(select(tables.streams))}

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


def _engine(url: URL, busy_ms: int) -> Engine:
    """SQLite with explicit transactions: the driver's own would begin them late, and its reads would not be snapshots."""
    engine = create_engine(url)

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
)


def _number(connection: Connection, key: str) -> int:
    return int(connection.execute(select(tables.meta.c.value).where(tables.meta.c.key == key)).scalar() or 0)


def _last_seq(connection: Connection) -> int:
    return int(connection.execute(select(func.max(tables.events.c.seq))).scalar() or 0)


def _event_row(item: Event) -> dict[str, Any]:
    body = wire.dumps(EventBody, item.body)
    return {"seq": item.seq, "at_ms": item.at_ms, "kind": item.body.kind, "job": getattr(item.body, "job", None), "body": body}


def _event(row: Row[Any]) -> Event:
    return Event(row.seq, row.at_ms, wire.loads(EventBody, row.body))


def _insert_all(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)


def _puts(commit: Commit) -> Iterator[Insert]:
    """Statements for the current tables, referenced rows first."""
    changes = commit.changes
    for job in changes.jobs.values():
        row = {"id": job.id, "sequence": job.sequence, "state": job.state.name, "record": wire.dumps(JobRecord, job)}
        yield _put(tables.jobs, row)
    for attempt in changes.attempts.values():
        yield _put(tables.attempts, {"id": attempt.id, "job": attempt.job, "record": wire.dumps(AttemptRecord, attempt)})
    for node in changes.nodes.values():
        yield _put(tables.nodes, {"id": node.shape.node, "up": node.up, "record": wire.dumps(NodeRecord, node)})
    for model in changes.models:
        row = {"name": model.name, "version": model.version, "attempt": model.attempt}
        yield _put(tables.models, {**row, "record": wire.dumps(ModelRecord, model)})
    yield _put(tables.meta, {"key": "sequence", "value": commit.sequence})
    if commit.key is not None:
        yield _put(tables.submits, {"key": commit.key[0], "job": commit.key[1]})
    if commit.offset is not None:
        attempt_of, rank, offset = commit.offset
        yield _put(tables.streams, {"attempt": attempt_of, "rank": rank, "records_offset": offset})


def _put(table: Table, row: Mapping[str, Any]) -> Insert:
    """Inserts the row, or replaces the one with its primary key."""
    keys = [column.name for column in table.primary_key]
    rest = {name: value for name, value in row.items() if name not in keys}
    return upsert(table).values(row).on_conflict_do_update(index_elements=keys, set_=rest)
