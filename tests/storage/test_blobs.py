"""Blobs by content: put once, checked both ways, whole or absent."""

import contextlib
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import NotFound, SpecError, StoreUnavailable
from phalanx.storage.blobs import ASKED_S, BLOB_BYTES_MAX, BlobInfo, BlobStore
from phalanx.storage.hashes import sha256_bytes
from phalanx.storage.objects import PART_BYTES, ObjectStore, open_store


@pytest.fixture
def local(tmp_path: Path) -> BlobStore:
    return BlobStore(open_store(tmp_path / "blobs"))


@pytest.fixture
def blobs(store: ObjectStore) -> BlobStore:
    """In every kind of store that runs here."""
    return BlobStore(store)


def test_what_is_put_comes_back_also_to_another_process(blobs: BlobStore, store: ObjectStore) -> None:
    sha256 = blobs.put(b"hello")
    assert sha256 == sha256_bytes(b"hello")
    assert blobs.put(b"hello") == sha256
    other = BlobStore(store)
    assert other.has(sha256)
    assert other.get(sha256) == b"hello"


def test_empty_bytes_are_a_blob_too(blobs: BlobStore) -> None:
    sha256 = blobs.put(b"")
    assert blobs.has(sha256)
    assert blobs.get(sha256) == b""


@given(name=st.one_of(st.text(), st.sampled_from(["../../etc/passwd", "0" * 64, "F" * 64, "a" * 63 + "/"])))
def test_an_unknown_or_hostile_name_is_just_not_found(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = BlobStore(open_store(tmp_path_factory.getbasetemp() / "unknown"))
    assert not store.has(name)
    with pytest.raises(NotFound):
        store.get(name)


def test_bytes_that_are_not_their_name_are_refused(blobs: BlobStore) -> None:
    with pytest.raises(SpecError, match="send them again"):
        blobs.put_checked("0" * 64, b"hello")
    assert not blobs.has("0" * 64)
    blobs.put_checked(sha256_bytes(b"hello"), b"hello")
    assert blobs.has(sha256_bytes(b"hello"))


def test_too_large_a_blob_is_refused(local: BlobStore) -> None:
    with pytest.raises(SpecError, match="256"):
        local.put(bytes(BLOB_BYTES_MAX + 1))


def test_a_large_file_is_put_in_parts_once_and_comes_back_into_a_file(blobs: BlobStore, store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(b"large" * (PART_BYTES // 4))
    sha256 = blobs.put(source)
    blobs.put_checked(sha256, source)
    with (tmp_path / "back").open("w+b") as back:
        back.write(b"x" * 2 * source.stat().st_size)  # what was in it before is gone
        blobs.copy(sha256, back)
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    with pytest.raises(SpecError, match="send them again"):
        blobs.put_checked("0" * 64, source)
    flip(store, sha256)
    blobs.put(source)
    assert sha256_bytes(blobs.get(sha256)) == sha256


def flip(store: ObjectStore, sha256: str) -> None:
    """Damages what is stored under the name by one bit."""
    (key,) = (found.key for found in store.list() if found.key.endswith(sha256))
    data = bytearray(store.get(key))
    data[-1] ^= 0x20
    store.put(key, bytes(data))


def test_a_flipped_bit_is_seen_never_handed_out_and_a_second_put_repairs_it(blobs: BlobStore, store: ObjectStore) -> None:
    sha256 = blobs.put(b"hello")
    flip(store, sha256)
    for _ in range(2):
        with pytest.raises(NotFound, match="damaged in the store and are removed"):
            blobs.get(sha256)
    assert not blobs.has(sha256)  # else nobody would ever send it again
    blobs.put(b"hello")
    assert blobs.get(sha256) == b"hello"


def test_damage_that_nobody_has_read_yet_is_repaired_by_a_put(blobs: BlobStore, store: ObjectStore) -> None:
    sha256 = blobs.put(b"hello")
    flip(store, sha256)
    blobs.put(b"hello")
    assert blobs.get(sha256) == b"hello"


def test_damage_on_disk_is_seen(local: BlobStore, tmp_path: Path) -> None:
    sha256 = local.put(b"hello")
    (path,) = (tmp_path / "blobs").rglob(sha256)
    path.write_bytes(b"hellO")
    with pytest.raises(NotFound, match="damaged"):
        local.get(sha256)


def test_a_repair_made_while_another_reads_the_damage_stays(blobs: BlobStore, store: ObjectStore) -> None:
    sha256 = blobs.put(b"hello")
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            flip(store, sha256)

            def read(_: int) -> None:
                with contextlib.suppress(NotFound, StoreUnavailable):
                    assert blobs.get(sha256) == b"hello"

            readers = [pool.submit(read, number) for number in range(6)]
            blobs.put(b"hello")
            for reader in readers:
                reader.result()
            assert blobs.get(sha256) == b"hello"


def test_many_puts_of_one_blob_at_once_all_succeed(blobs: BlobStore) -> None:
    data = b"x" * 1_000_000
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(blobs.put, [data] * 16)) == {sha256_bytes(data)}
    assert blobs.get(sha256_bytes(data)) == data


def test_blobs_are_listed_and_nothing_else_is(blobs: BlobStore, store: ObjectStore) -> None:
    sha256 = blobs.put(b"hello")
    store.put("owner", b"not a blob")
    store.put(f"zz/{sha256}", b"in the wrong place")
    (found,) = list(blobs.list())
    assert found == BlobInfo(sha256, 5, found.modified_ms)


def test_a_doomed_blob_is_absent_until_it_is_put_again(store: ObjectStore) -> None:
    now_s = [0.0]
    blobs = BlobStore(store, lambda: now_s[0])
    sha256 = blobs.put(b"hello")
    now_s[0] = ASKED_S + 1
    assert blobs.doom({sha256}) == {sha256}
    assert not blobs.has(sha256)
    assert blobs.is_doomed(sha256)
    blobs.put(b"hello")  # somebody sends it before it is gone
    assert not blobs.remove(sha256)
    assert blobs.get(sha256) == b"hello"
    now_s[0] = 2 * ASKED_S + 2
    assert blobs.doom({sha256}) == {sha256}
    assert blobs.remove(sha256)
    assert blobs.remove(sha256)
    assert blobs.is_doomed(sha256)  # a job that asked before must not name it
    assert list(blobs.list()) == []
    blobs.put(b"hello")
    assert not blobs.is_doomed(sha256)
    assert blobs.has(sha256)


def test_a_blob_that_was_put_or_asked_for_lately_is_not_doomed(store: ObjectStore) -> None:
    now_s = [0.0]
    blobs = BlobStore(store, lambda: now_s[0])
    sha256 = blobs.put(b"hello")
    assert blobs.doom({sha256}) == set()
    now_s[0] = ASKED_S - 1
    assert blobs.has(sha256)
    now_s[0] = ASKED_S + 1
    assert blobs.doom({sha256}) == set()
    now_s[0] = 2 * ASKED_S
    assert blobs.doom({sha256}) == {sha256}


def test_only_what_was_asked_for_lately_is_kept_in_mind(tmp_path: Path) -> None:
    now_s = [0.0]
    blobs = BlobStore(open_store(tmp_path / "blobs"), lambda: now_s[0])
    first = blobs.put(b"0")
    for number in range(1, 20):
        now_s[0] += ASKED_S / 4
        blobs.put(str(number).encode())
        assert blobs.has(first)
    assert len(blobs._asked_s) <= 5


def test_a_put_waits_for_the_removal_of_the_same_blob_and_for_no_other(store: ObjectStore) -> None:
    """A slow store must not hold up uploads while garbage goes."""
    now_s = [0.0]
    blobs = BlobStore(store, lambda: now_s[0])
    sha256 = blobs.put(b"hello")
    now_s[0] = ASKED_S + 1
    blobs.doom({sha256})
    delete, begun, go = store.delete, threading.Event(), threading.Event()

    def slowly(key: str) -> None:
        begun.set()
        assert go.wait(60)
        delete(key)

    store.delete = slowly  # type: ignore[method-assign] # the same deletion, and time in it
    with ThreadPoolExecutor(2) as pool:
        removal = pool.submit(blobs.remove, sha256)
        assert begun.wait(60)
        other = blobs.put(b"other")  # at once
        again = pool.submit(blobs.put, b"hello")
        assert blobs.has(other)
        assert not again.done()
        go.set()
        assert removal.result()
        assert again.result() == sha256
    assert blobs.get(sha256) == b"hello"


def test_a_full_disk_stores_nothing(local: BlobStore) -> None:
    data = b"x" * 100_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(StoreUnavailable):
            local.put(data)
    assert not local.has(sha256_bytes(data))
    assert local.get(local.put(data)) == data
