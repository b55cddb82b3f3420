"""A local folder as a store: full, read-only, gone, written by others, and cut off in the middle."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.core.errors import NotFound, SetupError, StoreUnavailable
from phalanx.storage.atomic import write_atomic
from phalanx.storage.local_writes import LocalWrites
from phalanx.storage.objects import ObjectStore, open_store


@pytest.fixture
def local(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path / "objects")


@contextlib.contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Writes past it fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_stores_nothing_and_leaves_nothing(local: ObjectStore, tmp_path: Path) -> None:
    local.put("a", b"old")
    etag = local.head("a").etag
    writes: list[Callable[[], object]] = [
        lambda: local.put("a", b"x" * 100_000),
        lambda: local.put("new", b"x" * 100_000),
        lambda: local.put_if_absent("new", b"x" * 100_000),
        lambda: local.put_if_match("a", b"x" * 100_000, etag),
    ]
    with file_size_limit(1000):
        for write in writes:
            with pytest.raises(StoreUnavailable, match="nothing was changed"):
                write()
    assert local.get("a") == b"old"
    assert {path.name for path in (tmp_path / "objects").iterdir()} == {"a", "lock#0"}
    assert local.put_if_match("a", b"new", etag)


def test_a_read_only_file_system_is_the_users_to_change() -> None:
    with pytest.raises(SetupError, match="choose another place"):
        open_store("/sys/phalanx-test")
    store = open_store("/sys/kernel")  # there, and nobody may write in it
    for write in (lambda: store.put("phalanx-test", b"x"), lambda: store.put_if_absent("deep/phalanx-test", b"x")):
        with pytest.raises(SetupError, match="choose another place"):
            write()


def test_a_file_where_the_store_should_be_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="a file where a folder is needed"):
        open_store(tmp_path / "file" / "objects")


def test_an_object_and_a_folder_of_one_name_clash_with_one_error(local: ObjectStore) -> None:
    local.put("a", b"x")
    with pytest.raises(SetupError, match="a file where a folder is needed"):
        local.put("a/b", b"x")
    local.put("f/b", b"x")
    with pytest.raises(SetupError, match="is a folder where a file is needed"):
        local.put("f", b"x")
    with pytest.raises(NotFound):
        local.get("f")


def test_a_folder_that_vanished_may_come_back(local: ObjectStore, tmp_path: Path) -> None:
    local.put("a", b"x")
    (tmp_path / "objects").rename(tmp_path / "unmounted")
    asks: list[Callable[[], object]] = [
        local.check,
        lambda: local.get("a"),
        lambda: list(local.list()),
        lambda: local.put("b/c", b"x"),
        lambda: local.put_if_absent("b/c", b"x"),
        lambda: local.put_if_match("a", b"x", "e"),
        lambda: local.delete("a"),
        lambda: open_store(tmp_path / "objects", make=False),
    ]
    for ask in asks:
        with pytest.raises(StoreUnavailable, match="the folder is gone"):
            ask()
    assert not (tmp_path / "objects").exists()
    (tmp_path / "unmounted").rename(tmp_path / "objects")
    assert local.get("a") == b"x"


def test_bytes_and_name_are_on_the_disk_before_the_put_returns(
    local: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    root = tmp_path / "objects"
    local.put("d/a", b"x")
    assert flushed[0].startswith(str(root / "d" / "a#"))  # before it has the name
    assert flushed[1:] == [str(root / "d"), str(root)]
    flushed.clear()
    assert not local.put_if_absent("d/a", b"x")
    assert flushed == [str(root / "d" / "a"), str(root / "d"), str(root)]


def test_a_new_folder_is_on_the_disk_before_anything_is_put_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    open_store(tmp_path / "a" / "objects")
    assert set(flushed) == {str(tmp_path), str(tmp_path / "a")}
    flushed.clear()
    write_atomic(tmp_path / "b" / "c" / "file", b"x")
    assert {str(tmp_path), str(tmp_path / "b"), str(tmp_path / "b" / "c")} <= set(flushed)


WRITER = """
import sys
from phalanx.storage.objects import open_store
store = open_store(sys.argv[1])
number = 0
while True:
    store.put("a", bytes([number % 256]) * 2_000_000)
    number += 1
"""


def test_a_writer_killed_anywhere_leaves_whole_objects_only(local: ObjectStore, tmp_path: Path) -> None:
    for round_number in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "objects")])
        try:
            end = time.monotonic() + 60
            while not (tmp_path / "objects" / "a").exists() and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(0.003 * round_number)  # somewhere else in its loop each time
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        data = local.get("a")
        assert len(data) == 2_000_000
        assert len(set(data)) == 1
        assert [found.key for found in local.list()] == ["a"]
        local.put("a", b"\0" * 2_000_000)  # the lock of the killed one holds nobody up


def test_no_two_versions_have_one_etag_even_when_the_clock_stands(tmp_path: Path) -> None:
    """Their inodes are used again, and their sizes are equal: only the time tells them apart."""
    store = open_store(tmp_path)
    writes = LocalWrites(tmp_path, lambda: 1_700_000_000_000_000_000)
    etags = set()
    for number in range(50):
        writes.put("a", str(number % 10).encode())
        etags.add(store.head("a").etag)
    assert len(etags) == 50
