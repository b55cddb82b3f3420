"""The database: event log, current tables and outbox, written together. One writer; every write checks that it still leads.

A database that is away, locked or full is StoreUnavailable: the same call may be made again. Nothing was changed then, unless the
error came with the commit itself: `last_seq` tells. A statement that the database refuses for what it says is a Bug. What makes a
home unusable (a newer schema, no permission to write) is a SetupError when it is opened.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Row, bindparam, delete, func, select, update
from sqlalchemy.exc import SQLAlchemyError

from phalanx.core import wire
from phalanx.core.errors import Bug, StoreUnavailable
from phalanx.core.events import Event
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.policy import Policy
from phalanx.operate.control import migrations, tables
from phalanx.operate.control.databases import BUSY_MS, Connect, open_database
from phalanx.operate.control.databases.sqlite import Sqlite
from phalanx.operate.control.fold import world_of
from phalanx.operate.control.rows import Commit, event_of, put, written
from phalanx.operate.control.world import AttemptRecord, JobRecord, ModelRecord, NodeRecord, QueueUsage, World

FIRST_LEASED: Final = "0004"
"""The first schema with a lease. One before it has no leader of this version to be asked."""


T = TypeVar("T")


class Superseded(Bug):
    """Another control plane leads this database: this one must end, not try again."""


@dataclass(frozen=True, slots=True)
class Held:
    """Who leads. expires_ms: when the lease is over on the database's clock; left_ms: from now on, negative once it is."""

    epoch: int
    holder: str
    expires_ms: int
    left_ms: int


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An entry that the tracker has yet to take over. `seq` is never used again."""

    seq: int
    entry: dict[str, Any]


class Store:
    """Opens, makes or upgrades the database at a path or SQLAlchemy URL. Usable from any thread; one thread should write."""

    def __init__(self, where: str | Path, busy_ms: int = BUSY_MS, connect: Connect | None = None, upgrade: bool = True) -> None:
        """`connect` opens the SQLite database instead, of which one connection then serves every thread: one in memory. Without
        `upgrade` the schema is left as it is, and nothing is asked of the database.

        Raises SetupError when the database is of a newer version or cannot be used."""
        self._database = open_database(where, busy_ms, connect)
        if upgrade:
            try:
                self.upgrade()
            except BaseException:
                self.close()
                raise

    def upgrade(self) -> None:
        """Brings the schema to this version's, in one transaction. Raises SetupError as above, Bug."""
        try:
            with self._database.migrating() as connection:
                migrations.upgrade(connection)
        except migrations.NewerSchema as error:
            raise self._database.newer(error.revision) from error
        except SQLAlchemyError as error:
            raise self._database.unusable(error) or self._refused(error) from error

    def restored(self, fill: Callable[[Connection], T]) -> T:
        """What `fill` makes of an empty database, in one transaction in which nobody else migrates. Raises what it raises, Bug, and
        SetupError for a database that cannot be used."""
        try:
            with self._database.migrating() as connection:
                return fill(connection)
        except SQLAlchemyError as error:
            raise self._database.unusable(error) or self._refused(error) from error

    def revision(self) -> str:
        """Of the schema that the database has, '' for an empty one. Raises SetupError when it is newer or cannot be used."""
        try:
            with self._database.reading() as connection:
                return migrations.revision(connection)
        except migrations.NewerSchema as error:
            raise self._database.newer(error.revision) from error
        except SQLAlchemyError as error:
            raise self._database.unusable(error) or self._refused(error) from error

    def identity(self) -> int:
        """The number by which this database is known, wherever it was copied to. Raises StoreUnavailable."""
        with self._reading() as connection:
            return _number(connection, "identity")

    @property
    def shown(self) -> str:
        """Which database this is, for people; never its password."""
        return self._database.shown

    @property
    def is_file(self) -> bool:
        """Whether it is a file of this machine, whose locks are its processes'."""
        return isinstance(self._database, Sqlite)

    def close(self) -> None:
        """Ends every connection."""
        self._database.close()

    # Leadership

    def take_lead(self) -> int:
        """The next epoch, whoever leads, and no lease: for one that is told that it is alone, as in a simulation. From now on every
        older leader's write is refused. Raises StoreUnavailable."""
        claimed = self.claim_lead("", 0, lambda holder: True)
        assert isinstance(claimed, int), "nobody is waited for"
        return claimed

    def claim_lead(self, holder: str, lease_ms: int, is_gone: Callable[[str], bool]) -> int | Held:
        """The next epoch, and a lease for `holder`; or who has one that is not over. `is_gone`: of whom nobody need wait for that.
        Raises StoreUnavailable."""
        with self._writing() as connection:
            held = self._held(connection, _lead(connection))
            if held.holder and held.left_ms > 0 and not is_gone(held.holder):
                return held
            leads = {"epoch": held.epoch + 1, "holder": holder, "expires_ms": held.expires_ms - held.left_ms + lease_ms}
            connection.execute(update(tables.lead).values(leads))
        return held.epoch + 1

    def renew_lead(self, holder: str, lease_ms: int) -> None:
        """The lease counts anew. A crash of the machine may forget that. Raises Superseded, StoreUnavailable."""
        with self._told_apart(), self._database.writing(durable=False) as connection:
            held = self._held(connection, _lead(connection))
            if held.holder != holder:
                by = f"epoch {held.epoch}, {held.holder or 'which has no lease'}"
                raise Superseded(f"this control plane was superseded by {by}: another one leads {self.shown}")
            connection.execute(update(tables.lead).values(expires_ms=held.expires_ms - held.left_ms + lease_ms))

    def release_lead(self, holder: str) -> None:
        """Nobody has a lease any more, if it was this one's. Raises StoreUnavailable."""
        with self._writing() as connection:
            if _lead(connection).holder == holder:
                connection.execute(update(tables.lead).values(holder="", expires_ms=0))

    def leader(self) -> Held:
        """Who has the lease. Raises StoreUnavailable."""
        with self._reading() as connection:
            return self._held(connection, connection.execute(select(tables.lead)).one())

    def _held(self, connection: Connection, row: Row[Any]) -> Held:
        now_ms = int(connection.execute(self._database.now_ms).scalar_one())
        return Held(row.epoch, row.holder, row.expires_ms, row.expires_ms - now_ms)

    def raise_epoch(self, epoch: int, to: int) -> int:
        """Makes the leader's number `to`, and answers with it. Raises Bug when `epoch` leads no more, and StoreUnavailable: then it
        may be done all the same, and whether by this leader or by another one that chose the number, nobody can tell."""
        with self._leading(epoch) as connection:
            connection.execute(update(tables.lead).values(epoch=max(epoch, to)))
        return max(epoch, to)

    @contextmanager
    def _leading(self, epoch: int) -> Iterator[Connection]:
        """A write transaction of the leader. Raises Bug when another took over: this process must end, not try again."""
        with self._writing() as connection:
            self._check_lead(_lead(connection).epoch, epoch)
            yield connection

    def check_lead(self, epoch: int) -> None:
        """Raises Bug when another took over, StoreUnavailable."""
        with self._reading() as connection:
            self._check_lead(connection.execute(_EPOCH).scalar_one(), epoch)

    def _check_lead(self, leader: int, epoch: int) -> None:
        if leader != epoch:
            raise Superseded(f"epoch {epoch} was superseded by {leader}: another control plane leads {self.shown}")

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

    def set_tokens(self, epoch: int, roles: Mapping[str, str], created_ms: int) -> None:
        """Makes `roles` (SHA-256 of a token to its role) the tokens of this home; older ones open nothing any more. Raises Bug when
        superseded, StoreUnavailable."""
        with self._leading(epoch) as connection:
            connection.execute(delete(tables.tokens).where(tables.tokens.c.sha256.not_in(list(roles))))
            for sha256, role in roles.items():
                row = {"sha256": sha256, "role": role, "name": role, "created_ms": created_ms}
                connection.execute(put(tables.tokens, *row, replaces=False), row)

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
        with self._told_apart(), self._database.writing() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._told_apart(), self._database.reading() as connection:
            yield connection

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        """The database's trouble from ours."""
        try:
            yield
        except SQLAlchemyError as error:
            if self._database.is_away(error):
                raise StoreUnavailable(self._database.words(error)) from error
            raise self._refused(error) from error

    def _refused(self, error: SQLAlchemyError) -> Bug:
        return Bug(f"the database refused a statement of ours: {self._database.words(error)}")


_LOADS: Final = (
    (JobRecord, select(tables.jobs.c.record).order_by(tables.jobs.c.sequence)),
    (AttemptRecord, select(tables.attempts.c.record)),
    (NodeRecord, select(tables.nodes.c.record)),
    (ModelRecord, select(tables.models.c.record).order_by(tables.models.c.name, tables.models.c.version)),
    (QueueUsage, select(tables.usage.c.record)),
    (Policy, select(tables.policy.c.record)),
)


_VALUE: Final = select(tables.meta.c.value).where(tables.meta.c.key == bindparam("name"))
_EPOCH: Final = select(tables.lead.c.epoch)
_LEAD: Final = select(tables.lead).with_for_update()
"""Made once: they are asked in every tick and in every transaction."""


def _lead(connection: Connection) -> Row[Any]:
    """The lease row, locked: whoever writes waits here for the one before, and sees what that one did."""
    return connection.execute(_LEAD).one()


def _number(connection: Connection, key: str) -> int:
    return int(connection.execute(_VALUE, {"name": key}).scalar() or 0)


def _last_seq(connection: Connection) -> int:
    return int(connection.execute(select(func.max(tables.events.c.seq))).scalar() or 0)
