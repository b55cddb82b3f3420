"""Batches are read ahead of the step, and whatever step is asked for next, its samples are the order's."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from phalanx.core.errors import CheckpointError, DataError, StoreUnavailable
from phalanx.core.training_data import DataSource, MixtureSource
from phalanx.fabric.layouts import Layout
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import DataOrder, PlainOrder
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.push import push_into
from phalanx.job.data.shards import Watch
from phalanx.job.data.sound import BadData
from phalanx.job.data.sources import Sources
from phalanx.job.data.store_source import StoreSource
from phalanx.job.data.stored import open_stored
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import Feed
from phalanx.job.train.opened import checked_first
from phalanx.job.train.resumed import CURSOR, check_cursor
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.objects import open_store
from tests.job.data.random_tokens import write_tokens

TRAIN, SEQUENCE = 50, 3
CPU = torch.device("cpu")
RANK = Rank(rank=0, world_size=1, device=CPU, device_name="cpu")


class Gated:
    """Data whose sample n is n in every place, read while `open` is set."""

    folder = Path("gated")
    manifest_hash = "5d41"

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.read: list[int] = []
        self.damaged = -1
        self.failing: dict[int, BaseException] = {}

    def far(self, split: str) -> None:
        return None

    def num_samples(self, split: str, sequence: int) -> int:
        return TRAIN

    def gather(
        self, split: str, indices: NDArray[np.int64], sequence: int, out: NDArray[np.int64], watch: object
    ) -> NDArray[np.int64]:
        assert self.open.wait(60)
        if int(indices[0]) == self.damaged:
            raise DataError("train-00000.bin", "block 3", "is damaged")
        if int(indices[0]) in self.failing:
            raise self.failing[int(indices[0])]
        self.read.append(int(indices[0]))
        out[:] = indices[:, None]
        return out


def test_data_of_a_store_is_not_read_whole_by_each_rank_before_the_first_step(tmp_path: Path) -> None:
    for name in ("near", "far"):
        write_tokens(tmp_path / name, [1000])
    store = open_store(tmp_path / "store")
    push_into(tmp_path / "far", store)
    cache = NodeCache(tmp_path / "cache", 2**26)
    with closing(cache):
        near, far = open_data(tmp_path / "near"), open_stored(StoreSource(store, cache))
        opened = {"near": near, "far": far}
        asked = DataSource(sources={name: MixtureSource(path=name) for name in opened})
        assert checked_first(Sources(asked, opened)) == [near]
        assert checked_first(Sources(replace(asked, on_bad_data="quarantine"), opened)) == []


@pytest.fixture
def gated() -> Iterator[Gated]:
    data = Gated()
    yield data
    data.open.set()


def order_of(data: Gated, global_batch: int = 4) -> tuple[Sources, DataOrder]:
    sources = Sources.of(cast(TokenData, data))
    return sources, sources.order(SEQUENCE, seed=3, global_batch=global_batch)


def feed_of(data: Gated, rank: int = 0, world_size: int = 1, steps: int | None = None) -> Feed:
    return Feed(*order_of(data), SEQUENCE, Rank(rank=rank, world_size=world_size, device=CPU, device_name="cpu"), steps=steps)


def expected(step: int) -> list[int]:
    draws = PlainOrder(num_samples=TRAIN, seed=3, global_batch=4).draws(np.arange(4 * step - 4, 4 * step))
    return [int(sample) for sample in draws.sample]


def until(true: Callable[[], bool], within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def first_tokens(batch: torch.Tensor) -> list[int]:
    return batch[:, 0].tolist()


@pytest.mark.parametrize("steps", [(1, 2, 3, 4), (7, 8, 3, 4, 4, 5, 20, 1), (2, 2, 1, 2), (255, 256, 257, 258, 5_000)])
def test_a_step_has_its_own_samples_whatever_was_asked_for_before(gated: Gated, steps: tuple[int, ...]) -> None:
    with closing(feed_of(gated)) as feed:
        assert [first_tokens(feed(step)) for step in steps] == [expected(step) for step in steps]


def test_T01_a_gang_that_shrinks_and_grows_in_the_middle_reads_every_sample_once(gated: Gated) -> None:
    read: dict[int, list[int]] = {}
    for world_size, first, stop in ((4, 1, 4), (1, 4, 6), (2, 6, 9)):  # what was read ahead for step `stop` is thrown away
        for rank in range(world_size):
            with closing(feed_of(gated, rank, world_size)) as feed:
                for step in range(first, stop):
                    read.setdefault(step, []).extend(first_tokens(feed(step)))
    assert read == {step: expected(step) for step in range(1, 9)}


def test_nothing_is_read_for_steps_behind_the_end_of_the_run(gated: Gated) -> None:
    """From a store it would be dozens of steps, in the place of what others need."""
    with closing(feed_of(gated, steps=3)) as feed:
        for step in (1, 2, 3):
            assert first_tokens(feed(step)) == expected(step)
    assert sorted(gated.read) == sorted(expected(step)[0] for step in (1, 2, 3))


def test_batches_are_read_while_a_step_is_trained_on(gated: Gated) -> None:
    with closing(feed_of(gated)) as feed:
        feed.start(1)
        until(lambda: len(gated.read) >= 4)
        assert set(gated.read) >= {expected(step)[0] for step in (1, 2)}, "before anyone asked"
        gated.open.clear()
        assert [first_tokens(feed(step)) for step in (1, 2, 3)] == [expected(step) for step in (1, 2, 3)], "which is there"
        gated.open.set()


def test_T12_what_is_saved_with_a_step_is_the_cursor_of_that_step_however_far_the_threads_are(gated: Gated) -> None:
    data, order = order_of(gated)
    with closing(feed_of(gated)) as feed:
        feed(1)
        until(lambda: len(gated.read) >= 4)
    saved = {CURSOR: Cursor.after(1, order, data.manifests).to_json()}
    assert Cursor.from_json(saved[CURSOR]).delivered == 4
    assert check_cursor(saved, 1, order, data) == saved[CURSOR]
    ahead = {CURSOR: Cursor.after(501, order, data.manifests).to_json()}
    with pytest.raises(CheckpointError, match=r"after step 501.*the weights are of step 500"):
        check_cursor(ahead, 500, order, data)


def test_a_checkpoint_of_other_data_or_of_another_order_is_refused(gated: Gated) -> None:
    data, order = order_of(gated)
    saved = {CURSOR: Cursor.after(9, order, data.manifests).to_json()}
    with pytest.raises(DataError, match="order of the data"):
        check_cursor(saved, 9, data.order(SEQUENCE, seed=4, global_batch=4), data)
    gated.manifest_hash = "7b52"
    with pytest.raises(DataError, match=r"data of data.*gated is not the data"):
        check_cursor(saved, 9, order, data)


def test_a_checkpoint_of_an_older_version_goes_on_over_one_folder_and_over_nothing_else(gated: Gated) -> None:
    data, order = order_of(gated)
    assert check_cursor({"samples": 36}, 9, order, data) == Cursor.after(9, order, data.manifests).to_json()
    mixed = Sources(DataSource(path="gated", shuffle="in_order"), data.opened)
    with pytest.raises(CheckpointError, match="give data its path alone"):
        check_cursor({"samples": 36}, 9, mixed.order(SEQUENCE, seed=3, global_batch=4), mixed)


def test_waiting_is_named_by_its_cause_and_only_once(gated: Gated) -> None:
    gated.open.clear()
    with closing(feed_of(gated)) as feed:
        feed.start(1)
        opener = threading.Timer(0.1, gated.open.set)
        opener.start()
        feed(1)
        opener.join()
        assert feed.take_cause() == "decode", "gathering is what it waited for"
        assert feed.take_cause() == ""
        until(lambda: len(gated.read) >= 4)
        until(lambda: feed._is_ready(2))
        feed(2)
        assert feed.take_cause() in ("processor", ""), "it was there"


class Waited(Gated):
    """Whose damaged sample comes from a store, and is waited for."""

    def touching(self, split: str, block: Block, sequence: int) -> list[tuple[int, int]]:
        return [(self.damaged, self.damaged + 1)]

    def gather(
        self, split: str, indices: NDArray[np.int64], sequence: int, out: NDArray[np.int64], watch: object
    ) -> NDArray[np.int64]:
        if self.damaged in indices:
            began = time.monotonic()
            assert not threading.Event().wait(0.05)
            cast(Watch, watch)("store", began, time.monotonic())
            raise BadBlock("train-00000.bin", "block 3", "is damaged", Block(data=self.manifest_hash, shard="d0", block=3))
        return super().gather(split, indices, sequence, out, watch)


def test_what_was_waited_for_is_told_also_where_the_block_is_then_set_aside() -> None:
    data = Waited()
    data.damaged = expected(2)[0]
    quarantine = BadData(policy="quarantine", share_max=0.5)
    with closing(Feed(*order_of(data), SEQUENCE, RANK, quarantine)) as feed:
        feed(1)
        feed.take_cause()
        assert data.damaged not in first_tokens(feed(2))
        assert feed.take_cause() == "store"


class Beside:
    """Copies to a device that is this process's memory, each of which may fail."""

    def __init__(self) -> None:
        self.failing: dict[int, BaseException] = {}

    def begin(self, rows: NDArray[np.int64]) -> torch.Tensor:
        if (error := self.failing.get(int(rows[0, 0]))) is not None:
            raise error
        return torch.from_numpy(rows.copy())

    def wait(self) -> None: ...
    def settle(self) -> None: ...
    def forget(self) -> None: ...


@pytest.fixture
def copying(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Feed, Beside]]:
    """A feed that copies the next batch while a step computes."""
    monkeypatch.setattr("phalanx.job.train.feed.pinned", np.empty)
    feed, beside = feed_of(gated), Beside()
    monkeypatch.setattr(feed, "_copies", beside)
    with closing(feed):
        yield feed, beside


@pytest.mark.parametrize("of", ["copy", "store", "disk"])
def test_whatever_befalls_a_batch_ahead_is_raised_once_by_the_step_that_wants_it(
    copying: tuple[Feed, Beside], gated: Gated, of: str
) -> None:
    """Not by the step before, whose own batch is sound and which other ranks are in."""
    feed, beside = copying
    errors = {"copy": RuntimeError("CUDA error"), "store": StoreUnavailable("s3://bkt is away"), "disk": OSError(5, "I/O")}
    (beside if of == "copy" else gated).failing[expected(2)[0]] = errors[of]
    feed.start(1)
    until(lambda: feed._stream is not None and feed._stream.num_ahead >= 2)
    assert first_tokens(feed(1)) == expected(1)
    with pytest.raises(type(errors[of])) as caught:
        feed(2)
    assert caught.value is errors[of]
    beside.failing = gated.failing = {}
    feed.close()
    assert first_tokens(feed(2)) == expected(2), "which is read again"
    assert first_tokens(feed(3)) == expected(3)


def test_damage_is_raised_at_the_step_that_needs_it_and_closing_ends_the_threads(gated: Gated) -> None:
    before = threading.active_count()
    gated.damaged = expected(3)[0]
    feed = feed_of(gated)
    assert first_tokens(feed(1)) == expected(1)
    assert first_tokens(feed(2)) == expected(2)
    with pytest.raises(DataError, match="block 3"):
        feed(3)
    feed.close()
    feed.close()
    assert threading.active_count() == before


def test_ranks_that_share_a_sample_read_the_same_and_all_parts_make_up_the_step(gated: Gated) -> None:
    layout = Layout(dp_replicate=2, tp=2)
    read = []
    for rank in range(4):
        place = Rank(rank=rank, world_size=4, device=CPU, device_name="cpu", layout=layout)
        with closing(Feed(*order_of(gated), SEQUENCE, place)) as feed:
            read.append(first_tokens(feed(3)))
    assert read[0] == read[1] and read[2] == read[3] and read[0] + read[2] == expected(3)
