"""A folder of checkpoints on a disk. No torch."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from blake3 import blake3

from phalanx.core.errors import StoreUnavailable
from phalanx.job.checkpoint.folder import Refused, Unreadable
from phalanx.storage.atomic import fsync_folder, make_folders, refused

_WRITE_BYTES: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
"""Small enough to be hashed out of the core's own cache."""
_IOV_MAX: Final = 1024
"""Linux takes no more at once (limits.h)."""
_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
_NOT_PLAIN: Final = "not plain"
"""The version of what is no file at all."""
LOCK_S: Final = 5.0
"""A swap holds its lock while it reads a small file and renames another: who has it for longer was stopped there."""
_LOCK_POLL_S: Final = 0.01


class DiskFile:
    """An open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size

    def read_into(self, into: Sequence[memoryview], offset: int) -> int:
        try:
            return os.preadv(self._descriptor, into[:_IOV_MAX], offset)
        except OSError as error:
            raise Unreadable(f"cannot be read ({error.strerror})") from error

    def pieces(self, offset: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(_READ_BYTES))
        while count := self.read_into([buffer], offset):
            yield buffer[:count]
            offset += count


class DiskFolder:
    """See `Folder`."""

    reads_at_once = 1
    batch_bytes = 0
    poll_s = 0.02

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DiskFolder) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parent(self) -> "DiskFolder":
        return DiskFolder(self.path.parent)

    def __truediv__(self, name: str) -> "DiskFolder":
        return DiskFolder(self.path / name)

    def prepare(self) -> None:
        try:
            make_folders(self.path)
        except OSError as error:
            raise refused(self.path, error) from error

    def names(self) -> list[str]:
        return self._entries(lambda entry: not entry.is_dir(follow_symlinks=False))

    def folders(self) -> list[str]:
        return self._entries(lambda entry: entry.is_dir())

    def _entries(self, wanted: Callable[["os.DirEntry[str]"], bool]) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return [entry.name for entry in entries if wanted(entry)]
        except (FileNotFoundError, NotADirectoryError):  # a file in its place fails what is written, and holds nothing
            return []

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str, bytes_max: int) -> bytes:
        path = self.path / name
        try:
            if path.is_symlink() or not path.is_file():
                raise Unreadable("is no plain file" if path.exists() else "is missing")
            if path.stat().st_size > bytes_max:
                raise Unreadable(f"is over {bytes_max} bytes")
            return path.read_bytes()
        except FileNotFoundError as error:  # just now
            raise Unreadable("is missing") from error
        except OSError as error:
            raise Refused(f"cannot be read ({error.strerror})") from error

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[DiskFile]:
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise Unreadable(f"cannot be opened ({error.strerror})") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreadable("is no plain file")
            yield DiskFile(descriptor)
        finally:
            os.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        with self._beside(name) as (descriptor, beside):
            _write_all(descriptor, memoryview(data), 0)
            os.fsync(descriptor)
            os.replace(beside, self.path / name)  # noqa: PTH105 (a plain string)

    def write_views(self, name: str, views: Sequence[memoryview]) -> list[str]:
        with self._beside(name) as (descriptor, beside):
            hashes = _fill(descriptor, views)
            os.replace(beside, self.path / name)  # noqa: PTH105 (a plain string)
        return hashes

    def version(self, name: str) -> str | None:
        """The BLAKE3 of what is in it. Raises StoreUnavailable where the disk does not say."""
        path = self.path / name
        try:
            if path.is_file() and not path.is_symlink():
                return blake3(path.read_bytes()).hexdigest()
        except FileNotFoundError:  # just now
            return None
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be read ({error.strerror})") from error
        return _NOT_PLAIN if os.path.lexists(path) else None

    def swap(self, name: str, data: bytes, version: str | None) -> bool:
        """Where nothing is, the kernel lets only one of several make a link. Whoever takes the place of a file has that file's
        lock, which goes with its holder: who was stopped before that finds another version."""
        if version == _NOT_PLAIN:
            self.write(name, data)
            return True
        with self._beside(name) as (descriptor, beside):
            _write_all(descriptor, memoryview(data), 0)
            os.fsync(descriptor)
            if version is None:
                return _linked(beside, self.path / name)
            with _locked(self.path / name) as is_there:
                if not is_there or self.version(name) != version:
                    return False
                os.replace(beside, self.path / name)  # noqa: PTH105 (a plain string)
                return True

    @contextlib.contextmanager
    def _beside(self, name: str) -> Iterator[tuple[int, str]]:
        """A new file, open, with the mode that the umask leaves: who may read checkpoints is not ours to widen. It is gone
        afterwards where it has not taken a name, and the folder's names durable. Raises as `write`."""
        try:
            make_folders(self.path)
            beside = f"{self.path}/.{name[:100]}.{secrets.token_hex(8)}.tmp"
            descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                yield descriptor, beside
            finally:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(beside)  # noqa: PTH108 (a plain string)
            fsync_folder(self.path)
            fsync_folder(self.path.parent)
        except OSError as error:
            raise refused(self.path / name, error) from error

    def remove(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise refused(self.path / name, error) from error

    def remove_all(self) -> None:
        try:
            shutil.rmtree(self.path)
        except OSError as error:
            raise refused(self.path, error) from error

    def remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether the file that was locked has this name still; False where there is none. Raises OSError, and StoreUnavailable where
    somebody else does not let go of it. A file system without locks is trusted."""
    try:
        descriptor = _opened_to_lock(path)
    except FileNotFoundError:
        yield False
        return
    try:
        _lock(descriptor, path)
        yield _is_named(descriptor, path)
    finally:
        os.close(descriptor)


def _opened_to_lock(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | flags)  # NFS locks for writing only what is open for it
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def _lock(descriptor: int, path: Path) -> None:
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise StoreUnavailable(f"{path}: somebody who was stopped holds its lock; end that process, or try again") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return
        time.sleep(_LOCK_POLL_S)


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _linked(beside: str, path: Path) -> bool:
    """False where `path` is there. A file system without links is looked at before."""
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            return False
        os.replace(beside, path)  # noqa: PTH105 (a plain string)
    return True


def _fill(descriptor: int, views: Sequence[memoryview]) -> list[str]:
    """The disk begins while we still write; we hash while it ends: that wait is longer than the hashing, and costs no core."""
    end = 0
    for view in views:
        end = _write_all(descriptor, view, end)
    with ThreadPoolExecutor(1, "fsync") as disk:
        synced = disk.submit(os.fsync, descriptor)
        hashes = [blake3(view).hexdigest() for view in views]
        synced.result()
    return hashes


def _write_all(descriptor: int, view: memoryview, at: int) -> int:
    """Where it ends. Linux starts to write out what is said not to be needed (fadvise.c: WB_SYNC_NONE), and keeps it in the page
    cache while it does."""
    while len(view):
        count = os.write(descriptor, view[:_WRITE_BYTES])
        os.posix_fadvise(descriptor, at, count, os.POSIX_FADV_DONTNEED)
        view, at = view[count:], at + count
    return at
