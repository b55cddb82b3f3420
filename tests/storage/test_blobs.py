"""Blobs by content: put once, checked both ways, whole or absent."""

import contextlib
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import NotFound, SetupError, SpecError, StoreUnavailable
from phalanx.storage.blobs import BLOB_BYTES_MAX, BlobStore
from phalanx.storage.hashes import sha256_bytes


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def test_what_is_put_comes_back_also_to_another_process(store: BlobStore, tmp_path: Path) -> None:
    sha256 = store.put(b"hello")
    assert sha256 == sha256_bytes(b"hello")
    assert store.put(b"hello") == sha256
    other = BlobStore(tmp_path / "blobs")
    assert other.has(sha256)
    assert other.get(sha256) == b"hello"


def test_empty_bytes_are_a_blob_too(store: BlobStore) -> None:
    assert store.get(store.put(b"")) == b""


@given(name=st.one_of(st.text(), st.sampled_from(["../../etc/passwd", "0" * 64, "F" * 64, "a" * 63 + "/"])))
def test_an_unknown_or_hostile_name_is_just_not_found(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = BlobStore(tmp_path_factory.getbasetemp() / "unknown")
    assert not store.has(name)
    with pytest.raises(NotFound):
        store.get(name)


def test_bytes_that_are_not_their_name_are_refused(store: BlobStore) -> None:
    with pytest.raises(SpecError, match="send them again"):
        store.put_checked("0" * 64, b"hello")
    assert not store.has("0" * 64)
    store.put_checked(sha256_bytes(b"hello"), b"hello")
    assert store.has(sha256_bytes(b"hello"))


def test_too_large_a_blob_is_refused(store: BlobStore) -> None:
    with pytest.raises(SpecError, match="256"):
        store.put(bytes(BLOB_BYTES_MAX + 1))


def test_damage_on_disk_is_seen_and_a_second_put_repairs_it(store: BlobStore, tmp_path: Path) -> None:
    sha256 = store.put(b"hello")
    (path,) = (tmp_path / "blobs").rglob(sha256)
    path.write_bytes(b"hellO")
    with pytest.raises(NotFound, match="damaged"):
        store.get(sha256)
    assert not store.has(sha256)  # else nobody would ever send it again
    store.put(b"hello")
    assert store.get(sha256) == b"hello"


def test_damage_that_nobody_has_read_yet_is_repaired_by_a_put(store: BlobStore, tmp_path: Path) -> None:
    sha256 = store.put(b"hello")
    (path,) = (tmp_path / "blobs").rglob(sha256)
    path.write_bytes(b"hellO")
    store.put(b"hello")
    assert store.get(sha256) == b"hello"


def test_a_put_of_bytes_that_are_there_already_flushes_them_before_it_returns(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = store.put(b"hello")
    (path,) = (tmp_path / "blobs").rglob(sha256)
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    store.put(b"hello")
    assert str(path) in flushed


def test_many_puts_of_one_blob_at_once_all_succeed(store: BlobStore) -> None:
    data = b"x" * 1_000_000
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(store.put, [data] * 16)) == {sha256_bytes(data)}
    assert store.get(sha256_bytes(data)) == data


def test_a_full_disk_stores_nothing(store: BlobStore) -> None:
    data = b"x" * 100_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(StoreUnavailable):
            store.put(data)
    assert not store.has(sha256_bytes(data))
    assert store.get(store.put(data)) == data


def test_a_root_that_cannot_be_made_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError):
        BlobStore(tmp_path / "file" / "blobs")
