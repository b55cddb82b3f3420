"""A cache that processes share: one fetches, the limit holds at every moment, and a kill at any point leaves nothing behind."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.core.errors import Bug, SetupError, StoreUnavailable
from phalanx.storage.cache import node_cache
from phalanx.storage.cache.index import Index, Unit
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.cache.opened import cache_at
from tests.storage.cache.cache_cases import PIECE, PIECES, POINTS, Contents, content, process, used_bytes

ALL = 4 * PIECES * PIECE
LIMIT = 12 * PIECE


@contextmanager
def opened(folder: Path, limit_bytes: int = LIMIT) -> Iterator[NodeCache]:
    cache = NodeCache(folder / "cache", limit_bytes)
    try:
        yield cache
    finally:
        cache.close()


def until(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end
        time.sleep(0.005)


def check(cache: NodeCache, origin: Contents, units: list[Unit]) -> None:
    """Every unit can be had, and the disk holds what the index counts."""
    for begin in range(0, len(units), 4):
        some = units[begin : begin + 4]
        cache.hold(some, origin)
        assert [content(cache, unit) for unit in some] == [bytes(origin.bytes_of(unit)) for unit in some]
        cache.release(some)
    assert used_bytes(cache.folder) == cache.held_bytes <= LIMIT
    assert not list((cache.folder / "blocks").glob("*/*~")), "nothing half done is left"


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_needs_no_clean_up(tmp_path: Path, point: str) -> None:
    """Neither by a process that uses the cache meanwhile, nor by the next one to come."""
    origin, units = Contents.at(tmp_path / "store")
    with process(tmp_path, LIMIT, point) as killed, opened(tmp_path) as cache:
        killed()
        check(cache, origin, units)
        cache.publish("run", {})
        assert len(list((tmp_path / "cache" / "processes").iterdir())) == 1, "the dead one is forgotten"
    with process(tmp_path, LIMIT, point) as killed:
        killed()
    with opened(tmp_path) as cache:
        check(cache, origin, units)
    assert list((tmp_path / "cache" / "processes").iterdir()) == []


def test_a_unit_is_fetched_once_for_all_processes_and_the_next_job_finds_it(tmp_path: Path) -> None:
    origin, units = Contents.at(tmp_path / "store")
    with opened(tmp_path) as one, opened(tmp_path) as other:
        with ThreadPoolExecutor(4) as pool:
            for cache in (one, other):
                for _ in range(2):
                    pool.submit(cache.hold, units[:8], origin)
        assert sorted(origin.reads, key=units.index) == units[:8]
    with opened(tmp_path) as later:
        later.hold(units[:8], origin)
    assert len(origin.reads) == 8


def test_who_waits_for_a_fetcher_that_is_killed_fetches_itself(tmp_path: Path) -> None:
    origin, units = Contents.at(tmp_path / "store")
    child = os.fork()
    if child == 0:  # it never ends its reading
        origin.gate.clear()
        NodeCache(tmp_path / "cache", LIMIT).hold(units[:2], origin)
        os._exit(1)
    with opened(tmp_path) as cache:
        until(lambda: cache.held_bytes == 2 * PIECE)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(cache.hold, units[:2], origin)
            time.sleep(0.05)
            assert not waits.done()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            waits.result(60)
        assert origin.reads == units[:2]


def test_what_is_held_stays_and_what_is_needed_last_goes(tmp_path: Path) -> None:
    origin, units = Contents.at(tmp_path / "store")
    with opened(tmp_path) as cache, opened(tmp_path) as other:
        cache.hold(units[:4], origin)
        other.hold(units[4:12], origin)
        other.release(units[4:12])
        other.publish("run", {other.key(unit): at for at, unit in enumerate(units[4:11])})
        cache.hold([units[12]], origin)  # full by now: the one that nobody needs goes
        assert not cache.path(units[11]).exists()
        cache.hold([units[13]], origin)  # and then the one that is needed last
        assert [unit for unit in units[:14] if not cache.path(unit).exists()] == [units[10], units[11]]
        assert other.fetch_ahead([units[10]], origin, beyond=6) == "full", "nothing goes that is needed before it"
        assert other.fetch_ahead([units[10]], origin, beyond=4) == "begun"


def test_the_disk_never_holds_more_than_the_limit(tmp_path: Path) -> None:
    """Two processes' worth of threads read everything again and again, and a third watches the disk."""
    origin, units = Contents.at(tmp_path / "store")
    over: list[int] = []
    with opened(tmp_path) as one, opened(tmp_path, ALL) as other:
        ends = threading.Event()

        def watch() -> None:
            while not ends.is_set():
                with one._index.alone():  # or what goes while the files are counted would count with what came for it
                    used = used_bytes(one.folder)
                over.extend([used] if used > LIMIT else [])

        def read(cache: NodeCache, first: int) -> None:
            for turn in range(12):
                at = (first + turn * 5) % (len(units) - 3)
                cache.hold(units[at : at + 3], origin)
                assert all(content(cache, unit) == bytes(origin.bytes_of(unit)) for unit in units[at : at + 3])
                cache.release(units[at : at + 3])

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(read, cache, first) for cache, first in ((one, 0), (one, 9), (other, 4), (other, 20))]
        ends.set()
        watcher.join()
        for future in done:
            future.result()
        assert over == []
        assert one.held_bytes == used_bytes(one.folder) == LIMIT


def test_more_at_once_than_the_limit_is_refused_at_once_with_both_numbers(tmp_path: Path) -> None:
    origin, units = Contents.at(tmp_path / "store")
    with opened(tmp_path) as cache, pytest.raises(SetupError, match=rf"{13 * PIECE} bytes; raise the limit") as caught:
        cache.hold(units[:13], origin)
    assert caught.value.value == f"{LIMIT} bytes"


def test_room_that_others_hold_is_waited_for_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, units = Contents.at(tmp_path / "store")
    with opened(tmp_path) as one, opened(tmp_path) as other, ThreadPoolExecutor(1) as pool:
        one.hold(units[:12], origin)
        waits = pool.submit(other.hold, units[12:14], origin)
        time.sleep(0.05)
        assert not waits.done()
        one.release(units[:2])
        waits.result(60)
        monkeypatch.setattr(node_cache, "ROOM_PATIENCE_S", 0.05)
        with pytest.raises(StoreUnavailable, match=r"has held all of this cache's 96\.0 KiB.*raise its limit"):
            other.hold(units[14:16], origin)
        one.call_when_full(lambda: one.release(units[2:4]))
        monkeypatch.undo()
        one.hold(units[16:18], origin)  # what is held for convenience makes room


def test_who_waits_for_room_keeps_none_from_others_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two threads wants half of what is there, and one unit more, for which half of the other's must go."""
    monkeypatch.setattr(node_cache, "ROOM_PATIENCE_S", 5.0)
    origin, units = Contents.at(tmp_path / "store")
    wanted = [[*units[:6], units[12]], [*units[6:12], units[13]]]
    with opened(tmp_path) as cache, ThreadPoolExecutor(2) as pool:
        for some in (units[:6], units[6:12]):
            cache.hold(some, origin)
        waiting: set[int] = set()
        cache.call_when_full(lambda: waiting.add(threading.get_ident()))

        def read(some: list[Unit]) -> None:
            cache.hold(some, origin)
            cache.release(some)

        done = [pool.submit(read, some) for some in wanted]
        until(lambda: len(waiting) == 2)
        for some in (units[:6], units[6:12]):
            cache.release(some)
        for future in done:
            future.result(60)


def test_a_fetch_that_fails_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    origin, units = Contents.at(tmp_path / "store")
    shard = tmp_path / "store" / units[0].sha256
    with opened(tmp_path) as cache:
        shard.rename(tmp_path / "away")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="No such file"):
                cache.hold(units[:2], origin)
            assert cache.held_bytes == used_bytes(cache.folder) == 0
        (tmp_path / "away").rename(shard)
        check(cache, origin, units)


class Cut(Contents):
    """Of each unit the first piece alone. refuses: the second is refused as it is asked for."""

    refuses = True

    def read(self, group: Sequence[Unit]) -> Sequence[Iterator[memoryview]]:  # type: ignore[override]
        return [self.first_of(unit) for unit in group]

    def first_of(self, unit: Unit) -> Iterator[memoryview]:
        yield self.bytes_of(unit)[: PIECE // 2]
        if self.refuses:
            raise StoreUnavailable("damaged")


@pytest.mark.parametrize("refuses", [True, False])
def test_a_unit_of_which_a_piece_is_refused_or_missing_is_nobodys(tmp_path: Path, refuses: bool) -> None:
    origin, units = Contents.at(tmp_path / "store")
    cut = Cut(tmp_path / "store")
    cut.refuses = refuses
    with opened(tmp_path) as cache:
        with pytest.raises(StoreUnavailable if refuses else Bug, match="damaged" if refuses else f"came with {PIECE // 2}"):
            cache.hold(units[:2], cut)
        assert cache.held_bytes == used_bytes(cache.folder) == 0
        check(cache, origin, units)


class Unwritable(Contents):
    """Its disk takes no more from some moment on, not even what the index says of that. cache: whose."""

    cache: NodeCache

    def read(self, group: Sequence[Unit]) -> Sequence[Sequence[memoryview]]:
        if self.gate.is_set():
            return super().read(group)
        self.cache._index._db.execute("PRAGMA query_only=ON")
        raise OSError(errno.ENOSPC, "no space")


def test_what_could_not_be_given_back_on_a_full_disk_is_given_back_later(tmp_path: Path) -> None:
    units, origin = Contents.at(tmp_path / "store")[1], Unwritable(tmp_path / "store")
    with opened(tmp_path) as cache, opened(tmp_path) as other:
        origin.cache = cache
        origin.gate.clear()
        with pytest.raises(StoreUnavailable, match="index cannot be written"):
            cache.hold(units[:2], origin)
        cache._index._db.execute("PRAGMA query_only=OFF")
        cache.publish("run", {})
        assert other._index.fetching(units) == [], "nobody waits for what is fetched no more"
        origin.gate.set()
        cache.hold(units[4:6], origin)
        cache.release(units[4:6])
        other.hold(units[6:18], origin)  # all of the limit: nothing is held by nobody


def test_a_cache_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody is taken for alive: whoever comes next may make the index anew."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with opened(tmp_path):
        pass
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("shrink", "enter"):
        with monkeypatch.context() as changed:
            changed.setattr(Index, name, full)
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match="no space"):
                    NodeCache(tmp_path / "cache", LIMIT)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with opened(tmp_path) as cache:
        assert len(cache._index.processes()) == 1


def test_a_folder_of_other_files_is_no_cache(tmp_path: Path) -> None:
    mine = tmp_path / "cache" / "blocks" / "2024" / "letters.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(SetupError, match=r"is no file of a cache; move it away"):
        NodeCache(tmp_path / "cache", LIMIT)
    assert mine.read_text() == "mine"


FULL = """
import resource, signal, sys
from pathlib import Path
from phalanx.storage.cache.node_cache import NodeCache
from tests.storage.cache.cache_cases import PIECE, Contents, used_bytes
origin, units = Contents.at(Path(sys.argv[1]) / "store")
cache = NodeCache(Path(sys.argv[1]) / "cache", 12 * PIECE)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (PIECE // 2, resource.RLIM_INFINITY))
try:
    cache.hold(units[:2], origin)
except Exception as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert used_bytes(cache.folder) == 0
cache.hold(units[:2], origin)
assert used_bytes(cache.folder) == cache.held_bytes == 2 * PIECE
"""


def test_a_disk_that_takes_no_more_is_told_and_nothing_is_half_done(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("StoreUnavailable"), done.stdout
    assert "cache" in done.stdout


def test_a_process_has_one_cache_of_a_folder_and_its_children_their_own(tmp_path: Path) -> None:
    origin, units = Contents.at(tmp_path / "store")
    cache = cache_at(tmp_path / "cache", LIMIT)
    assert cache_at(tmp_path / "cache") is cache
    with pytest.raises(SetupError, match=f"this process uses the cache .* with {LIMIT}"):
        cache_at(tmp_path / "cache", LIMIT + 1)
    cache.hold(units[:2], origin)
    child = os.fork()
    if child == 0:
        cache.release(units[:2])  # as whatever the child lets go of does
        try:
            cache.hold(units[:2], origin)
        except SetupError as error:
            refused = "opened before this process was forked" in str(error)
            own = cache_at(tmp_path / "cache", LIMIT)
            own.hold(units[:2], origin)
            os._exit(0 if refused and own is not cache and own.process != cache.process else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert cache._index._db.execute("SELECT COUNT(*) FROM leases WHERE process = ?", (cache.process,)).fetchone() == (2,)
    cache.release(units[:2])
    check(cache, origin, units)
