"""Rows that wait for delivery to a webhook. The store makes each in the transaction of its event, so none is forgotten."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from phalanx.operate.control.people import audit
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import deliveries as made
from phalanx.operate.control.tables import notices as table

KEPT: Final = 100
"""Of deliveries that were made or given up, of one team to one webhook."""

KEPT_OF_TEAM: Final = 2_000
"""To all its webhooks: none erases what others look for."""

DETAIL_CHARS_MAX: Final = 200
Outcome = Literal["accepted", "given_up"]


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


@dataclass(frozen=True, slots=True)
class Ended:
    """A notice that was accepted or given up at `ended_ms` (Unix time), after `notice.tries`, and why it was given up. seq: its
    number among those that ended; 0 where it has none yet."""

    notice: Notice
    ended_ms: int
    outcome: Outcome
    detail: str
    seq: int = 0


def done(store: Store, epoch: int, ended: Ended) -> None:
    """It does not wait any more, and is of the newest that are kept. Twice is harmless. Raises StoreUnavailable."""
    notice, team = ended.notice, str(ended.notice.entry.get("team", ""))
    row = {
        "notice": notice.seq, "team": team, "webhook": notice.webhook, "entry": json.dumps(dict(notice.entry)),
        "tries": notice.tries, "ended_ms": ended.ended_ms, "outcome": ended.outcome, "detail": ended.detail[:DETAIL_CHARS_MAX],
    }  # fmt: skip
    of_team = made.c.team == team
    with store.leading(epoch) as connection:
        if not connection.execute(delete(table).where(table.c.seq == notice.seq)).rowcount:
            return
        connection.execute(insert(made), row)
        _trim(connection, of_team & (made.c.webhook == notice.webhook), KEPT)
        _trim(connection, of_team, KEPT_OF_TEAM)


def _trim(connection: Connection, those: ColumnElement[bool], kept: int) -> None:
    """All but the `kept` that ended last."""
    too_many = select(made.c.seq).where(those).order_by(made.c.seq.desc()).offset(kept).limit(1).scalar_subquery()
    connection.execute(delete(made).where(those & (made.c.seq <= too_many)))


def history(store: Store, before: int | None, limit: int) -> list[Ended]:
    """Those of all receivers that are kept and ended before the one of that number, the newest first. Raises StoreUnavailable."""
    query = select(made).order_by(made.c.seq.desc()).limit(limit)
    with store.reading() as connection:
        rows = connection.execute(query if before is None else query.where(made.c.seq < before))
        return [
            Ended(Notice(row.notice, row.webhook, json.loads(row.entry), row.tries), row.ended_ms, row.outcome, row.detail, row.seq)
            for row in rows
        ]


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
