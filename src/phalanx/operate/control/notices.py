"""Rows that wait for delivery to a webhook. The store makes each in the transaction of its event, so none is forgotten."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import delete, func, select, update

from phalanx.operate.control.people import audit
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import notices as table


@dataclass(frozen=True, slots=True)
class Notice:
    """A row: `webhook` is where to, `entry` what `occasions` made, `tries` how often it was sent without being accepted."""

    seq: int
    webhook: str
    entry: Mapping[str, Any]
    tries: int


def receivers(store: Store, now_ms: int) -> list[str]:
    """Webhooks for which something is due by now, the longest due first. Raises StoreUnavailable."""
    query = select(table.c.webhook).where(table.c.due_ms <= now_ms).group_by(table.c.webhook).order_by(func.min(table.c.due_ms))
    with store.reading() as connection:
        return list(connection.execute(query).scalars())


def due(store: Store, webhook: str, now_ms: int, limit: int) -> list[Notice]:
    """Those for one receiver that are due by now, those tried least often first. Raises StoreUnavailable."""
    mine = (table.c.webhook == webhook) & (table.c.due_ms <= now_ms)
    query = select(table).where(mine).order_by(table.c.tries, table.c.seq).limit(limit)
    with store.reading() as connection:
        return [Notice(row.seq, row.webhook, json.loads(row.entry), row.tries) for row in connection.execute(query)]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A notice, and when it is tried next."""

    notice: Notice
    due_ms: int


def waiting(store: Store, after: int, limit: int) -> list[Waiting]:
    """Those of all receivers beyond number `after`, in order. Raises StoreUnavailable."""
    query = select(table).where(table.c.seq > after).order_by(table.c.seq).limit(limit)
    with store.reading() as connection:
        return [_waiting(row) for row in connection.execute(query)]


def hurry(store: Store, epoch: int, seq: int, now_ms: int, note: Note | None = None) -> Waiting | None:
    """That one, and whatever waits for the same receiver, is due by now: a lane goes on from its first. None when it is not there.
    Raises StoreUnavailable."""
    with store.leading(epoch) as connection:
        row = connection.execute(select(table).where(table.c.seq == seq)).first()
        if row is None:
            return None
        late = (table.c.webhook == row.webhook) & (table.c.due_ms > now_ms)
        connection.execute(update(table).where(late).values(due_ms=now_ms))
        audit.write(connection, note)
        return replace(_waiting(row), due_ms=min(row.due_ms, now_ms))


def _waiting(row: Any) -> Waiting:
    return Waiting(Notice(row.seq, row.webhook, json.loads(row.entry), row.tries), row.due_ms)


def num_waiting(store: Store, webhook: str) -> int:
    """How many wait for one receiver, due or not. Raises StoreUnavailable."""
    with store.reading() as connection:
        return int(connection.execute(select(func.count()).where(table.c.webhook == webhook)).scalar_one())


def done(store: Store, epoch: int, seq: int) -> None:
    """It was accepted, or given up; twice is harmless. Raises StoreUnavailable."""
    with store.leading(epoch) as connection:
        connection.execute(delete(table).where(table.c.seq == seq))


def put_off(store: Store, epoch: int, failed: Notice, due_ms: int) -> None:
    """`failed` was tried once more. Others for the same receiver need not be: none of them is due before `due_ms`."""
    sooner = (table.c.webhook == failed.webhook) & (table.c.due_ms < due_ms)
    with store.leading(epoch) as connection:
        connection.execute(update(table).where(table.c.seq == failed.seq).values(tries=table.c.tries + 1))
        connection.execute(update(table).where(sooner).values(due_ms=due_ms))


def keep_newest(store: Store, epoch: int, webhook: str, keep: int) -> int:
    """Gives up the oldest for one receiver beyond `keep`, and says how many. Raises StoreUnavailable."""
    mine = table.c.webhook == webhook
    newest_too_many = select(table.c.seq).where(mine).order_by(table.c.seq.desc()).offset(keep).limit(1).scalar_subquery()
    with store.leading(epoch) as connection:
        return connection.execute(delete(table).where(mine & (table.c.seq <= newest_too_many))).rowcount
