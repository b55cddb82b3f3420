"""Prepared data in a store reads as it does in a folder, through a cache that may be small, damaged or lost."""

import json
import os
import pickle
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError, NotFound, SetupError, StoreUnavailable
from phalanx.core.training_data import DataSource, MixtureSource, Packing
from phalanx.job.data.block_sums import BLOCK_BYTES
from phalanx.job.data.blocks import BlockShuffle
from phalanx.job.data.cache_place import node_cache
from phalanx.job.data.documents import document_lengths
from phalanx.job.data.draws import DataOrder, PlainOrder, batch, rows_of_rank
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import Indices
from phalanx.job.data.packing import BestFit
from phalanx.job.data.push import push, push_into
from phalanx.job.data.sources import Sources
from phalanx.job.data.store_source import StoreSource
from phalanx.job.data.stored import StoredData, open_stored
from phalanx.job.data.stream import BatchStream
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.hedged import HedgedReads
from phalanx.storage.objects import ObjectStore, open_store
from tests.drawn import ANYHOW, examples
from tests.job.data.random_tokens import write_tokens
from tests.storage.cache.cache_cases import units_of

MIB = BLOCK_BYTES
SIZES = [12 * MIB - 100, 700, MIB + 3, 5]
"""Tokens: shards of 24, 1, 3 and 1 blocks of uint16, which are 3 units and 3 small ones."""
LIMIT = 24 * MIB
SEQUENCE = 999


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "data"
    write_tokens(folder, SIZES)
    return folder


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> ObjectStore:
    """A copy to damage: a store on a local disk, which knows ranges as any other does."""
    store = open_store(tmp_path / "store")
    push_into(folder, store)
    return store


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[NodeCache]:
    cache = NodeCache(tmp_path / "cache", LIMIT)
    yield cache
    cache.close()


@pytest.fixture
def data(store: ObjectStore, cache: NodeCache) -> StoredData:
    return open_stored(StoreSource(store, cache, patience_s=0.2))


def large(cache: NodeCache) -> list[Path]:
    """Units of 8 MiB in the cache."""
    return units_of(cache.folder, 8 * MIB)


@settings(max_examples=examples(60), suppress_health_check=[*ANYHOW, HealthCheck.function_scoped_fixture])
@given(asked=st.data(), sequence=st.sampled_from([1, 7, 999, 60_000, 1_200_000]))
def test_any_batch_is_that_of_the_folder(folder: Path, data: StoredData, asked: st.DataObject, sequence: int) -> None:
    """In a cache that does not hold all of it, so that units come and go."""
    there = open_data(folder)
    count = there.num_samples("train", sequence)
    assert (data.num_samples("train", sequence), data.manifest_hash) == (count, there.manifest_hash)
    some = asked.draw(st.lists(st.integers(0, count - 1), max_size=2 if sequence < MIB else 1))
    assert (
        data.gather("train", np.array(some, dtype=np.int64), sequence)
        == there.gather("train", np.array(some, dtype=np.int64), sequence)
    ).all()
    with pytest.raises(IndexError):
        data.gather("train", np.array([count]), sequence)


def test_threads_read_through_a_small_cache_what_is_there(folder: Path, data: StoredData, cache: NodeCache) -> None:
    there = open_data(folder)
    count = there.num_samples("train", SEQUENCE)

    def read(seed: int) -> bool:
        generator = np.random.default_rng(seed)
        return all(
            (data.gather("train", some, SEQUENCE) == there.gather("train", some, SEQUENCE)).all()
            for some in (generator.integers(0, count, 2) for _ in range(25))
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))
    assert cache.held_bytes <= LIMIT


def test_a_second_run_and_a_second_data_set_share_what_is_there(
    tmp_path: Path, data: StoredData, store: ObjectStore, cache: NodeCache
) -> None:
    data.gather("train", np.arange(9), SEQUENCE)
    other = open_store(tmp_path / "other")  # the same shard under another manifest
    for found in store.list():
        other.put(found.key, store.get(found.key))
    manifest = json.loads(store.get("manifest.json")) | {"parameters": {"by": "another"}}
    other.put("manifest.json", json.dumps(manifest).encode())
    for key in ("train-00000.bin", "train-00000.xxh3"):
        other.delete(key)
    again = open_stored(StoreSource(other, cache))
    assert again.manifest_hash != data.manifest_hash
    assert (again.gather("train", np.arange(9), SEQUENCE) == data.gather("train", np.arange(9), SEQUENCE)).all()


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "gone"])
def test_what_the_caches_disk_loses_or_damages_is_fetched_again(
    folder: Path, store: ObjectStore, cache: NodeCache, damage: str
) -> None:
    wanted = open_data(folder).gather("train", np.arange(9), SEQUENCE)
    open_stored(StoreSource(store, cache)).gather("train", np.arange(9), SEQUENCE)
    for path in (cache.folder / "blocks").glob("*/*"):
        whole = path.read_bytes()
        path.unlink()
        if damage != "gone":
            path.write_bytes({"flipped": bytes([whole[0] ^ 1]) + whole[1:], "short": whole[:-1], "empty": b""}[damage])
    again = open_stored(StoreSource(store, cache))
    assert (again.gather("train", np.arange(9), SEQUENCE) == wanted).all()
    assert again.tokenizer_path.read_bytes() == (folder / "tokenizer.json").read_bytes()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_byte_that_is_flipped_in_the_store_is_named_and_in_no_cache(
    data: StoredData, store: ObjectStore, cache: NodeCache
) -> None:
    flip(store.place.path / "train-00000.bin", MIB + 7)
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"bytes 1048576 to 2097152 of file://.*/train-00000\.bin are damaged, also when read again"
        ) as caught:
            data.gather("train", np.array([MIB // 2 // SEQUENCE + 1]), SEQUENCE)
        assert (caught.value.field, caught.value.value) == ("train-00000.bin", "block 1")
    assert large(cache) == []


def test_a_byte_that_is_flipped_on_the_way_is_fetched_again(folder: Path, data: StoredData, store: ObjectStore) -> None:
    damaged: list[str] = []

    def read(key: str, start: int, length: int) -> memoryview:
        found = bytearray(store.read_range(key, start, length))
        if key not in damaged:
            damaged.append(key)
            found[-3] ^= 4
        return memoryview(bytes(found))

    data.source.ranges = HedgedReads(read, 4)
    assert (data.gather("train", np.arange(9), SEQUENCE) == open_data(folder).gather("train", np.arange(9), SEQUENCE)).all()
    assert sorted(damaged) == ["train-00000.bin", "train-00000.xxh3"]


LOST: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "shard": (lambda folder: (folder / "train-00000.bin").unlink(), "train-00000.bin", "is not there; put the data there again"),
    "shorter": (lambda folder: os.truncate(folder / "train-00000.bin", 99), "train-00000.bin", "should have 25165624 bytes"),
    "checksums": (lambda folder: (folder / "train-00000.xxh3").unlink(), "train-00000.xxh3", "is not there"),
    "other checksums": (lambda folder: flip(folder / "train-00000.xxh3", 9), "train-00000.xxh3", "its SHA-256 should be"),
}  # fmt: skip


@pytest.mark.parametrize(("lose", "field", "message"), LOST.values(), ids=LOST)
def test_what_the_store_lost_is_named(
    data: StoredData, store: ObjectStore, lose: Callable[[Path], object], field: str, message: str
) -> None:
    lose(store.place.path)
    with pytest.raises(DataError, match=message) as caught:
        data.gather("train", np.array([0]), SEQUENCE)
    assert caught.value.field == field


def test_a_file_that_is_cut_while_it_is_pushed_is_no_data(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = shutil.copytree(folder, tmp_path / "mine")
    store, name = open_store(tmp_path / "there"), "train-00000.idx"

    stat = Path.stat

    def cut(path: Path) -> os.stat_result:
        found = stat(path)
        if path.name == name:
            os.truncate(path, found.st_size // 2)
        return found

    monkeypatch.setattr(Path, "stat", lambda path, **_: cut(path))
    with pytest.raises(DataError, match="should have"):
        push_into(mine, store)
    assert [one.key for one in store.list() if one.key in (name, "manifest.json")] == []


def test_a_place_without_a_manifest_or_with_an_old_one_is_refused(store: ObjectStore, cache: NodeCache) -> None:
    manifest = json.loads(store.get("manifest.json"))
    store.put("manifest.json", json.dumps(manifest | {"format": 99}).encode())
    with pytest.raises(DataError, match="made by a newer Phalanx"):
        open_stored(StoreSource(store, cache))
    store.delete("manifest.json")
    with pytest.raises(DataError, match=r"has no manifest\.json, so it is no prepared data; name another place"):
        open_stored(StoreSource(store, cache))


def test_a_limit_below_a_shard_is_refused_at_once_with_both_numbers(store: ObjectStore, tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "small", MIB)
    with pytest.raises(SetupError, match=r"the shard train-00000\.bin of file://.* has 25165624 bytes; raise the limit") as caught:
        open_stored(StoreSource(store, cache))
    assert caught.value.value == f"{MIB} bytes"
    cache.close()


def test_a_store_that_stays_away_is_waited_for_as_long_as_was_said(data: StoredData) -> None:
    def away(key: str, start: int, length: int) -> memoryview:
        raise StoreUnavailable("s3://bucket: nobody answers; try again")

    data.source.ranges = HedgedReads(away, 4)
    with pytest.raises(StoreUnavailable, match=r"nobody answers; try again \(tried for 0 s\)"):
        data.gather("train", np.array([0]), SEQUENCE)


def test_nothing_that_ends_waits_for_a_store_that_is_away(store: ObjectStore, tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", LIMIT)
    data = open_stored(StoreSource(store, cache, patience_s=60))
    asked = threading.Event()

    def away(key: str, start: int, length: int) -> memoryview:
        asked.set()
        raise StoreUnavailable("s3://bucket: nobody answers; try again")

    data.source.ranges = HedgedReads(away, 4)
    stream = BatchStream(data, "train", SEQUENCE, rows_of_rank(order_of(data)))
    assert asked.wait(60)
    began = time.monotonic()
    stream.close()
    cache.close()
    assert time.monotonic() - began < 30, "half of the patience"


def order_of(data: TokenData, batch: int = 3) -> PlainOrder:
    return PlainOrder(num_samples=data.num_samples("train", SEQUENCE), seed=1, global_batch=batch, shuffle=BlockShuffle(500, 2))


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_stream_of_any_rank_begins_anywhere_and_is_that_of_the_folder(folder: Path, data: StoredData, world_size: int) -> None:
    there = open_data(folder)
    order = rows_of_rank(order_of(there), world_size - 1, world_size)
    with BatchStream(data, "train", SEQUENCE, order, 700, stop=900) as stream:
        for step, rows in zip(range(700, 900), stream, strict=True):
            assert (rows == there.gather("train", order(step), SEQUENCE)).all()
    assert not [thread for thread in threading.enumerate() if thread.name == "data-ahead"]


def test_what_is_needed_soon_is_fetched_before_it_is_asked_for(data: StoredData, cache: NodeCache) -> None:
    """Nothing of it is ever delivered."""
    ahead = data.read_ahead("train", SEQUENCE, rows_of_rank(order_of(data)), 0, None)
    end = time.monotonic() + 60
    while not large(cache):
        assert time.monotonic() < end
        time.sleep(0.005)
    ahead.close()


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_a_run_over_several_sources_fetches_its_steps_ahead(
    folder: Path, tmp_path: Path, data: StoredData, cache: NodeCache, packing: Packing
) -> None:
    """As a recipe reads: one of them lies in a store, the other in a folder."""
    write_tokens(tmp_path / "near", [40_000, 700], seed=5)
    asked = DataSource(
        sources={"far": MixtureSource(path=data.url, weight=1), "near": MixtureSource(path=str(tmp_path / "near"), weight=1)},
        packing=packing,
    )
    there = Sources(asked, {"far": open_data(folder), "near": open_data(tmp_path / "near")})
    sources = Sources(asked, {**there.opened, "far": data})
    numbers = rows_over(sources, there.order(SEQUENCE, seed=1, global_batch=2))
    ahead = sources.read_ahead("train", SEQUENCE, numbers, 0, None)
    assert ahead is not None
    end = time.monotonic() + 60
    while not large(cache):
        assert time.monotonic() < end
        time.sleep(0.005)
    ahead.close()
    assert there.read_ahead("train", SEQUENCE, numbers, 0, None) is None
    with BatchStream(sources, "train", SEQUENCE, numbers, 3, stop=40) as stream:
        assert [thread for thread in threading.enumerate() if thread.name == "data-ahead"]
        for step, rows in zip(range(3, 40), stream, strict=True):
            assert (rows == there.gather("train", numbers(step), SEQUENCE)).all()


def rows_over(sources: Sources, order: DataOrder) -> Callable[[int], Indices]:
    return lambda step: sources.numbers(batch(order, step), "train", SEQUENCE)


def test_another_process_may_be_given_the_data_but_not_by_a_fork(data: StoredData) -> None:
    data.gather("train", np.array([0]), SEQUENCE)
    asked: list[Callable[[], object]] = [
        lambda: data.gather("train", np.array([0]), SEQUENCE),
        lambda: document_lengths(data, "train"),
        data.verify,
    ]
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        for ask in asked:
            try:
                ask()
            except SetupError as error:
                if "start loader processes by 'spawn'" in str(error):
                    continue
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    reopen, given = data.__reduce__()
    assert data.place == data.url
    assert given == (data.url, data.manifest_hash, data.source.cache.folder, LIMIT)
    assert pickle.loads(pickle.dumps(reopen)) is reopen


def test_verifying_reads_all_of_it_past_the_cache(data: StoredData, store: ObjectStore, cache: NodeCache) -> None:
    seen: list[int] = []
    data.verify(lambda done, total: seen.append(total - done))
    assert seen[-1] == 0
    flip(store.place.path / "train-00002.bin", 12)
    (store.place.path / "train-00001.idx").unlink()
    with pytest.raises(DataError, match=r"train-00001\.idx is not there.*and 1 more: train-00002\.bin"):
        data.verify()
    assert large(cache) == []


# Putting it there


def test_a_push_that_is_cut_off_leaves_no_data_set_and_is_simply_done_again(folder: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")

    def cut_off(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push_into(folder, store, cut_off)
    with pytest.raises(NotFound):
        store.get("manifest.json")
    seen: list[int] = []
    for _ in range(2):
        assert push_into(folder, store, lambda done, total: seen.append(total - done)) == store.url
    assert seen[-1] == 0
    assert {found.key: found.size_bytes for found in store.list()} == {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_store_that_is_away_for_a_moment_costs_a_push_no_call(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of call fails at first; that which makes the data set known has reached the store, and its answer is lost."""
    store, failed, paused = open_store(tmp_path / "store"), set(), list[float]()

    def flaky(name: str, after: bool) -> Callable[..., object]:
        call = getattr(ObjectStore, name)

        def called(*arguments: object) -> object:
            found = call(*arguments) if name in failed or after else None
            if name in failed:
                return found
            failed.add(name)
            raise StoreUnavailable("s3://bkt: nobody answers; try again")

        return called

    for name in ("get", "put", "put_if_absent"):
        monkeypatch.setattr(ObjectStore, name, flaky(name, after=name == "put_if_absent"))
    assert push_into(folder, store, pause=paused.append) == store.url
    assert failed == {"get", "put", "put_if_absent"} and len(paused) == 3
    assert store.get("manifest.json") == (folder / "manifest.json").read_bytes()


def test_a_push_that_is_ended_while_the_store_is_away_tries_no_longer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are on their way would keep the process for as long as their patience lasts."""
    store, tries, put, gone = open_store(tmp_path / "store"), Counter[str](), ObjectStore.put, threading.Event()

    def away(self: ObjectStore, key: str, data: bytes) -> None:
        tries[key] += 1
        if len(tries) == 1:
            assert gone.wait(60)
            return put(self, key, data)
        gone.set()
        raise StoreUnavailable("s3://bkt: nobody answers; try again")

    def ended(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ObjectStore, "put", away)
    monkeypatch.setattr(ObjectStore, "takes_parts", lambda self, size: False)
    monkeypatch.setattr("phalanx.job.data.push.FILES_AT_ONCE", 2)
    with pytest.raises(KeyboardInterrupt):
        push_into(folder, store, ended)
    assert len(tries) >= 2 and max(tries.values()) <= 2, "instead of 5 times, which takes a quarter of a minute"


def test_other_data_is_never_overwritten_and_damage_never_sent(folder: Path, store: ObjectStore, tmp_path: Path) -> None:
    write_tokens(tmp_path / "other", [1000], seed=5)
    with pytest.raises(DataError, match="holds other data, which would be lost; name an empty place"):
        push_into(tmp_path / "other", store)
    shutil.copytree(folder, tmp_path / "damaged")
    flip(tmp_path / "damaged" / "train-00002.bin", 5)
    with pytest.raises(DataError, match=r"train-00002\.bin: in .* it is damaged"):
        push_into(tmp_path / "damaged", open_store(tmp_path / "empty"))
    assert not (tmp_path / "empty" / "manifest.json").exists()
    with pytest.raises(SetupError, match="name one in a store"):
        push(folder, str(tmp_path / "elsewhere"))


# Where the cache is


def test_the_cache_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    cache = node_cache(environ=environ)
    assert cache.folder == tmp_path / "phalanx" / "data"
    assert 0 < cache.limit_bytes <= shutil.disk_usage(tmp_path).total
    given = node_cache(environ={**environ, "PHALANX_DATA_CACHE": str(tmp_path / "own"), "PHALANX_DATA_CACHE_LIMIT": "3GB"})
    assert (given.folder, given.limit_bytes) == (tmp_path / "own", 3 * 10**9)
    assert node_cache(str(tmp_path / "own"), "3GB", environ) is given
    for wrong in ("many", "0"):
        with pytest.raises(SetupError, match="write a size"):
            node_cache(limit=wrong, environ=environ)


def test_packed_rows_are_those_of_the_folder(folder: Path, data: StoredData) -> None:
    lengths = document_lengths(data, "train")
    assert lengths.tolist() == SIZES
    packing = BestFit(lengths, 3000)
    begins = np.cumsum([0, *SIZES[:-1]])
    for rows in (np.arange(0, packing.num_samples, 1999), np.array([packing.num_samples - 1]), np.zeros(0, dtype=np.int64)):
        found, wanted = (np.empty((len(rows), 3000), dtype=np.int64) for _ in range(2))
        data.gather_pieces("train", packing.pieces(rows), begins, found)
        open_data(folder).gather_pieces("train", packing.pieces(rows), begins, wanted)
        assert (found == wanted).all()
