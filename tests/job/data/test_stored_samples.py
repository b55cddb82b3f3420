"""Samples of tars in a store read as they do in a folder, through a cache that may be small, damaged or lost."""

import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.core.errors import DataError, SetupError, StoreUnavailable
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.blocks import BlockShuffle, InOrder
from phalanx.job.data.draws import PlainOrder, batch
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.push import push_into
from phalanx.job.data.shown import shown_unread, verified
from phalanx.job.data.store_source import UNIT_BYTES
from phalanx.job.data.tars import manifest as manifests
from phalanx.job.data.tars.ingest import index
from phalanx.job.data.tars.open import Sample, SampleData, open_samples, samples_in
from phalanx.job.data.tars.stored import StoredTars, tars_in
from phalanx.job.data.tars.stream import Making, sample_stream
from phalanx.job.data.tars.writer import TarWriter
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.objects import ObjectStore, open_store
from tests.job.data.random_tokens import write_tokens
from tests.storage.cache.cache_cases import units_of

MIB = 2**20
EACH = 600_000
COUNT = 32
"""Samples, 28 of them in a tar of three units, so that two lie across a border; the rest in a small one."""
LIMIT = 2 * UNIT_BYTES + MIB
BARE = Making(decode=lambda sample: (sample.number, sample.key, sample.fields))


def write_samples(folder: Path) -> None:
    """Each has random bytes in `bin`, its number in `cls`, and every other one an empty `txt`."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    with TarWriter(folder, 28 * EACH) as writer:
        for number in range(COUNT):
            fields = {"bin": random.bytes(EACH), "cls": str(number).encode()}
            writer.add(f"s{number:03d}", fields | ({"txt": b""} if number % 2 else {}))
        manifests.commit(folder, writer.finish((), {}, {}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored_samples") / "data"
    write_samples(folder)
    return folder


@pytest.fixture(scope="module")
def there(folder: Path) -> SampleData:
    return open_samples(folder)


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
def data(store: ObjectStore, cache: NodeCache) -> SampleData:
    return samples_in(*tars_in(store, cache))


def tars_of(data: SampleData) -> StoredTars:
    assert isinstance(data.tars, StoredTars)
    return data.tars


def units(cache: NodeCache) -> list[Path]:
    return units_of(cache.folder, UNIT_BYTES)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def offset_of(data: SampleData, number: int) -> int:
    """Of the bytes of `bin` in the tar."""
    return data.asked([number])[0].places["bin"].offset


def test_any_samples_are_those_of_the_folder_in_any_order(data: SampleData, there: SampleData, cache: NodeCache) -> None:
    """In a cache that does not hold all of it, so that units come and go."""
    assert (len(data), data.manifest_hash, data.fields) == (COUNT, there.manifest_hash, ("bin", "cls", "txt"))
    across = [one for one in range(COUNT) if len(tars_of(data).needed(data.asked([one]))) > 1]
    assert len(across) == 2
    random = np.random.default_rng(2)
    for numbers in [across, *(random.integers(0, COUNT, 9).tolist() for _ in range(6))]:
        assert list(data.read_all(numbers)) == list(there.read_all(numbers)) == [there.read(number) for number in numbers]
    assert data.read(3, ["cls"]) == Sample(3, "s003", {"cls": b"3"}) and data.read(3, ["txt"]).fields == {"txt": b""}
    assert cache.held_bytes <= LIMIT
    with pytest.raises(IndexError):
        data.read(COUNT)
    with pytest.raises(DataError, match=r"s002 in .* has only bin, cls; ask for one of these"):
        data.read(2, ["txt"])


def test_threads_read_through_a_small_cache_what_is_there(data: SampleData, there: SampleData, cache: NodeCache) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: list(data.read_all([(7 * seed + at) % COUNT for at in range(5)])), range(8)))
    assert found == [[there.read((7 * seed + at) % COUNT) for at in range(5)] for seed in range(8)]
    assert cache.held_bytes <= LIMIT


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "gone"])
def test_what_the_caches_disk_loses_or_damages_is_fetched_again(
    data: SampleData, there: SampleData, cache: NodeCache, damage: str
) -> None:
    first = data.read(1)
    at = offset_of(data, 1)
    for path in units(cache):
        whole = path.read_bytes()
        path.unlink()
        if damage != "gone":
            flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            path.write_bytes({"flipped": flipped, "short": whole[: at + 9], "empty": b""}[damage])
    assert data.read(1) == first == there.read(1)
    assert data.read(0) == there.read(0)
    (path,) = units(cache)
    assert path.read_bytes()[at : at + EACH] == first.fields["bin"], "whoever needs it next has a whole one"


def test_a_byte_that_is_flipped_in_the_store_is_named_with_its_sample(
    data: SampleData, there: SampleData, store: ObjectStore
) -> None:
    tar, at = store.place.path / "samples-00000.tar", offset_of(data, 20)
    flip(tar, at + 5)
    for _ in range(2):
        with pytest.raises(
            BadBlock, match=rf"{EACH} bytes at {at} of file://.*/samples-00000\.tar are damaged, also when"
        ) as caught:
            data.read(20)
        assert (caught.value.field, caught.value.value) == ("samples-00000.tar", "s020.bin")
        sha256 = there.manifest.shards[0].tar_sha256
        assert caught.value.blocks == (Block(data=data.manifest_hash, shard=sha256, block=20),)
    assert [data.read(19), data.read(21), data.read(20, ["cls"])] == [there.read(19), there.read(21), there.read(20, ["cls"])]
    flip(tar, offset_of(data, 5))
    with pytest.raises(BadBlock, match=r"s005\.bin.*1 more samples of the batch are damaged") as caught:
        list(data.read_all([19, 5, 30, 20]))
    assert [block.block for block in caught.value.blocks] == [5, 20]


def test_what_another_one_has_mended_meanwhile_is_left_alone(data: SampleData, there: SampleData, cache: NodeCache) -> None:
    (asked,) = data.asked([1])
    place = asked.places["bin"]
    with data.tars.held([asked], None):
        (path,) = units(cache)
        assert data.tars.again(0, place) == there.read(1).fields["bin"] and path.exists()
        flip(path, place.offset)
        assert data.tars.again(0, place) == there.read(1).fields["bin"] and not path.exists()


def test_a_byte_that_was_flipped_on_the_way_is_fetched_again(data: SampleData, there: SampleData, store: ObjectStore) -> None:
    tar, at = store.place.path / "samples-00000.tar", offset_of(data, 2)
    flip(tar, at)
    data.read(0)  # which brings the same unit
    flip(tar, at)
    assert data.read(2) == there.read(2)


def test_a_sample_in_a_folder_is_read_once_more_from_the_file_of_that_name(folder: Path, tmp_path: Path) -> None:
    """As for blocks of tokens; what is restored meanwhile is met."""
    (tmp_path / "copy").mkdir()
    for path in folder.iterdir():
        (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    data = open_samples(tmp_path / "copy")
    tar, at = tmp_path / "copy" / "samples-00000.tar", offset_of(data, 4)
    flip(tar, at)
    with pytest.raises(BadBlock) as caught:
        data.read(4)
    assert caught.value.blocks[0].block == 4
    tar.unlink()
    tar.write_bytes((folder / tar.name).read_bytes())
    assert data.read(4).number == 4


LOST: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "tar": (lambda folder: (folder / "samples-00000.tar").unlink(), "samples-00000.tar", "is not there; put the data there again"),
    "shorter": (lambda folder: os.truncate(folder / "samples-00000.tar", 99), "samples-00000.tar", "should have"),
    "index": (lambda folder: (folder / "samples-00000.index").unlink(), "samples-00000.index", "is not there"),
    "other index": (lambda folder: flip(folder / "samples-00000.index", 9), "samples-00000.index", "its SHA-256 should be"),
}  # fmt: skip


@pytest.mark.parametrize(("lose", "field", "message"), LOST.values(), ids=LOST)
def test_what_the_store_lost_is_named_and_is_no_damage(
    data: SampleData, store: ObjectStore, lose: Callable[[Path], object], field: str, message: str
) -> None:
    lose(store.place.path)
    with pytest.raises(DataError, match=message) as caught:
        data.read(0)
    assert caught.value.field == field and not isinstance(caught.value, BadBlock)


def test_a_place_that_holds_no_samples_is_refused(store: ObjectStore, cache: NodeCache, tmp_path: Path) -> None:
    manifest = json.loads(store.get(MANIFEST))
    store.put(MANIFEST, json.dumps(manifest | {"format": 99}).encode())
    with pytest.raises(DataError, match="made by a newer Phalanx"):
        tars_in(store, cache)
    store.delete(MANIFEST)
    with pytest.raises(DataError, match=r"has no manifest\.json, so it is no prepared data; name another place"):
        tars_in(store, cache)
    write_tokens(tmp_path / "tokens", [100])
    tokens = open_store(tmp_path / "pushed")
    push_into(tmp_path / "tokens", tokens)
    with pytest.raises(DataError, match=r"data: 'file://.*pushed': holds tokens, not samples"):
        tars_in(tokens, cache)


def test_a_limit_below_what_is_read_is_refused_with_both_numbers(store: ObjectStore, tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "small", MIB)
    with pytest.raises(SetupError, match=rf"at once of samples-00000\.tar has {UNIT_BYTES} bytes; raise the limit") as caught:
        tars_in(store, cache)
    assert caught.value.value == f"{MIB} bytes"
    cache.close()


def test_nothing_that_ends_waits_for_a_store_that_is_away(data: SampleData, monkeypatch: pytest.MonkeyPatch) -> None:
    source, asked = tars_of(data).source, threading.Event()

    def away(*_: object) -> memoryview:
        asked.set()
        raise StoreUnavailable("s3://bucket: nobody answers; try again")

    monkeypatch.setattr(source.ranges, "read", away)
    stream = sample_stream(data, order_of(data), BARE, list)
    assert asked.wait(60)
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 60, "a fifth of the patience"
    source._patience_s = 0.2
    with pytest.raises(StoreUnavailable, match=r"nobody answers; try again \(tried for 0 s\)"):
        data.read(0)


def order_of(data: SampleData) -> PlainOrder:
    return PlainOrder(num_samples=len(data), seed=1, global_batch=6, shuffle=BlockShuffle(4, 3))


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_stream_of_any_rank_begins_anywhere_and_is_that_of_the_folder(
    data: SampleData, there: SampleData, world_size: int
) -> None:
    ranks = {"rank": world_size - 1, "world_size": world_size}
    with (
        sample_stream(data, order_of(data), BARE, list, 3, 12, **ranks) as far,
        sample_stream(there, order_of(data), BARE, list, 3, 12, **ranks) as near,
    ):
        assert [thread for thread in threading.enumerate() if thread.name == "data-ahead"]
        assert list(far) == list(near)
    assert not [thread for thread in threading.enumerate() if thread.name == "data-ahead"]


def test_a_wait_for_the_store_is_called_so(data: SampleData, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers nobody before the main thread is in `next`, and waits for the first batch."""
    source, waiting = tars_of(data).source, threading.Event()
    answer = source.ranges.read

    def late(*asked: Any) -> memoryview:
        assert waiting.wait(60)
        return answer(*asked)

    monkeypatch.setattr(source.ranges, "read", late)
    with sample_stream(data, order_of(data), BARE, list, stop=2) as stream:
        first = stream._waiting[0][0]
        result = first.result

        def waited() -> Any:
            waiting.set()
            return result()

        monkeypatch.setattr(first, "result", waited)
        assert len(list(stream)) == 2
        assert stream.stats.waited_s["store"] > 0


def test_what_is_needed_soon_is_fetched_before_it_is_asked_for(data: SampleData, cache: NodeCache) -> None:
    """Only one batch is made, which lies in the first unit; the next steps lie in another one too."""
    order = PlainOrder(num_samples=COUNT, seed=0, global_batch=2, shuffle=InOrder())
    assert {unit for step in range(8) for unit in tars_of(data).needed(data.asked(batch(order, step).sample.tolist()))} == {0, 1}
    with sample_stream(data, order, BARE, list, depth=1, threads=1):
        end = time.monotonic() + 60
        while len(units(cache)) < 2:
            assert time.monotonic() < end
            time.sleep(0.005)


def test_another_process_may_be_given_the_data_but_not_by_a_fork(data: SampleData) -> None:
    data.read(0)
    asked: list[Callable[[], object]] = [lambda: data.read(0), data.verify, lambda: list(data.read_all([1, 2]))]
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
    assert data.cache is not None and given == (data.place, data.manifest_hash, (data.cache.folder, LIMIT))
    assert pickle.loads(pickle.dumps(reopen)) is reopen


def test_verifying_reads_all_of_it_past_the_cache(data: SampleData, store: ObjectStore, cache: NodeCache) -> None:
    seen: list[int] = []
    data.verify(lambda done, total: seen.append(total - done))
    assert seen[-1] == 0
    flip(store.place.path / "samples-00001.tar", 12)
    (store.place.path / "samples-00000.index").unlink()
    with pytest.raises(DataError, match=r"samples-00000\.index is not there.*and 1 more: samples-00001\.tar"):
        data.verify()
    assert units(cache) == []


def test_what_is_pushed_is_compared_and_other_data_is_left_alone(folder: Path, tmp_path: Path) -> None:
    write_samples(tmp_path / "mine")
    flip(tmp_path / "mine" / "samples-00001.tar", 5000)
    store = open_store(tmp_path / "store")
    with pytest.raises(DataError, match=r"samples-00001\.tar: in .* it is damaged: its SHA-256 should be .*`phalanx data index`"):
        push_into(tmp_path / "mine", store)
    assert not (tmp_path / "store" / MANIFEST).exists()
    push_into(folder, store)
    push_into(folder, store)
    write_tokens(tmp_path / "tokens", [100])
    with pytest.raises(DataError, match="holds other data, which would be lost"):
        push_into(tmp_path / "tokens", store)


def test_links_to_tars_are_pushed_as_the_tars(folder: Path, there: SampleData, tmp_path: Path, cache: NodeCache) -> None:
    index([folder / "samples-00001.tar"], tmp_path / "linked")
    assert (tmp_path / "linked" / "samples-00001.tar").is_symlink()
    store = open_store(tmp_path / "store")
    push_into(tmp_path / "linked", store)
    assert samples_in(*tars_in(store, cache)).read(1).fields == there.read(29).fields


def test_a_url_of_this_machine_is_shown_and_verified_as_a_folder_is(folder: Path) -> None:
    of_url, of_folder = shown_unread(f"file://{folder}"), shown_unread(folder)
    assert {**of_url, "path": ""} == {**of_folder, "path": ""} and of_url["samples"] == COUNT
    assert verified(f"file://{folder}")["checksums_ok"]
