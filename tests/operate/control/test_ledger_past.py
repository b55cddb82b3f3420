"""A read of the ledger goes through what is new of the log alone, and says what one through all of it would."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.operate.control import ledger_past
from phalanx.operate.control.ledger_past import LedgerPast
from phalanx.record.telemetry.ledger.history import fold
from tests.operate.control.control_bench import a_spec
from tests.operate.control.served import served


def test_a_read_folds_what_came_since_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_past, "PAGE", 2)
    with served(tmp_path / "home") as one:
        store, asked = one.bench.store, list[int]()
        original = store.events

        def counted(after: int = 0, *args: Any) -> Any:
            asked.append(after)
            return original(after, *args)

        monkeypatch.setattr(store, "events", counted)
        past = LedgerPast()
        before = 0
        for name in ("a", "b"):
            one.run(name)
            begun = one.bench.world.seq
            history, first_ms = past.history(store)
            everything = original(0, None, 1_000)
            assert (history, first_ms) == (fold(everything), everything[0].at_ms)
            assert asked[0] == before
            asked.clear()
            assert past.history(store)[0] == history
            assert asked == [begun], "nothing new: one look for it"
            asked.clear()
            before = begun
        one.end(one.run("c"))
        asked.clear()
        past.history(store)
        assert min(asked) == begun
        assert past.history(store)[0] == fold(original(0, None, 1_000))


def test_a_log_without_an_event_began_at_no_time(tmp_path: Path) -> None:
    with served(tmp_path / "home") as one:
        past = LedgerPast()
        past._seq = one.bench.world.seq
        assert past.history(one.bench.store)[1] is None
        job = one.bench.submit(a_spec("first"))
        assert past.history(one.bench.store)[1] == one.bench.world.jobs[job].submitted_ms
