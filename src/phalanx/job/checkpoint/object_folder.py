"""A folder of checkpoints below a prefix of an object store: S3, Google, Azure. No torch.

Shards go up in parts, and come down in ranges side by side; memory is bounded in both directions. What one of several may do
once goes by conditional puts. Credentials come from the environment, as for blobs (docs/storage.md).
"""

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final

from blake3 import blake3

from phalanx.core.errors import NotFound, SetupError, StoreUnavailable
from phalanx.job.checkpoint.folder import Unreadable
from phalanx.storage.objects import PART_BYTES, ObjectStore, open_store
from phalanx.storage.places import checked_key
from phalanx.storage.remote import Patience

REQUEST_VARIABLE: Final = "PHALANX_CHECKPOINT_REQUEST_S"
REQUEST_S: Final = 60
"""For one request, a part of 16 MiB at most: 280 KB/s are enough. Whoever saves or restores tries again by itself, so a store that
does not answer is found out soon."""
_RETRIES_S: Final = 10.0
_RETRIES_MAX: Final = 3
_HASH_BYTES: Final = 1024 * 1024
_READS_AT_ONCE: Final = 4


class ObjectFile:
    """An object whose size was asked for. Its key belongs to one save, so its bytes never change."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self.size_bytes = store.head(key).size_bytes

    def read_into(self, into: Sequence[memoryview], offset: int) -> int:
        data, done = self._range(offset, sum(map(len, into))), 0
        for view in into:
            count = min(len(view), len(data) - done)
            view[:count] = data[done : done + count]
            done += count
        return done

    def pieces(self, offset: int) -> Iterator[memoryview]:
        """What comes next is on its way while a piece is looked at."""
        with ThreadPoolExecutor(_READS_AT_ONCE, "checkpoint-range") as network:
            ahead: deque[Future[memoryview]] = deque()
            for begin in range(offset, self.size_bytes, PART_BYTES):
                ahead.append(network.submit(self._range, begin, PART_BYTES))
                if len(ahead) >= _READS_AT_ONCE:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _range(self, offset: int, length: int) -> memoryview:
        length = min(length, PART_BYTES, self.size_bytes - offset)
        if length <= 0:
            return memoryview(b"")
        with _missing():
            return self._store.read_range(self._key, offset, length)


class ObjectFolder:
    """See `Folder`."""

    reads_at_once = _READS_AT_ONCE
    batch_bytes = PART_BYTES
    poll_s = 0.5

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key

    def __str__(self) -> str:
        return f"{self._store.url}/{self._key}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFolder) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def name(self) -> str:
        return self._key.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectFolder":
        return ObjectFolder(self._store, self._key.rpartition("/")[0])

    def __truediv__(self, name: str) -> "ObjectFolder":
        return ObjectFolder(self._store, self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._key}/{name}"

    def prepare(self) -> None:
        """Nothing: there are no folders."""

    def names(self) -> Sequence[str]:
        return self._store.level(self._key)[0]

    def folders(self) -> Sequence[str]:
        return self._store.level(self._key)[1]

    def has(self, name: str) -> bool:
        return self.version(name) is not None

    def read(self, name: str, bytes_max: int) -> bytes:
        with _missing():
            pieces, info = self._store.stream(self._at(name))
            if info.size_bytes > bytes_max:
                raise Unreadable(f"is over {bytes_max} bytes")
            return b"".join(pieces)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[ObjectFile]:
        with _missing():
            file = ObjectFile(self._store, self._at(name))
        yield file

    def write(self, name: str, data: bytes) -> None:
        self._store.put(self._at(name), data)

    def write_views(self, name: str, views: Sequence[memoryview]) -> list[str]:
        hashes: list[str] = []
        self._store.put_pieces(self._at(name), _hashed(views, hashes))
        return hashes

    def version(self, name: str) -> str | None:
        try:
            return self._store.head(self._at(name)).etag
        except NotFound:
            return None

    def swap(self, name: str, data: bytes, version: str | None) -> bool:
        if version is None:
            return self._store.put_if_absent(self._at(name), data)
        return self._store.put_if_match(self._at(name), data, version)

    def remove(self, name: str) -> None:
        self._store.delete(self._at(name))

    def remove_all(self) -> None:
        if keys := [found.key for found in self._store.list(self._key)]:
            self._store.delete_all(keys)
        self.remove_if_empty()

    def remove_if_empty(self) -> None:
        """Some stores keep a folder as an object of its own; elsewhere there is nothing of this name."""
        with contextlib.suppress(StoreUnavailable, SetupError):
            self._store.delete(self._key)


def object_folder_at(url: str) -> ObjectFolder:
    """Raises SetupError for a URL that names no place, or no folder in it, and what opening a store raises."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme == "memory" or not key.strip("/"):
        raise SetupError("checkpoints", url, "name a folder in it, such as s3://bucket/checkpoints")
    return ObjectFolder(_store_of(f"{scheme}://{bucket}", _patience()), checked_key(key.strip("/"), "checkpoints"))


@lru_cache(maxsize=16)
def _store_of(url: str, patience: Patience) -> ObjectStore:
    return open_store(url, patience=patience, field="checkpoints")


def _patience() -> Patience:
    text = os.environ.get(REQUEST_VARIABLE) or str(REQUEST_S)
    if not text.isdecimal() or int(text) < 1:
        raise SetupError(REQUEST_VARIABLE, text, "write a whole number of seconds, 1 or more")
    return Patience(request_s=float(text), retries_s=_RETRIES_S, retries_max=_RETRIES_MAX)


def _hashed(views: Sequence[memoryview], hashes: list[str]) -> Iterator[memoryview]:
    """Their bytes in order; the BLAKE3 of each view is in `hashes` once it has gone by."""
    for view in views:
        found = blake3()
        for begin in range(0, len(view), _HASH_BYTES):
            piece = view[begin : begin + _HASH_BYTES]
            found.update(piece)
            yield piece
        hashes.append(found.hexdigest())


@contextlib.contextmanager
def _missing() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise Unreadable("is missing") from error
