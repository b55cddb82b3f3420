"""The series: every measurement once, in arrival order, the same before and after sealing, a kill or a rebuild."""

import errno
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core import wire
from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.ids import AttemptId
from phalanx.core.messages import Stream
from phalanx.core.records import Metric, RankRecord, StepRecord
from phalanx.core.views import StepPage
from phalanx.record.telemetry import columns
from phalanx.record.telemetry.journal import Journal
from phalanx.record.telemetry.series import SeriesStore, rebuild
from tests.drawn import examples

ONE, TWO = AttemptId("tiny-lm-7.1"), AttemptId("tiny-lm-7.2")
BOTH = (ONE, TWO)


def step(number: int, rank: int = 0, loss: float = 2.5) -> StepRecord:
    return StepRecord(
        rank=rank,
        step=number,
        total_steps=400,
        loss=loss,
        loss_hex=loss.hex(),
        grad_norm=1.0,
        lr=0.005,
        tokens=1024,
        tokens_per_s=5000.0,
        mfu=0.25,
        started_ms=1_000 * number,
        ended_ms=1_000 * number + 900,
        data_wait_ms=3,
        data_wait_cause="store",
        comm_ms=40,
    )


def metric(number: int, name: str = "val_loss", value: float = 8.3) -> Metric:
    return Metric(rank=0, step=number, name=name, value=value, at_ms=number)


def test_a_part_from_before_a_column_came_is_read_beside_new_ones(tmp_path: Path) -> None:
    """As after an upgrade in the middle of an attempt."""
    store = SeriesStore(tmp_path, part_max=2)
    store.append(ONE, [step(1), metric(0)])
    part = tmp_path / f"{ONE}.parquet"
    duckdb.execute(f"COPY (SELECT * EXCLUDE (local_us) FROM read_parquet('{part}')) TO '{tmp_path / 'old'}' (FORMAT parquet)")
    (tmp_path / "old").replace(part)
    store.close()
    again, fast = SeriesStore(tmp_path, part_max=2), replace(step(2), local_us=7)
    again.append(ONE, [step(1), fast, metric(2)])
    assert (tmp_path / f"{ONE}.part1.parquet").exists()
    assert again.steps(ONE) == [step(1), fast] and again.metrics(ONE) == [metric(0), metric(2)]
    assert again.last_step(ONE) == fast


def test_the_step_before_is_of_the_same_rank_and_at_hand(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path, part_max=14)
    assert store.step_before(ONE, step(9), 5) is None
    store.append(ONE, [step(number, rank) for number in range(1, 7) for rank in (0, 1)] + [metric(3)])
    newest = store.last_step(ONE)
    assert newest == step(6)
    assert store.step_before(ONE, newest, 4) == step(2)
    assert store.step_before(ONE, newest, 100) == step(1)
    assert store.step_before(ONE, step(1), 100) is None
    store.append(ONE, [step(7)])  # which makes a part of all of them
    assert store.step_before(ONE, step(7), 100) is None
    store.append(ONE, [step(8), step(9)])
    assert store.step_before(ONE, step(9), 100) == step(7)
    assert store.step_before(ONE, step(9), 1) == step(8)
    store.seal(ONE)
    assert store.step_before(ONE, step(9), 100) is None


def test_a_live_reader_gets_each_record_once(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(1), metric(0)])
    first = store.page(BOTH)
    assert (first.steps, first.metrics, first.attempts) == ((step(1),), (metric(0),), (ONE,))
    assert store.page(BOTH, first.next) == StepPage(steps=(), metrics=(), attempts=(), next=first.next)
    store.append(ONE, [step(2)])
    store.append(TWO, [step(2), step(3)])
    second = store.page(BOTH, first.next)
    assert (second.steps, second.attempts) == ((step(2), step(2), step(3)), (ONE, TWO, TWO))
    store.append(ONE, [step(4)])  # late, of the attempt before
    assert store.page(BOTH, second.next).steps == (step(4),)


def test_a_page_is_narrowed_by_rank_and_attempt_and_limited(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    for attempt in BOTH:
        store.append(attempt, [step(number, rank) for number in range(1, 6) for rank in (0, 1)])
    assert [one.step for one in store.page(BOTH, rank=1, attempt=TWO).steps] == [1, 2, 3, 4, 5]
    seen: list[StepRecord] = []
    after = ""
    while (page := store.page(BOTH, after, rank=0, limit=3)).steps:
        assert len(page.steps) <= 3
        seen += page.steps
        after = page.next
    assert [one.step for one in seen] == [1, 2, 3, 4, 5] * 2


def test_repeats_are_dropped_by_rank_step_and_name(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    assert store.append(ONE, [step(1), step(1, rank=1), metric(1), metric(1, "other")]) == 4
    assert store.append(ONE, [step(1), replace(step(1), loss=9.0), metric(1)]) == 0
    store.seal(ONE)
    assert store.append(ONE, [step(1), metric(1, "other")]) == 0
    assert store.is_sealed(ONE)
    assert len(store.steps(ONE)) == 2


def test_what_comes_late_is_sealed_in(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(1)])
    after = store.page(BOTH).next
    store.seal(ONE)
    assert store.append(ONE, [step(1), step(2)]) == 1
    assert store.is_sealed(ONE)
    assert store.page(BOTH, after).steps == (step(2),)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{ONE}.parquet", f"{ONE}.part1.parquet"]


def test_nothing_known_is_empty_and_leaves_no_file(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [])
    store.seal(ONE)
    store.seal(TWO)
    assert store.page(BOTH) == StepPage(steps=(), metrics=(), attempts=(), next="")
    assert store.last_step(ONE) is None
    assert store.steps(TWO) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after", ["x", "1", "1_2_3", "1_-2", "1_2.", "1_" + "9" * 40, ".".join(["1_1"] * 20)])
def test_a_cursor_that_no_page_gave_is_refused(tmp_path: Path, after: str) -> None:
    with pytest.raises(UserError, match="after"):
        SeriesStore(tmp_path).page(BOTH, after)


def test_a_hostile_attempt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="attempt"):
        SeriesStore(tmp_path).append(AttemptId("../../etc-1.1"), [step(1)])


def test_many_attempts_keep_the_cursor_short(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    attempts = [AttemptId(f"serve-1.{number}") for number in range(1, 41)]
    for attempt in attempts:
        store.append(attempt, [step(1)])
    page = store.page(attempts)
    assert len(page.steps) == 40
    assert len(page.next) < 100
    assert store.page(attempts, page.next).steps == ()
    one_by_one, after = 0, ""
    while (page := store.page(attempts, after, limit=1)).steps:
        one_by_one, after = one_by_one + 1, page.next
    assert one_by_one == 40


def test_a_restarted_server_answers_the_same_and_cursors_go_on(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path / "a[1]*")  # DuckDB would read such a path as a pattern
    store.append(ONE, [step(1), metric(1)])
    store.seal(ONE)
    store.append(TWO, [step(1, rank=1), step(1)])
    before = store.page(BOTH)
    again = SeriesStore(tmp_path / "a[1]*")
    assert again.page(BOTH) == before
    again.append(TWO, [step(1), step(2)])
    assert again.page(BOTH, before.next).steps == (step(2),)


def test_a_torn_last_line_is_dropped_and_filled_in_again(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(1), step(2)])
    head = tmp_path / f"{ONE}.head"
    os.truncate(head, head.stat().st_size - 30)
    again = SeriesStore(tmp_path)
    assert again.steps(ONE) == [step(1)]
    assert again.append(ONE, [step(1), step(2)]) == 1
    assert SeriesStore(tmp_path).steps(ONE) == [step(1), step(2)]


@pytest.mark.parametrize(
    "garbage", [b"\0" * 4096, b'{"kind": "step"}\n', b"\xff\xfe\n", b'{"kind": "resumed"}\n', b"[" * 100_000 + b"\n"]
)
def test_a_garbled_head_is_cut_and_the_journal_fills_it_in_again(tmp_path: Path, garbage: bytes) -> None:
    journal, store = Journal(tmp_path / "journal"), SeriesStore(tmp_path / "series")
    records = [step(number) for number in range(1, 6)]
    journal.write("records", ONE, 0, 0, "".join(f"{wire.dumps(RankRecord, one)}\n" for one in records).encode())
    store.append(ONE, records)
    head = tmp_path / "series" / f"{ONE}.head"
    lines = head.read_bytes().splitlines(keepends=True)
    head.write_bytes(b"".join([*lines[:2], garbage, *lines[3:]]))
    again = SeriesStore(tmp_path / "series")
    rebuild(again, journal, [ONE])
    assert again.steps(ONE) == records
    assert SeriesStore(tmp_path / "series").steps(ONE) == records


def test_long_reading_tells_that_it_gets_on(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path / "series")
    store.append(ONE, [step(number) for number in range(1, 25_000)])
    told: list[None] = []
    again = SeriesStore(tmp_path / "series", lambda: told.append(None))
    assert again.last_step(ONE) == step(24_999)
    assert len(told) >= 3


def test_a_full_disk_seals_nothing_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(1)])

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for place in ("tempfile.mkdtemp", "phalanx.storage.atomic.os.fsync"):
        with monkeypatch.context() as patched:
            patched.setattr(place, full)
            with pytest.raises(StoreUnavailable, match="space"):
                store.seal(ONE)
        assert store.steps(ONE) == [step(1)]
    store.seal(ONE)
    assert (store.steps(ONE), store.is_sealed(ONE)) == ([step(1)], True)


def test_a_damaged_segment_is_the_worlds_and_no_bug(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    (tmp_path / f"{ONE}.parquet").write_bytes(b"PAR1 not one PAR1")
    with pytest.raises(StoreUnavailable, match=ONE):
        store.steps(ONE)


def test_a_long_attempt_leaves_the_memory_part_by_part(tmp_path: Path) -> None:
    journal, store = Journal(tmp_path / "journal"), SeriesStore(tmp_path / "series", part_max=100)
    records = [step(number) for number in range(1, 451)]
    journal.write("records", ONE, 0, 0, "".join(f"{wire.dumps(RankRecord, one)}\n" for one in records).encode())
    pages: list[int] = []
    after = ""
    for start in range(0, 450, 45):
        store.append(ONE, records[start : start + 45])
        page = store.page(BOTH, after)
        pages, after = pages + [one.step for one in page.steps], page.next
        assert len(store._heads[ONE].rows) < 100
    assert pages == list(range(1, 451))
    again = SeriesStore(tmp_path / "series", part_max=100)
    rebuild(again, journal, [ONE])
    assert (again.steps(ONE), again.last_step(ONE), again.is_sealed(ONE)) == (records, step(450), False)
    assert len(again._heads[ONE].rows) < 100
    assert again.append(ONE, records) == 0
    assert again.page(BOTH, after).steps == ()


def test_a_crash_between_a_part_and_the_emptied_head_counts_nothing_twice(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path, part_max=3)
    store.append(ONE, [step(1), step(2)])
    head = tmp_path / f"{ONE}.head"
    kept = head.read_bytes()
    store.append(ONE, [step(3)])
    assert head.read_bytes() == b""
    head.write_bytes(kept)
    again = SeriesStore(tmp_path, part_max=3)
    assert again.steps(ONE) == [step(1), step(2), step(3)]
    assert again.append(ONE, [step(2), step(4)]) == 1
    again.seal(ONE)
    assert SeriesStore(tmp_path).steps(ONE) == [step(number) for number in range(1, 5)]


def test_an_attempt_that_goes_on_after_a_part_and_a_restart_is_not_taken_for_a_sealed_one(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path, part_max=2)
    store.append(ONE, [step(1), step(2)])
    again = SeriesStore(tmp_path, part_max=2)
    assert not again.is_sealed(ONE)
    again.append(ONE, [step(3)])
    assert not (tmp_path / f"{ONE}.part1.parquet").exists()
    assert again.steps(ONE) == [step(1), step(2), step(3)]


def test_a_page_makes_no_more_records_than_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(number) for number in range(1, 1_001)])
    made, real = 0, columns._record

    def counted(*given: Any) -> columns.Measurement:
        nonlocal made
        made += 1
        return real(*given)

    monkeypatch.setattr(columns, "_record", counted)
    assert len(store.page([ONE], limit=10).steps) == 10
    assert made == 10


def test_a_crash_between_segment_and_head_counts_nothing_twice(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(1), step(2)])
    head = tmp_path / f"{ONE}.head"
    kept = head.read_bytes()
    store.seal(ONE)
    head.write_bytes(kept)
    again = SeriesStore(tmp_path)
    assert again.steps(ONE) == [step(1), step(2)]
    again.seal(ONE)
    assert again.steps(ONE) == [step(1), step(2)]
    assert not head.exists()


def test_the_journal_rebuilds_what_a_crashed_machine_lost(tmp_path: Path) -> None:
    journal, store = Journal(tmp_path / "journal"), SeriesStore(tmp_path / "series")
    records: list[StepRecord | Metric] = [*(step(number) for number in range(1, 4000)), metric(7)]
    data = "".join(f"{wire.dumps(RankRecord, one)}\n" for one in records).encode()
    journal.write("records", ONE, 0, 0, data + b'{"half')
    store.append(ONE, records[:3])
    store.append(TWO, [step(1)])
    store.seal(TWO)
    rebuild(store, journal, BOTH)
    assert store.steps(ONE) == records[:-1]
    assert store.metrics(ONE) == [metric(7)]
    assert store.steps(TWO) == [step(1)]


def test_within_one_boot_only_what_was_torn_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, store = Journal(tmp_path / "journal"), SeriesStore(tmp_path / "series")
    for attempt in BOTH:
        lines = [f"{wire.dumps(RankRecord, step(number))}\n" for number in range(1, 4)]
        journal.write("records", attempt, 0, 0, "".join(lines).encode())
    rebuild(store, journal, BOTH, "boot-1")
    read: list[AttemptId] = []
    real = journal.ranks

    def ranks(stream: Stream, attempt: AttemptId) -> tuple[int, ...]:
        read.append(attempt)
        return real(stream, attempt)

    monkeypatch.setattr(journal, "ranks", ranks)
    head = tmp_path / "series" / f"{ONE}.head"
    os.truncate(head, head.stat().st_size - 5)
    again = SeriesStore(tmp_path / "series")
    rebuild(again, journal, BOTH, "boot-1")
    assert read == [ONE]
    assert again.steps(ONE) == again.steps(TWO) == [step(1), step(2), step(3)]
    rebuild(SeriesStore(tmp_path / "series"), journal, BOTH, "boot-2")
    assert read == [ONE, *BOTH]
    shutil.copytree(tmp_path / "series", tmp_path / "copy")
    rebuild(SeriesStore(tmp_path / "copy"), journal, BOTH, "boot-2")
    assert read == [ONE, *BOTH, *BOTH]


def test_appended_records_survive_kill_9(tmp_path: Path) -> None:
    script = """
import sys
from dataclasses import replace
from pathlib import Path
from phalanx.core import wire
from phalanx.core.records import StepRecord
from phalanx.record.telemetry.series import SeriesStore
store, record = SeriesStore(Path(sys.argv[1])), wire.loads(StepRecord, sys.argv[2])
for number in range(1, 10**6):
    store.append("tiny-lm-7.1", [replace(record, step=number)])
    print(number, flush=True)
"""
    arguments = [sys.executable, "-c", script, str(tmp_path), wire.dumps(StepRecord, step(1))]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acked = [int(process.stdout.readline()) for _ in range(30)][-1]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    steps = [one.step for one in SeriesStore(tmp_path).steps(ONE)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= acked


def test_last_step_is_the_highest(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(5, rank=1), step(5), step(4), metric(9)])
    assert store.last_step(ONE) == step(5)
    store.seal(ONE)
    assert store.last_step(ONE) == step(5)


FLOATS = st.floats(width=64)
INTS = st.integers(-(2**53), 2**53)
STEPS = st.builds(
    StepRecord,
    rank=st.integers(0, 3),
    step=st.integers(1, 6),
    total_steps=INTS,
    loss=FLOATS,
    loss_hex=FLOATS.map(float.hex),
    grad_norm=FLOATS,
    lr=FLOATS,
    tokens=INTS,
    tokens_per_s=FLOATS,
    mfu=FLOATS,
    started_ms=INTS,
    ended_ms=INTS,
    comm_ms=INTS,
)
METRICS = st.builds(
    Metric,
    rank=st.integers(0, 3),
    step=st.integers(0, 3),
    name=st.sampled_from(["a", "é b", "'; --", "loss"]),
    value=FLOATS,
    at_ms=INTS,
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(STEPS | METRICS, max_size=8), max_size=5), st.integers(0, 3), st.integers(1, 7), st.integers(1, 20))
def test_sealing_changes_no_answer(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[StepRecord | Metric]], rank: int, limit: int, part_max: int
) -> None:
    store, in_parts = (SeriesStore(tmp_path_factory.mktemp("series"), part_max=size) for size in (10**6, part_max))
    for batch in batches:
        assert store.append(ONE, batch) == in_parts.append(ONE, batch)

    def answers(of: SeriesStore) -> list[str]:
        pages = [of.page(BOTH), of.page(BOTH, rank=rank), of.page(BOTH, limit=limit)]
        pages.append(of.page(BOTH, pages[-1].next, limit=limit))
        return [*map(repr, pages), repr(of.last_step(ONE)), repr(of.steps(ONE)), repr(of.metrics(ONE))]  # repr: NaN is not NaN

    before = answers(store)
    assert answers(in_parts) == before
    assert answers(SeriesStore(in_parts._root, part_max=part_max)) == before
    for batch in batches:
        assert in_parts.append(ONE, batch) == 0
    in_parts.seal(ONE)
    assert answers(in_parts) == before
    reopened = SeriesStore(store._root)
    assert answers(reopened) == before
    store.seal(ONE)
    assert answers(store) == before
    keys = {(one.rank, one.step, getattr(one, "name", "")) for batch in batches for one in batch}
    assert len(store.steps(ONE)) + len(store.metrics(ONE)) == len(keys)
    assert not any(math.isnan(one.step) for one in store.steps(ONE))
    store.close()
    in_parts.close()
    reopened.close()
