"""One conformance suite over every kind of store that runs here: a folder, memory, and a real S3 server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phalanx.core.errors import NotFound, SpecError
from phalanx.storage.objects import PART_BYTES, ObjectStore

HOSTILE = (
    "", "/", "/etc/passwd", "..", "a/../b", "../a", "a/./b", "a//b", "a/", "./a", "a\0b", "a\nb", "a\x7fb", "a\u202eb", "a\\b",
    "\udcff", "x" * 801, "a/" + "x" * 201, "part#12", "a#1/b", "a/..",
)  # fmt: skip
ODD = (
    "a b",
    "100%",
    "a%20b",
    "ü/€",
    "a?b=c&d",
    "a+b",
    "a:b",
    "~",
    "...",
    "#",
    "a#b",
    "x" * 200,
    "/".join(["d" * 99] * 8),
    ".hidden",
)


def test_what_is_put_comes_back_and_is_replaced_whole(store: ObjectStore) -> None:
    store.put("run/a", b"one")
    assert store.get("run/a") == b"one"
    store.put("run/a", b"two two")
    assert store.get("run/a") == b"two two"
    found = store.head("run/a")
    assert (found.key, found.size_bytes) == ("run/a", 7)
    assert found.modified_ms > 1_600_000_000_000
    data, info = store.read("run/a")
    assert (data, info) == (b"two two", found)


def test_an_empty_object_is_one_too(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert store.head("empty").size_bytes == 0


def test_what_is_not_there_is_not_found(store: ObjectStore) -> None:
    asks: list[Callable[[], object]] = [
        lambda: store.get("no"),
        lambda: store.head("no"),
        lambda: store.read("no"),
        lambda: store.get_range("no", 0, 1),
    ]
    for ask in asks:
        with pytest.raises(NotFound, match="no such object"):
            ask()
    store.delete("no")  # deleting is idempotent


def test_deleted_objects_are_gone(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    with pytest.raises(NotFound):
        store.get("a/b")
    assert list(store.list()) == []


@pytest.mark.parametrize(
    ("start", "length", "expected"), [(0, 3, b"012"), (7, 100, b"789"), (10, 1, b""), (99, 5, b""), (3, 0, b""), (-1, 2, b"")]
)
def test_ranges(store: ObjectStore, start: int, length: int, expected: bytes) -> None:
    store.put("r", b"0123456789")
    assert store.get_range("r", start, length) == expected


@pytest.mark.parametrize("key", HOSTILE)
def test_a_hostile_key_is_refused_everywhere(store: ObjectStore, key: str) -> None:
    asks: list[Callable[[], object]] = [
        lambda: store.put(key, b"x"),
        lambda: store.put_if_absent(key, b"x"),
        lambda: store.put_if_match(key, b"x", "e"),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.delete(key),
    ]
    for ask in asks:
        with pytest.raises(SpecError, match="write a relative name"):
            ask()
    if key:
        with pytest.raises(SpecError):
            list(store.list(key))
    assert list(store.list()) == []


def test_odd_keys_mean_the_same_in_every_store(store: ObjectStore) -> None:
    for number, key in enumerate(ODD):
        store.put(key, str(number).encode())
    assert [store.get(key) for key in ODD] == [str(number).encode() for number in range(len(ODD))]
    assert {found.key for found in store.list()} == set(ODD)


def test_lists_are_by_folder_and_longer_than_a_page(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"many/{number}", b"x"), range(1_050)))
    store.put("many-more/1", b"x")
    assert {found.key for found in store.list("many")} == {f"many/{number}" for number in range(1_050)}
    assert [found.key for found in store.list("many-more")] == ["many-more/1"]
    assert list(store.list("nothing")) == []
    assert len(list(store.list())) == 1_051


def test_of_many_conditional_puts_at_once_one_wins(store: ObjectStore) -> None:
    for round_number in range(3):
        key = f"race/{round_number}"
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda number, key=key: store.put_if_absent(key, str(number).encode()), range(16)))
        assert won.count(True) == 1
        assert store.get(key) == str(won.index(True)).encode()


def test_a_counter_moved_by_matching_puts_loses_no_step(store: ObjectStore) -> None:
    """Compare and swap: every success is one step, so a false success would show as a missing one."""
    store.put("counter", b"0")

    def add(_: int) -> None:
        while True:
            data, info = store.read("counter")
            if store.put_if_match("counter", str(int(data) + 1).encode(), info.etag):
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(64)))
    assert store.get("counter") == b"64"


def test_a_matching_put_needs_that_very_version(store: ObjectStore) -> None:
    store.put("a", b"old")
    etag = store.head("a").etag
    store.put("a", b"new")
    assert not store.put_if_match("a", b"mine", etag)
    assert store.get("a") == b"new"
    assert store.put_if_match("a", b"mine", store.head("a").etag)
    store.delete("a")
    assert not store.put_if_match("a", b"mine", etag)
    with pytest.raises(NotFound):
        store.get("a")


def test_large_objects_go_in_parts_from_memory_and_from_a_file(store: ObjectStore, tmp_path: Path) -> None:
    data = bytes(range(256)) * (2 * PART_BYTES // 256 + 1)
    store.put("large", data)
    assert store.get("large") == data
    (tmp_path / "file").write_bytes(data[1:])
    store.put("large", tmp_path / "file")
    assert store.get("large") == data[1:]
    assert store.get_range("large", PART_BYTES - 1, 3) == data[PART_BYTES : PART_BYTES + 3]
    with pytest.raises(NotFound, match="not a file"):
        store.put("large", tmp_path / "none")
    assert store.get("large") == data[1:]


def test_a_store_that_works_passes_its_check(store: ObjectStore) -> None:
    store.check()
    store.put("a", b"x")
    store.check()
