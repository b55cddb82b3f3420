"""Durable writes of a local object store: whole or absent, also after a power cut, and one winner among any processes.

Bytes go into `<name>#<number>` beside the object, which no listing shows, and to the disk; under the store's lock that file
takes the name. Each write gets a modification time after the last one's, so that no two contents have one ETag.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from phalanx.storage.atomic import fsync_folder

LOCK: Final = "lock#0"
_TICK_NS: Final = 1_000
"""ETags of local files count microseconds."""


class LocalWrites:
    """Writes below `root`, which is never made here: where it is gone, a disk is not mounted. Every method raises OSError, and then
    nothing was changed."""

    def __init__(self, root: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._root = root
        self._now_ns = now_ns

    def put(self, key: str, data: bytes | Path, expected: Callable[[], bool] = lambda: True) -> bool:
        """Replaces the object, if `expected` says so under the lock."""
        path = self._root / key
        with self._written(path, data) as fresh, self._alone():
            if not expected():
                return False
            self._stamp(fresh, path)
            fresh.replace(path)
            self._sync(path)
            return True

    def put_if_absent(self, key: str, data: bytes | Path) -> bool:
        """True for the one that made the object. Either way it is durable afterwards."""
        path = self._root / key
        if path.is_file():
            self._flush(path)  # whoever wrote it may have ended before its name was on the disk
            return False
        with self._written(path, data) as fresh, self._alone():
            if os.path.lexists(path):
                self._flush(path)
                return False
            self._stamp(fresh, path)
            fresh.rename(path)
            self._sync(path)
            return True

    def delete(self, key: str) -> None:
        """An object that is not there is deleted."""
        path = self._root / key
        with self._alone(), contextlib.suppress(FileNotFoundError):
            path.unlink()
            fsync_folder(path.parent)

    @contextlib.contextmanager
    def _written(self, path: Path, data: bytes | Path) -> Iterator[Path]:
        """`data` in a durable file beside `path`, gone afterwards if it did not take the name."""
        for folder in reversed(path.relative_to(self._root).parents[:-1]):  # durable by `_sync`, like the name
            (self._root / folder).mkdir(exist_ok=True, mode=0o700)
        fresh = path.with_name(f"{path.name}#{secrets.randbits(60)}")
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, 2**20)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield fresh
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink()

    def _stamp(self, fresh: Path, path: Path) -> None:
        now_ns = self._now_ns()
        with contextlib.suppress(FileNotFoundError):
            now_ns = max(now_ns, path.stat().st_mtime_ns + _TICK_NS)
        os.utime(fresh, ns=(now_ns, now_ns))

    def _flush(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._sync(path)

    def _sync(self, path: Path) -> None:
        """Makes the name durable, and those of the folders on its way, which may be new."""
        folder = path.parent
        while folder != self._root:
            fsync_folder(folder)
            folder = folder.parent
        fsync_folder(folder)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
