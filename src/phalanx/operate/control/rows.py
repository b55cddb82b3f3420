"""What a transaction writes, as statements of the tables; and a row of the log as the event it was. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Executable, Row, Table, TextClause, bindparam, insert, text

from phalanx.core import wire
from phalanx.core.events import Event, EventBody
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.policy import Policy
from phalanx.operate.control import tables
from phalanx.operate.control.fold import Changes
from phalanx.operate.control.people.notes import Note, row_of
from phalanx.operate.control.world import AttemptRecord, JobRecord, ModelRecord, NodeRecord, QueueUsage


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: events, what they changed, outbox entries, notices to webhooks; and a submit key or a stream offset that
    came with them; who asked for it."""

    events: Sequence[Event]
    changes: Changes
    outbox: Sequence[Mapping[str, Any]] = ()
    sequence: int = 0
    key: tuple[str, JobId] | None = None
    offset: tuple[AttemptId, int, int] | None = None
    notices: Sequence[Mapping[str, Any]] = ()
    note: Note | None = None


def _event_row(item: Event) -> dict[str, Any]:
    body = wire.dumps(EventBody, item.body)
    return {"seq": item.seq, "at_ms": item.at_ms, "kind": item.body.kind, "job": getattr(item.body, "job", None), "body": body}


def _notice_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"webhook": entry["webhook"], "entry": json.dumps(entry), "tries": 0, "due_ms": entry["at_ms"]}


def event_of(row: Row[Any]) -> Event:
    """A row of the log."""
    return Event(row.seq, row.at_ms, wire.loads(EventBody, row.body))


def written(commit: Commit) -> Iterator[tuple[Executable, list[dict[str, Any]]]]:
    """Every statement of the transaction, with its rows: one for each table, however many rows it gets."""
    for table, rows in (
        (tables.events, [_event_row(item) for item in commit.events]),
        (tables.outbox, [{"entry": json.dumps(entry)} for entry in commit.outbox]),
        (tables.notices, [_notice_row(entry) for entry in commit.notices]),
        (tables.audit, [row_of(commit.note)] if commit.note else []),
    ):
        if rows:
            yield insert(table), rows
    for table, rows in _puts(commit):
        if rows:
            yield put(table, *rows[0]), rows


def _puts(commit: Commit) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    """Rows of the current tables, referenced ones first."""
    changes = commit.changes
    yield tables.jobs, [_job_row(job) for job in changes.jobs.values()]
    yield tables.attempts, [_attempt_row(attempt) for attempt in changes.attempts.values()]
    yield tables.nodes, [_node_row(node) for node in changes.nodes.values()]
    yield tables.models, [_model_row(model) for model in changes.models]
    yield tables.usage, [{"queue": usage.queue, "record": wire.dumps(QueueUsage, usage)} for usage in changes.usage.values()]
    if changes.policy is not None:
        yield tables.policy, [{"name": "fleet", "record": wire.dumps(Policy, changes.policy)}]
    yield tables.meta, [{"key": "sequence", "value": commit.sequence}]
    if commit.key is not None:
        yield tables.submits, [{"key": commit.key[0], "job": commit.key[1]}]
    if commit.offset is not None:
        attempt_of, rank, offset = commit.offset
        yield tables.streams, [{"attempt": attempt_of, "rank": rank, "records_offset": offset}]


def _job_row(job: JobRecord) -> dict[str, Any]:
    return {
        "id": job.id,
        "sequence": job.sequence,
        "state": job.state.name,
        "record": wire.dumps(JobRecord, job),
        "team": job.spec.team,
    }


def _attempt_row(attempt: AttemptRecord) -> dict[str, Any]:
    return {"id": attempt.id, "job": attempt.job, "record": wire.dumps(AttemptRecord, attempt)}


def _node_row(node: NodeRecord) -> dict[str, Any]:
    return {"id": node.shape.node, "up": node.up, "record": wire.dumps(NodeRecord, node)}


def _model_row(model: ModelRecord) -> dict[str, Any]:
    row = {"name": model.name, "version": model.version, "attempt": model.attempt}
    return {**row, "record": wire.dumps(ModelRecord, model)}


@cache
def put(table: Table, *columns: str, replaces: bool = True) -> TextClause:
    """Inserts rows with these columns, or replaces those with their primary keys; where it does not replace, it leaves them. Both
    databases understand the same words."""
    keys = [column.name for column in table.primary_key]
    rest = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in keys)
    into, values = ", ".join(map('"{}"'.format, columns)), ", ".join(map(":{}".format, columns))
    names = ", ".join(map('"{}"'.format, keys))
    does = f"UPDATE SET {rest}" if rest and replaces else "NOTHING"
    statement = text(f'INSERT INTO "{table.name}" ({into}) VALUES ({values}) ON CONFLICT ({names}) DO {does}')  # noqa: S608 (our names)
    return statement.bindparams(*(bindparam(name, type_=table.c[name].type) for name in columns))
