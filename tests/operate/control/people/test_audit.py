"""The audit log: rows as they were meant, found by who, what and when; and a flood of refusals that fills no disk."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.operate.control.people import audit
from phalanx.operate.control.people.audit import Refusals
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.store import Store

NOTE = Note(at_ms=5, who="ada", token="0a1b", what="job.cancel", target="tiny-1", address="10.0.0.7")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "phalanx.db")
    opened.take_lead()
    with opened.leading(1) as connection:
        for number in range(6):
            audit.write(connection, replace(NOTE, at_ms=number, who="ada" if number % 2 else "bob"))
        audit.write(connection, replace(NOTE, at_ms=9, what="jobless.x", target="other"))
    yield opened
    opened.close()


def test_rows_are_found_by_who_what_on_and_when(store: Store) -> None:
    def found(
        by: str = "", what: str = "", on: str = "", since_ms: int = 0, after: int = 0, limit: int = 9, newest: bool = False
    ) -> list[int]:
        return [row.seq for row in audit.page(store, {"by": by, "what": what, "on": on}, since_ms, after, limit, newest)]

    assert found() == [1, 2, 3, 4, 5, 6, 7]
    assert found(by="bob") == [1, 3, 5]
    assert found(what="job") == found(what="job.cancel") == found(on="tiny-1") == [1, 2, 3, 4, 5, 6]
    assert found(what="job_") == found(what="%") == []
    assert found(since_ms=5) == [6, 7]
    assert (found(after=2, limit=2), found(limit=2, newest=True)) == ([3, 4], [6, 7])


def test_a_row_is_printable_and_fits(store: Store) -> None:
    with store.leading(1) as connection:
        audit.write(connection, replace(NOTE, target="x\x1b[2J\n" + "y" * 999, detail="\ud800\0"))
    row = audit.page(store, {}, 0, 0, 1, True)[0]
    assert row.on.isprintable() and len(row.on) == 255 and row.on.endswith("…")
    assert row.detail == "\\ud800\\x00"


def test_a_flood_of_refusals_is_counted_and_not_written() -> None:
    refusals = Refusals(per_s=1.0, burst=3)
    kept = [refusals.kept(NOTE, 10.0) for _ in range(100)]
    assert sum(note is not None for note in kept) == 3
    later = refusals.kept(NOTE, 11.0)
    assert later is not None and later.outcome == "refused" and "97 more" in later.detail
    assert refusals.kept(NOTE, 11.0) is None
