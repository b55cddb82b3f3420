"""The server's copy of every rank's log and record file: bytes at their offset, durable before they are acknowledged.

    journal/<attempt id>/log-<rank>        journal/<attempt id>/records-<rank>

A file's size is how far it was acknowledged, so a restart needs no index. A chunk is written at its offset: a repeat changes
nothing, and a chunk beyond the end is not written, the answer being the present end, from where the agent resumes.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final, get_args

from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.core.messages import Stream

RANK_MAX: Final = 1_000_000
"""Above any gang; keeps a hostile rank number from becoming a hostile file name."""

_NUM_LOCKS: Final = 64
_STREAMS: Final = get_args(Stream)


class Journal:
    """Append-only copies under `root`. Every method may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._locks = tuple(Lock() for _ in range(_NUM_LOCKS))
        self._durable: set[Path] = set()

    def write(self, stream: Stream, attempt: AttemptId, rank: int, offset: int, data: bytes) -> int:
        """Put `data` at `offset` and return the file's end, durable. What is already there is never changed.

        Raises StoreUnavailable when the disk refuses; the file then ends where it did before.
        """
        if offset < 0:
            raise UserError("offset", offset, "send an offset of 0 or more")
        path = self._path(stream, attempt, rank)
        with self._locks[hash(path) % _NUM_LOCKS], _disk(path):
            self._make(path)
            fd = os.open(path, os.O_RDWR)
            try:
                return self._write_at_end(fd, path, offset, data)
            finally:
                os.close(fd)

    def ends(self, attempts: Collection[AttemptId]) -> dict[str, int]:
        """'stream/attempt/rank' -> acknowledged end of the given attempts, as read from the files and made durable."""
        found: dict[str, int] = {}
        for path, stream, attempt, rank in self._files(attempts):
            with self._locks[hash(path) % _NUM_LOCKS], _disk(path):
                found[f"{stream}/{attempt}/{rank}"] = self._durable_size(path)
        return found

    def read(self, stream: Stream, attempt: AttemptId, rank: int, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset`; empty at or beyond the end, and for a file that does not exist."""
        path = self._path(stream, attempt, rank)
        with _disk(path):
            try:
                with path.open("rb") as file:
                    if offset >= os.fstat(file.fileno()).st_size:
                        return b""  # a file system refuses to seek beyond what a file of its may ever have
                    file.seek(max(0, offset))
                    return file.read(max(0, limit))
            except FileNotFoundError:
                return b""

    def size(self, stream: Stream, attempt: AttemptId, rank: int) -> int:
        """Bytes held; 0 for a file that does not exist."""
        try:
            return self._path(stream, attempt, rank).stat().st_size
        except FileNotFoundError:
            return 0

    def ranks(self, stream: Stream, attempt: AttemptId) -> tuple[int, ...]:
        """Ranks that have a file of this stream, in order."""
        return tuple(sorted(rank for _, kind, _, rank in self._files((attempt,)) if kind == stream))

    def _path(self, stream: Stream, attempt: AttemptId, rank: int) -> Path:
        if stream not in _STREAMS:
            raise UserError("stream", stream, f"name one of {', '.join(_STREAMS)}")
        if not 0 <= rank < RANK_MAX:
            raise UserError("rank", rank, f"name a rank from 0 to {RANK_MAX - 1}")
        return attempt_folder(self._root, attempt) / f"{stream}-{rank}"

    def _make(self, path: Path) -> None:
        """Create the file, and make its name as durable as its bytes will be."""
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        _sync_folder(path.parent)
        _sync_folder(path.parent.parent)

    def _write_at_end(self, fd: int, path: Path, offset: int, data: bytes) -> int:
        end = os.fstat(fd).st_size
        fresh = data[end - offset :] if offset <= end else b""
        if not fresh:
            return self._durable_size(path)
        try:
            _write_all(fd, fresh, end)
            os.fsync(fd)
        except OSError:
            self._durable.discard(path)
            os.ftruncate(fd, end)  # no half-written tail: the agent will send these bytes again
            raise
        self._durable.add(path)
        return end + len(fresh)

    def _durable_size(self, path: Path) -> int:
        """The size may be acknowledged again only once the bytes of an earlier, killed server are on the disk."""
        if path not in self._durable:
            fd = os.open(path, os.O_RDWR)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._durable.add(path)
        return path.stat().st_size

    def _files(self, attempts: Collection[AttemptId]) -> Iterator[tuple[Path, str, AttemptId, int]]:
        for attempt in attempts:
            folder = attempt_folder(self._root, attempt)
            with _disk(folder):
                paths = sorted(folder.iterdir()) if folder.is_dir() else []
            for path in paths:
                stream, _, rank = path.name.partition("-")
                if stream in _STREAMS and rank.isdecimal():
                    yield path, stream, attempt, int(rank)


def attempt_folder(root: Path, attempt: AttemptId) -> Path:
    """`root/<attempt>`, after checking that the name is an attempt id and so cannot leave `root`."""
    try:
        split_attempt(attempt)
    except ValueError as error:
        raise UserError("attempt", attempt, "name an attempt such as 'tiny-lm-7.2'") from error
    return root / attempt


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """A disk that is full, read-only or gone is the world's, not a bug."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror or error}") from error
