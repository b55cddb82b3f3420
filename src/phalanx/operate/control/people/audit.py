"""Who changed what: rows that are only ever appended, each in the transaction of its change. No row has a secret or a token in it.

Refused attempts are rows too, so many at most that a flood of them fills no disk: what is beyond is counted in the next one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, insert, select

from phalanx.core.people import AuditView
from phalanx.operate.control import tables
from phalanx.operate.control.people.buckets import Buckets
from phalanx.operate.control.store import Store

PAGE_MAX: Final = 1_000
DONE: Final = "done"
REFUSED: Final = "refused"

REFUSALS_BURST: Final = 200
REFUSALS_PER_S: Final = 1 / 30
"""At most about 3,000 rows a day, under 1 MB, however many are refused."""

_WIDTHS: Final = {"who": 64, "token": 16, "what": 32, "target": 255, "address": 64, "outcome": 16, "detail": 500}
_ROWS: Final = tables.audit.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One row that is to be. who: the user; token: its id. what: such as `job.cancel`, on `target`. address: from where."""

    at_ms: int
    who: str
    token: str
    what: str
    target: str
    address: str
    outcome: str = DONE
    detail: str = ""


def row_of(note: Note) -> dict[str, Any]:
    """As the table has it: cut to its columns and escaped, since a row that a database refuses would take its change with it."""
    texts = {name: _fitting(getattr(note, name), width) for name, width in _WIDTHS.items()}
    return {"at_ms": note.at_ms, **texts}


def write(connection: Connection, note: Note) -> None:
    """In the transaction of the change."""
    connection.execute(insert(tables.audit).values(row_of(note)))


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


def _fitting(text: str, width: int) -> str:
    """Printable, so that no row forges another where it is shown, and no longer than its column."""
    plain = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    plain = plain.encode(errors="backslashreplace").decode()
    return plain if len(plain) <= width else f"{plain[: width - 1]}…"


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


def rows_of(notes: Iterable[Note]) -> list[dict[str, Any]]:
    """As the table has them."""
    return [row_of(note) for note in notes]
