"""Objects of a store, read as files: by ranges, of one version, from every process.

A path is the store's URL with the object's key after it, as in s3://bucket/folder/part.jsonl; one of this machine begins with '/'.
"""

import io
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from phalanx.core.errors import Conflict, DataError, NotFound, SetupError, StoreUnavailable, UserError

if TYPE_CHECKING:
    from phalanx.storage.objects import ObjectStore

T = TypeVar("T")

BLOCK_BYTES: Final = 4 * 2**20
"""Of one request while an object is read from start to end; a slow one takes a tenth of a second to answer."""

_OVER_BYTES: Final = 64 * 2**10
"""Read beyond what was asked for, so that the end of a line seldom costs a second request."""

AT_ONCE: Final = 16
"""Requests of one process. Small objects cost a round trip each."""

_TRIES: Final = 3
_PAUSE_S: Final = 0.5
"""Besides what the client repeats by itself: a body that breaks off is not among it."""


class Version(NamedTuple):
    """One object as it was listed."""

    path: str
    size_bytes: int
    etag: str


def is_stored(path: str) -> bool:
    return not path.startswith("/")


def parted(path: str) -> tuple[str, str]:
    """The store's URL, and the key."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


@lru_cache(maxsize=64)
def opened(url: str) -> "ObjectStore":
    """The whole bucket, with the credentials of this process's environment."""
    from phalanx.storage.objects import open_store

    return open_store(url, field="paths")


@lru_cache(maxsize=1)
def requests() -> ThreadPoolExecutor:
    """The threads of this process that wait for stores, and for nothing else."""
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="objects")


def fetch(version: Version, start: int, length: int) -> memoryview:
    """Those bytes of that version, fewer at its end. Raises DataError when it is another one by now or gone, SetupError,
    StoreUnavailable."""
    length = min(length, version.size_bytes - start)
    if length <= 0:
        return memoryview(b"")
    url, key = parted(version.path)
    try:
        found = patient(lambda: opened(url).read_range(key, start, length, version.etag))
    except (Conflict, NotFound) as error:
        raise changed(version.path) from error
    except UserError as error:
        raise SetupError("paths", version.path, error.fix) from error
    if len(found) != length:
        raise changed(version.path)
    return found


def patient(call: Callable[[], T]) -> T:
    """Its result, after a few tries where the store is away."""
    for number in range(1, _TRIES):
        try:
            return call()
        except StoreUnavailable:
            time.sleep(_PAUSE_S * number)
    return call()


def changed(path: str) -> DataError:
    """For a file or object that is another one than was found, or than was looked at."""
    return DataError("paths", path, "changed while it was being prepared; run it again when it is at rest")


class ObjectFile(io.RawIOBase):
    """As a file that is open for reading. More is read than is asked for, and one block ahead while it is read in order."""

    def __init__(self, version: Version, first: "Future[memoryview] | None" = None, at: int = 0) -> None:
        """first: what comes from `at` on, asked for already."""
        self._version = version
        self._at = at
        self._start = at
        self._block = first.result() if first else memoryview(b"")
        self._ahead: tuple[int, Future[memoryview]] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._version.size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]  # any buffer
        view = memoryview(buffer).cast("B")
        if not 0 <= self._at - self._start < len(self._block):
            self._fill(len(view))
        offset = self._at - self._start
        found = self._block[offset : offset + len(view)]
        view[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _fill(self, wanted: int) -> None:
        in_order = self._at and self._at == self._start + len(self._block)
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == self._at:
            self._block = ahead[1].result()
        else:
            self._block = fetch(self._version, self._at, max(wanted, BLOCK_BYTES) if in_order else wanted + _OVER_BYTES)
        self._start = self._at
        end = self._start + len(self._block)
        if in_order and end < self._version.size_bytes:
            self._ahead = end, requests().submit(fetch, self._version, end, BLOCK_BYTES)


def asked(spans: Iterable[tuple[Version, int, int]]) -> "list[Future[memoryview]]":
    """Begins to read those ranges, each a version, a start and a length, and a little beyond them."""
    return [requests().submit(_whole, version, start, length + _OVER_BYTES) for version, start, length in spans]


def _whole(version: Version, start: int, length: int) -> memoryview:
    """In parts, none of which is longer than one request should last."""
    end = min(start + length, version.size_bytes)
    if end - start <= _PART_BYTES:
        return fetch(version, start, end - start)
    return memoryview(b"".join([fetch(version, at, min(_PART_BYTES, end - at)) for at in range(start, end, _PART_BYTES)]))


_PART_BYTES: Final = 32 * 2**20
