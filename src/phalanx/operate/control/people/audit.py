"""Who changed what: rows that are only ever appended, each in the transaction of its change. No row has a secret or a token in it.

Refused attempts are rows too, so many at most that a flood of them fills no disk: what is beyond is counted in the next one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, insert, select

from phalanx.core.people import AuditView
from phalanx.operate.control import tables
from phalanx.operate.control.people.buckets import Buckets
from phalanx.operate.control.people.notes import REFUSED, Note, row_of
from phalanx.operate.control.store import Store

PAGE_MAX: Final = 1_000

REFUSALS_BURST: Final = 200
REFUSALS_PER_S: Final = 1 / 30
"""At most about 3,000 rows a day, under 1 MB, however many are refused."""

_ROWS: Final = tables.audit.c


def write(connection: Connection, note: Note | None) -> None:
    """In the transaction of the change, where somebody asked for it."""
    if note is None:
        return
    connection.execute(insert(tables.audit).values(row_of(note)))


def append(store: Store, epoch: int, note: Note) -> None:
    """A row of its own, for what no transaction of ours changes. Raises StoreUnavailable."""
    with store.leading(epoch) as connection:
        write(connection, note)


def page(store: Store, wanted: Mapping[str, str], since_ms: int, after: int, limit: int, newest: bool) -> tuple[AuditView, ...]:
    """Rows beyond number `after`, not before `since_ms`, oldest first: the first `limit`, or the last when `newest`.

    wanted: `by`, `what`, `on`; '' is any. A `what` such as `job` is everything that begins with `job.`. Raises StoreUnavailable.
    """
    query = select(tables.audit).where(_ROWS.seq > after, _ROWS.at_ms >= since_ms)
    for condition in _conditions(wanted):
        query = query.where(condition)
    query = query.order_by(_ROWS.seq.desc() if newest else _ROWS.seq).limit(limit)
    with store.reading() as connection:
        found = [_view(row) for row in connection.execute(query)]
    return tuple(found[::-1] if newest else found)


def _conditions(wanted: Mapping[str, str]) -> Iterator[Any]:
    if wanted.get("by"):
        yield _ROWS.who == wanted["by"]
    if what := wanted.get("what"):
        yield _ROWS.what == what if "." in what else _ROWS.what.startswith(f"{what}.", autoescape=True)
    if wanted.get("on"):
        yield _ROWS.target == wanted["on"]


def _view(row: Any) -> AuditView:
    return AuditView(
        seq=row.seq,
        at_ms=row.at_ms,
        by=row.who,
        token=row.token,
        what=row.what,
        on=row.target,
        address=row.address,
        outcome=row.outcome,
        detail=row.detail,
    )


class Refusals:
    """Which refused attempts are written. Not thread-safe: of one event loop."""

    def __init__(self, per_s: float = REFUSALS_PER_S, burst: float = REFUSALS_BURST) -> None:
        self._buckets = Buckets(per_s, burst, keys_max=1)
        self._left_out = 0

    def kept(self, note: Note, now_s: float) -> Note | None:
        """The row to write, or None when there were too many of late. now_s: monotonic."""
        if self._buckets.take("", now_s) > 0:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        more = f"; {left_out} more refused attempts before it were not written" if left_out else ""
        return replace(note, outcome=REFUSED, detail=f"{note.detail}{more}")
