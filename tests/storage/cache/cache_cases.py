"""Contents in a folder, and a process that uses a cache of them and is killed at a given point."""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from phalanx.storage.cache.files import CacheFiles
from phalanx.storage.cache.index import Index, Unit
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.hashes import sha256_bytes

PIECE = 8192
PIECES = 8


class Contents:
    """An `Origin`: each object named by its hash. reads: how often each unit was read. gate: reads wait for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.reads: list[Unit] = []
        self.gate = threading.Event()
        self.gate.set()

    @classmethod
    def at(cls, folder: Path, count: int = 4) -> "tuple[Contents, list[Unit]]":
        """And its units; those of a content are neighbours."""
        folder.mkdir(exist_ok=True)
        units = []
        for number in range(count):
            data = bytes((number * 31 + at * 7 + at // 251) % 256 for at in range(PIECE * PIECES))
            (folder / sha256_bytes(data)).write_bytes(data)
            units += [Unit(sha256_bytes(data), piece, PIECE) for piece in range(PIECES)]
        return cls(folder), units

    def groups(self, units: Sequence[Unit]) -> Sequence[Sequence[Unit]]:
        return [units[at : at + 2] for at in range(0, len(units), 2)]

    def read(self, group: Sequence[Unit]) -> Sequence[Sequence[memoryview]]:
        """Each in two pieces."""
        assert self.gate.wait(60)
        self.reads.extend(group)
        return [(data[: PIECE // 2], data[PIECE // 2 :]) for data in map(self.bytes_of, group)]

    def bytes_of(self, unit: Unit) -> memoryview:
        data = (self._folder / unit.sha256).read_bytes()
        return memoryview(data)[unit.number * PIECE :][: unit.size_bytes]


def content(cache: NodeCache, unit: Unit) -> bytes:
    """Of a unit that is held."""
    return cache.path(unit).read_bytes()


def used_bytes(folder: Path) -> int:
    """What the units take on the disk, those too that are being written."""
    return sum({path.name.partition(".")[0]: size for path, size in sizes(folder)}.values())


def units_of(folder: Path, size_bytes: int) -> list[Path]:
    """The files of that size."""
    return [path for path, size in sizes(folder) if size == size_bytes]


def sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Of all files of units, while they come and go."""
    for path in (folder / "blocks").glob("*/*"):
        with suppress(FileNotFoundError):  # renamed or removed since it was listed
            yield path, path.stat().st_size


def killed(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str) -> None:
    """Ends the process when the method has done its work."""
    work: Callable[..., object] = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: killed(work(*given, **named)))


def half_written() -> None:
    """The process ends when it has written a unit's first piece."""
    write = CacheFiles.write

    def first(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
        yield next(iter(pieces))
        killed()

    def half(files: CacheFiles, unit: Unit, pieces: Iterable[memoryview], process: int) -> None:
        write(files, unit, first(pieces), process)

    setattr(CacheFiles, "write", half)  # noqa: B010 (a method is given another body)


POINTS: dict[str, Callable[[], object]] = {
    "entered": lambda: after(Index, "enter"),
    "reserved": lambda: setattr(NodeCache, "_fetch", killed),
    "half written": half_written,
    "not renamed": lambda: setattr(Path, "rename", killed),
    "renamed": lambda: after(Path, "rename"),
    "not counted": lambda: setattr(Index, "fetched", killed),
    "removed": lambda: after(CacheFiles, "remove"),
    "held": lambda: after(NodeCache, "hold"),
    "published": lambda: after(NodeCache, "publish"),
}


@contextmanager
def process(folder: Path, limit_bytes: int, point: str) -> Iterator[Callable[[], None]]:
    """A process that was forked before anybody here uses the cache. What is given lets it use that, and returns when it has come to
    the point and is dead."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)
        use(folder, limit_bytes, point)
        os._exit(1)

    def go() -> None:
        os.write(writes, b"!")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    try:
        yield go
    finally:
        os.close(writes)
        os.close(reads)


def use(folder: Path, limit_bytes: int, point: str) -> None:
    try:
        origin, units = Contents.at(folder / "store")
        POINTS[point]()
        cache = NodeCache(folder / "cache", limit_bytes)
        for begin in range(0, len(units), 4):
            cache.hold(units[begin : begin + 4], origin)
            cache.publish("test", {cache.key(unit): 1 for unit in units})
            cache.release(units[begin : begin + 4])
    except BaseException:  # noqa: BLE001 -- the tests' own end must not be run twice
        traceback.print_exc()
        os._exit(2)
