"""Batches fetched ahead: the same ones, in order, a step that counts delivered ones, errors at their batch, no thread left."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import Indices, batch_indices, rank_slice
from phalanx.job.data.stream import BatchStream, _Ahead, _Fetched
from phalanx.job.data.waits import Span, causes
from tests.drawn import examples
from tests.job.data.random_tokens import write_tokens

SEQUENCE = 500
BATCH = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("stream") / "data"
    write_tokens(folder, [600_000, 70_000, 1_100])
    return open_data(folder)


def order_of(data: TokenData) -> Callable[[int], Indices]:
    count = data.num_samples("train", SEQUENCE)
    return lambda step: batch_indices(3, step, BATCH, count)


def wait_until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def threads_of_streams() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("data-train-")]


@settings(max_examples=examples(25), deadline=None)
@given(
    depth=st.integers(1, 6),
    threads=st.integers(1, 4),
    keep=st.integers(1, 3),
    start=st.integers(0, 10**6),
    count=st.integers(0, 20),
)
def test_the_batches_are_those_of_the_order_whatever_fetches_them(
    data: TokenData, depth: int, threads: int, keep: int, start: int, count: int
) -> None:
    """And a delivered one stays as it is until `keep` others were delivered."""
    order = order_of(data)
    wanted = [data.gather("train", order(step), SEQUENCE) for step in range(start, start + count)]
    kept: list[np.ndarray] = []
    with BatchStream(data, "train", SEQUENCE, order, start, start + count, depth=depth, threads=threads, keep=keep) as stream:
        for step, rows in enumerate(stream):
            kept.append(rows)
            for back in range(min(keep, step + 1)):
                assert (kept[step - back] == wanted[step - back]).all()
        assert len(kept) == count
        assert len({id(rows.base) for rows in kept}) <= depth + keep, "arrays are used again"
        assert stream.step == start + count
    assert threads_of_streams() == []


def test_d13_the_step_counts_delivered_batches_not_fetched_ones(data: TokenData) -> None:
    """And d01: a stream that begins at it goes on with the very next one."""
    order = order_of(data)
    with BatchStream(data, "train", SEQUENCE, order, depth=5) as stream:
        wait_until(lambda: stream.num_ahead == 5, "batches are fetched ahead")
        assert stream.step == 0
        for _ in range(3):
            next(stream)
        wait_until(lambda: stream.num_ahead == 5, "batches are fetched ahead")
        step = stream.step
        assert step == stream.stats.delivered == 3
        expected = next(stream).copy()
    with BatchStream(data, "train", SEQUENCE, order, step) as resumed:
        assert (next(resumed) == expected).all()


def test_no_more_than_depth_batches_are_asked_for_ahead(data: TokenData) -> None:
    asked: list[int] = []
    order = order_of(data)

    def noted(step: int) -> Indices:
        asked.append(step)
        return order(step)

    with BatchStream(data, "train", SEQUENCE, noted, depth=2, threads=3) as stream:
        for delivered in range(1, 6):
            next(stream)
            wait_until(lambda: stream.num_ahead == 2, "batches are fetched ahead")
            assert sorted(asked) == list(range(delivered + 2))


def test_ranks_of_any_number_read_one_global_batch(data: TokenData) -> None:
    order = order_of(data)
    whole = data.gather("train", order(7), SEQUENCE)
    for world_size in (1, 2, 4):
        parts = []
        for rank in range(world_size):
            mine = lambda step, rank=rank: rank_slice(order(step), rank, world_size)  # noqa: E731, B023
            with BatchStream(data, "train", SEQUENCE, mine, 7) as stream:
                parts.append(next(stream).copy())
        assert (np.concatenate(parts) == whole).all()


def test_a_batch_may_have_another_size_than_the_one_before(data: TokenData) -> None:
    sizes = [1, 6, 2, 0, 9, 3]
    with BatchStream(data, "train", SEQUENCE, lambda step: np.arange(sizes[step]), stop=len(sizes), depth=1) as stream:
        for size, rows in zip(sizes, stream, strict=True):
            assert (rows == data.gather("train", np.arange(size), SEQUENCE)).all()


def test_arrays_of_the_caller_are_filled_even_parts_of_one(data: TokenData) -> None:
    """As with one piece of pinned memory."""
    pool, given = np.full((4, BATCH, SEQUENCE + 1), -1), iter(range(4))
    order = order_of(data)
    with BatchStream(data, "train", SEQUENCE, order, stop=9, depth=3, buffers=lambda _: pool[next(given)]) as stream:
        for step, rows in enumerate(stream):
            assert np.shares_memory(rows, pool)
            assert (rows == data.gather("train", order(step), SEQUENCE)).all()


def test_damage_is_raised_at_its_batch_and_not_before(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [3 * 2**19])
    with (tmp_path / "data" / "train-00000.bin").open("r+b") as file:
        file.seek(2**20 + 5)
        file.write(b"\xff\xff\xff")
    data, per_block = open_data(tmp_path / "data"), 2**19 // SEQUENCE
    with BatchStream(data, "train", SEQUENCE, lambda step: np.array([step * per_block // 3])) as stream:
        for _ in range(3):
            next(stream)
        for _ in range(2):  # again when tried again
            with pytest.raises(DataError, match=r"train-00000\.bin.*damaged"):
                next(stream)
            assert stream.step == 3
    assert threads_of_streams() == []


def test_an_order_that_fails_is_heard_at_its_step(data: TokenData) -> None:
    order = order_of(data)

    def failing(step: int) -> Indices:
        if step == 2:
            raise SystemExit("no such step")
        return order(step) if step < 2 else np.array([10**12])

    with BatchStream(data, "train", SEQUENCE, failing, threads=3) as stream:
        next(stream)
        next(stream)
        with pytest.raises(SystemExit):
            next(stream)


def test_a_sample_outside_the_split_is_an_error_of_the_order(data: TokenData) -> None:
    with BatchStream(data, "train", SEQUENCE, lambda step: np.array([10**12])) as stream, pytest.raises(IndexError):
        next(stream)


def test_numbers_that_make_no_stream_are_refused(data: TokenData) -> None:
    for options in ({"depth": 0}, {"threads": 0}, {"keep": 0}, {"start": -1}):
        with pytest.raises(DataError):
            BatchStream(data, "train", SEQUENCE, order_of(data), **options)  # type: ignore[arg-type] # numbers all
    assert threads_of_streams() == []


def test_a_closed_or_forgotten_stream_leaves_no_thread(data: TokenData) -> None:
    stream = BatchStream(data, "train", SEQUENCE, order_of(data))
    next(stream)
    stream.close()
    stream.close()
    assert threads_of_streams() == []
    with pytest.raises(ValueError, match="closed"):
        next(stream)
    forgotten = BatchStream(data, "train", SEQUENCE, order_of(data))
    next(forgotten)
    del forgotten
    gc.collect()
    assert threads_of_streams() == []


def test_a_process_that_forgets_to_close_ends(data: TokenData) -> None:
    program = (
        "import sys, numpy\nfrom pathlib import Path\nfrom phalanx.job.data.open import open_data\n"
        "from phalanx.job.data.stream import BatchStream\n"
        f"stream = BatchStream(open_data(Path(sys.argv[1])), 'train', {SEQUENCE}, lambda step: numpy.arange(4))\n"
        "print(next(stream).shape)"
    )
    done = subprocess.run([sys.executable, "-c", program, data.folder], capture_output=True, text=True, timeout=240, check=True)
    assert (done.stdout, done.stderr) == (f"(4, {SEQUENCE + 1})\n", "")


def test_what_was_waited_for_is_named(data: TokenData) -> None:
    order, released = order_of(data), threading.Event()

    def held(step: int) -> Indices:
        released.wait(60)
        return order(step)

    with BatchStream(data, "train", SEQUENCE, held) as stream:
        assert stream.stats.cause == ""
        threading.Timer(0.5, released.set).start()
        next(stream)
        stats = stream.stats
        assert stats.cause == "order"
        wait_until(lambda: stream.num_ahead == 4, "batches are fetched ahead")
        next(stream)
        after = stream.stats.waited_s
        assert {**after, "start": 0} == {**stats.waited_s, "start": 0}, "a batch that is ready is not waited for"


def test_a_first_pass_waits_for_reading_and_checking(data: TokenData, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, asked, wait = open_data(data.folder), threading.Event(), _Ahead.wait

    def asks(ahead: _Ahead) -> _Fetched:
        asked.set()
        return wait(ahead)

    def order(_: int) -> Indices:
        assert asked.wait(60), "nothing is read before somebody waits for it"
        return np.arange(fresh.num_samples("train", SEQUENCE))

    monkeypatch.setattr(_Ahead, "wait", asks)
    with BatchStream(fresh, "train", SEQUENCE, order, depth=1, threads=1) as stream:
        next(stream)
        waited = stream.stats.waited_s
    assert waited["read"] > 0
    assert waited["verify"] > 0


TIMES = st.floats(0, 100)


@given(begin=TIMES, lengths=st.lists(st.floats(0, 10), min_size=4, max_size=4), began=TIMES, waited=TIMES)
def test_causes_add_up_to_the_wait(begin: float, lengths: list[float], began: float, waited: float) -> None:
    order, read, verify, rest = lengths
    ordered = begin + order
    spans: list[Span] = [
        ("order", begin, ordered),
        ("read", ordered, ordered + read),
        ("verify", ordered + read, ordered + read + verify),
        ("decode", ordered, ordered + read + verify + rest),
    ]
    found = causes(spans, began, began + waited)
    assert sum(found.values()) == pytest.approx(max(waited, 0), abs=1e-6)
    assert min(found.values()) >= 0


def test_only_what_lay_within_the_wait_counts() -> None:
    spans: list[Span] = [("order", 0, 1), ("decode", 1, 9), ("read", 2, 5), ("verify", 5, 6)]
    assert causes(spans, 4, 9) == {"order": 0, "decode": 3, "read": 1, "verify": 1, "start": 0}
    assert causes(spans, -2, 9) == {"order": 1, "decode": 4, "read": 3, "verify": 1, "start": 2}
