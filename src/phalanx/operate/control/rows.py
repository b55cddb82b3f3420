"""What a transaction writes, as statements of the tables; and a row of the log as the event it was. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Table, insert
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.sql.dml import Insert

from phalanx.core import wire
from phalanx.core.events import Event, EventBody
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.policy import Policy
from phalanx.operate.control import tables
from phalanx.operate.control.fold import Changes
from phalanx.operate.control.world import AttemptRecord, JobRecord, ModelRecord, NodeRecord, QueueUsage


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: events, what they changed, outbox entries, notices to webhooks; and a submit key or a stream offset that
    came with them."""

    events: Sequence[Event]
    changes: Changes
    outbox: Sequence[Mapping[str, Any]] = ()
    sequence: int = 0
    key: tuple[str, JobId] | None = None
    offset: tuple[AttemptId, int, int] | None = None
    notices: Sequence[Mapping[str, Any]] = ()


def _event_row(item: Event) -> dict[str, Any]:
    body = wire.dumps(EventBody, item.body)
    return {"seq": item.seq, "at_ms": item.at_ms, "kind": item.body.kind, "job": getattr(item.body, "job", None), "body": body}


def _notice_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"webhook": entry["webhook"], "entry": json.dumps(entry), "tries": 0, "due_ms": entry["at_ms"]}


def event_of(row: Row[Any]) -> Event:
    """A row of the log."""
    return Event(row.seq, row.at_ms, wire.loads(EventBody, row.body))


def written(commit: Commit) -> Iterator[tuple[Insert, list[dict[str, Any]] | None]]:
    """Every statement of the transaction, with its rows where it has them apart."""
    for table, rows in (
        (tables.events, [_event_row(item) for item in commit.events]),
        (tables.outbox, [{"entry": json.dumps(entry)} for entry in commit.outbox]),
        (tables.notices, [_notice_row(entry) for entry in commit.notices]),
    ):
        if rows:
            yield insert(table), rows
    for statement in _puts(commit):
        yield statement, None


def _puts(commit: Commit) -> Iterator[Insert]:
    """Statements for the current tables, referenced rows first."""
    changes = commit.changes
    for job in changes.jobs.values():
        row = {"id": job.id, "sequence": job.sequence, "state": job.state.name, "record": wire.dumps(JobRecord, job)}
        yield put(tables.jobs, row)
    for attempt in changes.attempts.values():
        yield put(tables.attempts, {"id": attempt.id, "job": attempt.job, "record": wire.dumps(AttemptRecord, attempt)})
    for node in changes.nodes.values():
        yield put(tables.nodes, {"id": node.shape.node, "up": node.up, "record": wire.dumps(NodeRecord, node)})
    for model in changes.models:
        row = {"name": model.name, "version": model.version, "attempt": model.attempt}
        yield put(tables.models, {**row, "record": wire.dumps(ModelRecord, model)})
    for usage in changes.usage.values():
        yield put(tables.usage, {"queue": usage.queue, "record": wire.dumps(QueueUsage, usage)})
    if changes.policy is not None:
        yield put(tables.policy, {"name": "fleet", "record": wire.dumps(Policy, changes.policy)})
    yield put(tables.meta, {"key": "sequence", "value": commit.sequence})
    if commit.key is not None:
        yield put(tables.submits, {"key": commit.key[0], "job": commit.key[1]})
    if commit.offset is not None:
        attempt_of, rank, offset = commit.offset
        yield put(tables.streams, {"attempt": attempt_of, "rank": rank, "records_offset": offset})


def put(table: Table, row: Mapping[str, Any]) -> Insert:
    """Inserts the row, or replaces the one with its primary key."""
    keys = [column.name for column in table.primary_key]
    rest = {name: value for name, value in row.items() if name not in keys}
    return upsert(table).values(row).on_conflict_do_update(index_elements=keys, set_=rest)
