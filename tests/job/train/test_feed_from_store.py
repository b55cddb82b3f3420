"""What a recipe reads from a store is fetched into the node's cache before its steps ask for it, however rows are made."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.training_data import Blocks, DataCache, DataSource, MixtureSource
from phalanx.job.data.bad_block import Block
from phalanx.job.data.block_sums import BLOCK_BYTES
from phalanx.job.data.draws import batch
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.push import push_into
from phalanx.job.data.quarantine import SetAside, quarantined, set_aside_of
from phalanx.job.data.sound import STOP, BadData
from phalanx.job.data.sources import Sources, open_sources
from phalanx.job.data.store_source import StoreSource
from phalanx.job.data.stored import StoredData, open_stored
from phalanx.job.data.stored_shards import StoredShards
from phalanx.job.train.batches import HeldOut, first_batch
from phalanx.job.train.datasets import StepLoader
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import Feed
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.hedged import HedgedReads
from phalanx.storage.objects import open_store
from tests.job.data.random_tokens import write_tokens

SEQUENCE, BATCH, STEPS = 999, 6, 8
RANK = Rank(rank=0, world_size=1, device=torch.device("cpu"), device_name="cpu")
SIZES = {"web": [10 * BLOCK_BYTES, 700, BLOCK_BYTES], "code": [5 * BLOCK_BYTES, 3000]}
"""Tokens of two bytes: three and two units that are large, and two small ones."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("fed")
    for seed, (name, sizes) in enumerate(SIZES.items()):
        write_tokens(base / name, sizes, seed=seed)
    return {name: base / name for name in SIZES}


@pytest.fixture
def stored(folders: dict[str, Path], tmp_path: Path) -> Iterator[dict[str, StoredData]]:
    cache = NodeCache(tmp_path / "cache", 400 * BLOCK_BYTES)
    yield {name: in_store(folder, tmp_path / "store" / name, cache) for name, folder in folders.items()}
    cache.close()


def in_store(folder: Path, place: Path, cache: NodeCache) -> StoredData:
    store = open_store(place)
    push_into(folder, store)
    return open_stored(StoreSource(store, cache, patience_s=0.1))


MIXED = {name: MixtureSource(path=f"s3://bkt/{name}", weight=1.0) for name in SIZES}
ASKED = {
    "one": DataSource(path="s3://bkt/web"),
    "one packed": DataSource(path="s3://bkt/web", packing="best_fit"),
    "told apart": DataSource(path="s3://bkt/web", attention="document"),
    "mixed": DataSource(sources=MIXED),
    "mixed and packed": DataSource(sources=MIXED, packing="best_fit"),
}


def sources(asked: DataSource, opened: dict[str, TokenData]) -> Sources:
    return Sources(asked, opened if asked.sources else {"data": opened["web"]})


def feed_of(data: Sources, bad_data: BadData = STOP) -> Feed:
    return Feed(data, data.order(SEQUENCE, seed=3, global_batch=BATCH), SEQUENCE, RANK, bad_data)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def needs(data: Sources, numbers: Callable[[int], np.ndarray]) -> set[tuple[StoredShards, int]]:
    """The units that the steps need, by the first block of each."""
    far = {name: one.far("train") for name, one in data.opened.items()}
    found = [
        data.needs({name: one for name, one in far.items() if one}, "train", SEQUENCE, numbers(step)) for step in range(2, STEPS)
    ]
    return {(shards, unit) for step in found for shards, units in step for unit in units}


def away(key: str, start: int, length: int) -> memoryview:
    raise StoreUnavailable("s3://bkt: nobody answers; try again")


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("lost", [False, True])
def test_later_steps_need_no_store(folders: dict[str, Path], stored: dict[str, StoredData], asked: DataSource, lost: bool) -> None:
    """Of which nothing was delivered when the store went away."""
    data = sources(asked, {**stored})
    there = sources(asked, {name: open_data(folder) for name, folder in folders.items()})
    order = there.order(SEQUENCE, seed=3, global_batch=BATCH)
    if lost:
        shard = stored["web"].manifest.shards[0].bin_sha256
        name = "web" if asked.sources else "data"
        block = Block(data=stored["web"].manifest_hash, shard=shard, block=1)
        begin, end = there.touching(block, "train", SEQUENCE)[name][0]
        aside = SetAside(source=name, shard=shard, block=1, samples=((begin, min(end, begin + 500)),), since=0)
        order = quarantined(order, [aside], 0.9)

    def numbers(step: int) -> np.ndarray:
        return there.numbers(batch(order, step), "train", SEQUENCE)

    ahead = data.read_ahead("train", SEQUENCE, numbers, 2, None)
    assert ahead is not None
    needed = needs(data, numbers)
    cache = stored["web"].source.cache
    until(lambda: all(cache.path(shards.units([block])[0]).exists() for shards, block in needed))
    for one in stored.values():
        one.source.ranges = HedgedReads(away, 4)
    for step in range(2, STEPS):
        assert (data.gather("train", numbers(step), SEQUENCE) == there.gather("train", numbers(step), SEQUENCE)).all()
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "data-ahead"]


@pytest.mark.parametrize("asked", [ASKED["one"], ASKED["mixed and packed"]], ids=["one", "mixed and packed"])
def test_a_feeds_waits_are_for_the_store(folders: dict[str, Path], stored: dict[str, StoredData], asked: DataSource) -> None:
    read = stored["web"].source.ranges

    def slow(key: str, start: int, length: int) -> memoryview:
        threading.Event().wait(0.05)
        return read.read(key, start, length)

    stored["web"].source.ranges = HedgedReads(slow, 4)
    plain = sources(asked, {name: open_data(folder) for name, folder in folders.items()})
    with closing(feed_of(sources(asked, {**stored}))) as feed, closing(feed_of(plain)) as wanted:
        assert torch.equal(feed(1), wanted(1))
        assert feed.take_cause() == "store"
        assert all(torch.equal(feed(step), wanted(step)) for step in (2, 3, 90, 7))


def test_held_out_batches_are_fetched_before_they_are_asked_for(tmp_path: Path) -> None:
    """Else each waits for its own blocks."""
    write_tokens(tmp_path / "data", [1000], held_out=12 * BLOCK_BYTES)
    recipe = LlamaRecipe(batch_per_rank=2, sequence=SEQUENCE, eval_batches=40)
    with closing(NodeCache(tmp_path / "cache", 400 * BLOCK_BYTES)) as cache:
        far = in_store(tmp_path / "data", tmp_path / "store", cache)
        held_out, wanted = (
            HeldOut(Sources.of(data), recipe, RANK, first_batch(recipe, 1)) for data in (far, open_data(tmp_path / "data"))
        )
        stored = far.stored["held_out"].stored
        units = stored.firsts(np.arange(24))
        with held_out.reading() as batches, wanted.reading() as near:
            until(lambda: all(cache.path(unit).exists() for unit in stored.units(units)))
            far.source.ranges = HedgedReads(away, 4)
            assert all(torch.equal(one[0][0], two[0][0]) for one, two in zip(batches, near, strict=True))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith(("data-held_out", "data-ahead"))]


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_cache_below_what_is_shuffled_at_once_is_refused_before_the_first_step(
    folders: dict[str, Path], tmp_path: Path, asked: DataSource
) -> None:
    with closing(NodeCache(tmp_path / "small", 21 * BLOCK_BYTES)) as cache:  # every shard has room
        opened = {name: in_store(folder, tmp_path / "store" / name, cache) for name, folder in folders.items()}
        small = sources(replace(asked, shuffle=Blocks(block_samples=500, window_blocks=4)), {**opened})
        small.prepare(SEQUENCE)
        large = sources(replace(asked, shuffle=Blocks(block_samples=500, window_blocks=50)), {**opened})
        needed = 2 * SEQUENCE * sum(large.sizes("train", SEQUENCE).values())
        told = rf"a window of 25000 samples of each source \(`data.shuffle`\) has {needed} bytes; raise the limit of the cache"
        with pytest.raises(SetupError, match=told) as caught:
            large.prepare(SEQUENCE)
        assert caught.value.value == f"{cache.limit_bytes} bytes"


def test_a_job_says_which_cache(folders: dict[str, Path], tmp_path: Path) -> None:
    push_into(folders["code"], open_store(tmp_path / "code"))
    asked = DataSource(path=(tmp_path / "code").as_uri(), cache=DataCache(folder=str(tmp_path / "own"), limit="64 MiB"))
    open_sources(asked)  # a folder by its URL
    with pytest.raises(SetupError, match="this process uses the cache"):
        open_sources(replace(asked, cache=replace(asked.cache, limit="65MiB")))


def test_a_loaders_processes_are_not_forked(folders: dict[str, Path], stored: dict[str, StoredData]) -> None:
    data, there = sources(ASKED["mixed"], {**stored}), sources(ASKED["mixed"], {n: open_data(at) for n, at in folders.items()})
    order = there.order(SEQUENCE, seed=3, global_batch=BATCH)
    found = list(StepLoader(data, "train", SEQUENCE, order, stop=3, num_workers=1))
    assert all(torch.equal(one, two) for one, two in zip(found, StepLoader(there, "train", SEQUENCE, order, stop=3), strict=True))


def test_folders_need_nothing_ahead(folders: dict[str, Path]) -> None:
    data = sources(ASKED["mixed"], {name: open_data(folder) for name, folder in folders.items()})
    assert data.read_ahead("train", SEQUENCE, lambda step: np.arange(4), 0, None) is None


def test_what_comes_by_one_request_with_a_damaged_block_is_set_aside_with_it(stored: dict[str, StoredData], tmp_path: Path) -> None:
    """Or the run would end at the next sample of them, which it meets again and again."""
    with (tmp_path / "store" / "web" / "train-00000.bin").open("r+b") as file:
        file.seek(9 * BLOCK_BYTES + 77)
        file.write(b"\xff\xfe\xff\xfe")
    with closing(feed_of(sources(ASKED["one"], {**stored}), BadData(policy="quarantine", share_max=0.6))) as feed:
        for step in range(1, 40):
            feed(step)
        assert [one.block for one in set_aside_of(feed.order)] == list(range(8, 16))
