"""Bytes under the SHA-256 of their content, put once and never changed, in any object store."""

import hashlib
import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from phalanx.core.errors import NotFound, SpecError, StoreUnavailable
from phalanx.core.units import show_size
from phalanx.storage.hashes import is_sha256, sha256_bytes, sha256_file
from phalanx.storage.objects import ObjectInfo, ObjectStore, size_of

BLOB_BYTES_MAX: Final = 256 * 2**20
ASKED_S: Final = 3600.0
_EMPTY: Final = sha256_bytes(b"")


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """`modified_ms`: when it was put, Unix time by the store's clock."""

    sha256: str
    size_bytes: int
    modified_ms: int


class BlobStore:
    """Blobs in a store, one object each. Safe for several processes at once: a put is all or nothing and first wins.

    A doomed blob counts as absent in this process until it is put again, which saves it; one that was put or asked for in the last
    ASKED_S cannot be doomed, since a job that names it may be on its way. Raises SetupError and StoreUnavailable as the store does.
    """

    def __init__(self, objects: ObjectStore, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._objects = objects
        self._clock_s = clock_s
        self._asked_s: OrderedDict[str, float] = OrderedDict()  # oldest first
        self._doomed: set[str] = set()
        self._leaving: set[str] = set()
        self._state = threading.Condition()

    @property
    def url(self) -> str:
        """Where the blobs lie."""
        return self._objects.url

    @property
    def folder(self) -> Path | None:
        """Where they lie on this machine, if they do."""
        place = self._objects.place
        return place.path if place.scheme == "file" else None

    def put(self, data: bytes | Path) -> str:
        """Stores `data`, or the content of that file, durably and returns its name. Raises SpecError over BLOB_BYTES_MAX."""
        sha256 = sha256_bytes(data) if isinstance(data, bytes) else sha256_file(data)
        self._put(sha256, data)
        return sha256

    def put_checked(self, sha256: str, data: bytes | Path) -> None:
        """Stores `data` if its hash is `sha256`. Raises SpecError when it is not."""
        actual = sha256_bytes(data) if isinstance(data, bytes) else sha256_file(data)
        if actual != sha256:
            raise SpecError("blob", sha256, f"the bytes received hash to {actual}; send them again whole")
        self._put(sha256, data)

    def get(self, sha256: str) -> bytes:
        """All of it, as `copy`."""
        found = io.BytesIO()
        self.copy(sha256, found)
        return found.getvalue()

    def copy(self, sha256: str, into: IO[bytes]) -> None:
        """Makes all of it the content of the file `into`. Raises NotFound for an unknown name, and for bytes damaged in the store:
        they are emptied, so that `has` is false and a put repairs. Bytes that are damaged on the way are StoreUnavailable; OSError
        is of `into`."""
        if not is_sha256(sha256):
            raise _unknown(sha256)
        try:
            first, _ = self._arrived(sha256, into)
            if first == sha256:
                return
            second, info = self._arrived(sha256, into)
        except NotFound as error:
            raise _unknown(sha256) from error
        if second == sha256:
            return
        if first != second:
            raise StoreUnavailable(f"blob {sha256}: its bytes arrive damaged, each time another way; check the network, try again")
        if info.size_bytes and not self._objects.put_if_match(_key(sha256), b"", info.etag):
            raise StoreUnavailable(f"blob {sha256}: is being repaired; try again")
        raise NotFound("blob", sha256, "its bytes were damaged in the store and are removed; send it again")

    def has(self, sha256: str) -> bool:
        """Whether `get` would find it; does not read the bytes."""
        if not is_sha256(sha256) or sha256 in self._doomed:
            return False
        try:
            found = self._objects.head(_key(sha256)).size_bytes > 0 or sha256 == _EMPTY
        except NotFound:
            return False
        return found and self._note_asked(sha256)

    def list(self) -> Iterator[BlobInfo]:
        """Every blob, emptied ones too, in no order."""
        for found in self._objects.list():
            name = found.key.rpartition("/")[2]
            if is_sha256(name) and found.key == _key(name):
                yield BlobInfo(name, found.size_bytes, found.modified_ms)

    # Removing: doomed first, removed later, saved by a put in between

    def doom(self, names: Collection[str]) -> set[str]:
        """Which of them count as absent from now on: those that nobody asked for lately."""
        with self._state:
            self._forget_old()
            doomed = {name for name in names if name not in self._asked_s}
            self._doomed |= doomed
            return doomed

    def is_doomed(self, sha256: str) -> bool:
        """Whether it is removed, or about to be."""
        return sha256 in self._doomed

    def remove(self, sha256: str) -> bool:
        """Deletes a doomed blob; False when a put has saved it. It stays doomed, also when the store refuses."""
        with self._state:
            if sha256 not in self._doomed:
                return False
            self._leaving.add(sha256)
        try:
            self._objects.delete(_key(sha256))
        finally:
            with self._state:
                self._leaving.discard(sha256)
                self._state.notify_all()
        return True

    def _note_asked(self, sha256: str) -> bool:
        """False when it was doomed meanwhile."""
        with self._state:
            if sha256 in self._doomed:
                return False
            self._ask(sha256)
            return True

    def _save(self, sha256: str) -> None:
        """Waits for its removal, if that is under way, so that what is put next stays."""
        with self._state:
            self._state.wait_for(lambda: sha256 not in self._leaving)
            self._doomed.discard(sha256)
            self._ask(sha256)

    def _ask(self, sha256: str) -> None:
        self._asked_s[sha256] = self._clock_s()
        self._asked_s.move_to_end(sha256)
        self._forget_old()

    def _forget_old(self) -> None:
        """A server runs for months, and every version of every artifact passes here."""
        since_s = self._clock_s() - ASKED_S
        while self._asked_s and next(iter(self._asked_s.values())) <= since_s:
            self._asked_s.popitem(last=False)

    def _put(self, sha256: str, data: bytes | Path) -> None:
        size_bytes = size_of(data)
        if size_bytes > BLOB_BYTES_MAX:
            raise SpecError("blob", show_size(size_bytes), f"keep it under {show_size(BLOB_BYTES_MAX)}")
        self._save(sha256)
        key = _key(sha256)
        made = not self._objects.takes_parts(size_bytes) and self._objects.put_if_absent(key, data)
        if not made and not self._is_whole(sha256):
            self._objects.put(key, data)  # a large one, or in place of a damaged one; whoever else puts it now puts the same bytes

    def _is_whole(self, sha256: str) -> bool:
        try:
            return self._arrived(sha256, None)[0] == sha256
        except NotFound:
            return False

    def _arrived(self, sha256: str, into: IO[bytes] | None) -> tuple[str, ObjectInfo]:
        """The SHA-256 of what came under that name, written into `into`, and which version it was."""
        pieces, info = self._objects.stream(_key(sha256))
        digest = hashlib.sha256()
        if into is not None:
            into.seek(0)
            into.truncate()
        for piece in pieces:
            digest.update(piece)
            if into is not None:
                into.write(piece)
        return digest.hexdigest(), info


def _key(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"


def _unknown(sha256: str) -> NotFound:
    return NotFound("blob", sha256[:200], "no blob has this SHA-256; send it first")
