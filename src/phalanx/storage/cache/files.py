"""The files of a cache: one a unit, named by its content, whole or absent.

blocks/3f/3fa1...-17       unit 17 of the content with that SHA-256
blocks/3f/3fa1...-17.4~    the same, while process 4 fetches it
processes/4                locked while process 4 lives
users                      locked by all of them together
index                      see `index`
"""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from phalanx.core.errors import Bug, SetupError
from phalanx.storage.cache.index import Unit

_NAME: Final = re.compile(r"([0-9a-f]{64})-(0|[1-9][0-9]{0,7})")
_HALF: Final = re.compile(_NAME.pattern + r"\.[0-9]+~")
_INDEX_FILES: Final = ("index", "index-wal", "index-shm")


class CacheFiles:
    """Below one folder. Methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blocks = folder / "blocks"
        self._processes = folder / "processes"
        for made in (self._blocks, self._processes):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def index(self) -> Path:
        return self.folder / _INDEX_FILES[0]

    def path(self, unit: Unit) -> Path:
        return self._path(unit.sha256, unit.number)

    def remove(self, sha256: str, number: int) -> None:
        """Whoever has it open or mapped keeps what it has."""
        self._path(sha256, number).unlink(missing_ok=True)

    def write(self, unit: Unit, pieces: Iterable[memoryview], process: int) -> None:
        """Under its name only when all of it is there; a disk that is full leaves nothing, and says so before the first piece."""
        fresh, path = self._fresh(unit, process), self.path(unit)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                if unit.size_bytes:  # one look for room, not one a page
                    os.posix_fallocate(descriptor, 0, unit.size_bytes)
                for piece in pieces:
                    rest = piece
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                if (size := os.lseek(descriptor, 0, os.SEEK_CUR)) != unit.size_bytes:
                    raise Bug(f"a unit of {unit.size_bytes} bytes came with {size}")
            finally:
                os.close(descriptor)
            fresh.rename(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def settle(self, unit: Unit, process: int) -> bool:
        """Whether a unit that a process was fetching when it ended is there; what it had of one that is not is removed."""
        self._fresh(unit, process).unlink(missing_ok=True)
        return self.path(unit).is_file()

    def found(self) -> Iterator[tuple[Unit, int]]:
        """Every unit that is there with its time in nanoseconds, while no process lives; what is half done is removed. Raises
        SetupError for what no cache has made, which is somebody's."""
        for path in self._blocks.glob("*/*"):
            status, name = path.lstat(), _NAME.fullmatch(path.name)
            if name and path.parent.name == name[1][:2] and status.st_size > 0:
                yield Unit(name[1], int(name[2]), status.st_size), status.st_mtime_ns
            elif name or _HALF.fullmatch(path.name):
                path.unlink()
            else:
                raise SetupError(
                    "data cache", str(path), "is no file of a cache; move it away, or name another folder for the cache"
                )

    def clear_index(self) -> None:
        """While no process lives."""
        for name in _INDEX_FILES:
            (self.folder / name).unlink(missing_ok=True)
        for path in self._processes.iterdir():
            path.unlink()

    # Life: a lock on a file, which the kernel drops when its holder ends, however it ends

    def live(self, process: int) -> int:
        """Says that this process lives, until the descriptor is closed."""
        descriptor = os.open(self._processes / str(process), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def has_ended(self, process: int) -> bool:
        try:
            descriptor = os.open(self._processes / str(process), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def bury(self, known: Sequence[int]) -> None:
        """Removes what processes left that are not known, or not any more; while no process enters or leaves."""
        for path in self._processes.iterdir():
            if not (path.name.isdecimal() and int(path.name) in known):
                path.unlink(missing_ok=True)

    def lock_users(self) -> tuple[int, bool]:
        """A descriptor to keep open while this process uses the cache, and whether nobody else does: then it is locked alone, and
        `share` lets others in. One of them may be alone in between: what was read before is not known after."""
        descriptor = os.open(self.folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            return descriptor, False
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, True

    def share(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)

    def _path(self, sha256: str, number: int) -> Path:
        return self._blocks / sha256[:2] / f"{sha256}-{number}"

    def _fresh(self, unit: Unit, process: int) -> Path:
        return self.path(unit).with_name(f"{unit.sha256}-{unit.number}.{process}~")
