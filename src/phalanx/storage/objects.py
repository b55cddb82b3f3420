"""One typed object store over obstore: a local folder, S3, Google, Azure, or this process's memory.

Every call ends within its `Patience`: what may succeed later is StoreUnavailable, what somebody must change is SetupError.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import LocalStore, MemoryStore

from phalanx.core.errors import Bug, Conflict, NotFound, SetupError, StoreUnavailable
from phalanx.storage.atomic import make_folders, refused
from phalanx.storage.local_writes import LocalWrites
from phalanx.storage.places import Place, checked_key, parse_place
from phalanx.storage.refusals import told
from phalanx.storage.remote import Patience, remote_store, said_again_if_unsent

PART_BYTES: Final = 16 * 2**20
"""An object above it is sent in parts of that size; S3 takes 10,000 of them, so 156 GiB at most."""

PARTS_AT_ONCE: Final = 4
STREAM_BYTES: Final = 2**20
LIST_PAGE: Final = 1000
_TROUBLE: Final = (BaseError, OSError, NotImplementedError, ValueError)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """`etag` changes with each write of the object; `modified_ms` is Unix time, by the store's clock."""

    key: str
    size_bytes: int
    modified_ms: int
    etag: str


class ObjectStore:
    """Objects under one place. Safe from any thread, and with other processes on the same place.

    Keys are checked (SpecError). Every method raises StoreUnavailable when it may be tried again, SetupError when the place,
    the credentials or the disk's state is somebody's to change.
    """

    def __init__(self, place: Place, store: Any) -> None:
        self.place = place
        self._store = store
        self._local = LocalWrites(place.path) if place.scheme == "file" else None

    @property
    def url(self) -> str:
        """Where it lies; holds no secrets."""
        return self.place.url

    def check(self) -> None:
        """Whether it can be used now: bucket and credentials are good, a folder can be listed."""
        self._check_folder()
        try:
            next(iter(obstore.list(self._store, None, chunk_size=1)), None)
        except _TROUBLE as error:
            raise told(self.place, "", error, opening=True) from error

    def get(self, key: str) -> bytes:
        """All of it. Raises NotFound."""
        return self.read(key)[0]

    def read(self, key: str) -> tuple[bytes, ObjectInfo]:
        """All of it, and which version that was. Raises NotFound."""
        checked_key(key)
        try:
            found = obstore.get(self._store, key)
            return bytes(found.bytes()), _info(found.meta)
        except _TROUBLE as error:
            raise told(self.place, key, error) from error

    def stream(self, key: str) -> tuple[Iterator[bytes], ObjectInfo]:
        """As `read`, its bytes in pieces as they come: what raises of the errors above may do so at any piece."""
        checked_key(key)
        try:
            found = obstore.get(self._store, key)
            return self._pieces(key, found), _info(found.meta)
        except _TROUBLE as error:
            raise told(self.place, key, error) from error

    def _pieces(self, key: str, found: Any) -> Iterator[bytes]:
        pieces = iter(found.stream(min_chunk_size=STREAM_BYTES))
        while True:
            try:
                piece = next(pieces, None)
            except _TROUBLE as error:
                raise told(self.place, key, error) from error
            if piece is None:
                return
            yield bytes(piece)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start` on; none beyond the end. Raises NotFound."""
        size = self.head(key).size_bytes
        length = min(length, size - start)
        if start < 0 or length <= 0:
            return b""
        return bytes(self.read_range(key, start, length))

    def read_range(self, key: str, start: int, length: int, etag: str = "") -> memoryview:
        """As `get_range`, of an object whose size the caller knows: one request, and no copy. etag: of that version alone. Raises
        NotFound, and Conflict where it is another version by now."""
        checked_key(key)
        try:
            if etag:
                wanted: Any = {"range": (start, start + length), "if_match": etag}
                return memoryview(obstore.get(self._store, key, options=wanted).bytes())
            return memoryview(obstore.get_range(self._store, key, start=start, length=length))
        except PreconditionError as error:
            raise Conflict("object", key, f"{self.url} holds another version of it by now") from error
        except _TROUBLE as error:
            raise told(self.place, key, error) from error

    def put_pieces(self, key: str, pieces: Iterable[memoryview]) -> None:
        """Makes the object all of these bytes, durably and at once, in parts: little memory, and each with its own time to arrive.
        Not on a disk. What it raises leaves no object; of an upload that was cut off a store may keep parts that nobody sees."""
        checked_key(key)
        if self._local is not None:
            raise Bug("a disk's files are not put in pieces")
        try:
            obstore.put(self._store, key, iter(pieces), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        except _TROUBLE as error:
            raise told(self.place, key, error) from error

    def put(self, key: str, data: bytes | Path) -> None:
        """Makes the object `data`, or the content of that file, durably and at once: readers meet the old one or the new one.
        Raises NotFound for a file that is not there."""
        checked_key(key)
        if isinstance(data, Path) and not data.is_file():
            raise NotFound("file", str(data), "is not a file that could be stored")
        self._check_folder()
        try:
            if self._local is not None:
                self._local.put(key, data)
                return
            parts = self.takes_parts(size_of(data))
            said_again_if_unsent(
                lambda: obstore.put(
                    self._store, key, data, use_multipart=parts, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
                )
            )
        except _TROUBLE as error:
            raise told(self.place, key, error) from error

    def takes_parts(self, size_bytes: int) -> bool:
        """Whether `put` sends so many in parts: in little memory, and each with its own time to arrive. No conditional put can."""
        return self._local is None and size_bytes > PART_BYTES

    def put_if_absent(self, key: str, data: bytes | Path) -> bool:
        """True when this call made the object, False when there was one. Of any number at once, one gets True; where its answer
        was lost on the way it gets StoreUnavailable, and on a second try False."""
        checked_key(key)
        self._check_folder()
        try:
            if self._local is not None:
                return self._local.put_if_absent(key, data)
            obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except _TROUBLE as error:
            raise told(self.place, key, error) from error
        return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replaces that version alone; False when the object is another one by now, or gone."""
        checked_key(key)
        self._check_folder()
        try:
            if self._local is not None:
                return self._local.put(key, data, lambda: self._etag(key) == etag)
            obstore.put(self._store, key, data, mode={"e_tag": etag}, use_multipart=False)
        except (PreconditionError, FileNotFoundError):
            return False
        except _TROUBLE as error:
            raise told(self.place, key, error) from error
        return True

    def head(self, key: str) -> ObjectInfo:
        """Size, age and version, without the bytes. Raises NotFound."""
        checked_key(key)
        try:
            return _info(obstore.head(self._store, key))
        except _TROUBLE as error:
            raise told(self.place, key, error) from error

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object below the folder `prefix`, in no order, page by page as they come."""
        if prefix:
            checked_key(prefix, "prefix")
        self._check_folder()
        try:
            for page in obstore.list(self._store, prefix or None, chunk_size=LIST_PAGE):
                for found in page:
                    yield _info(found)
        except _TROUBLE as error:
            raise told(self.place, prefix, error) from error

    def level(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """Names of the objects that lie directly below the folder `prefix`, and of the folders there."""
        checked_key(prefix, "prefix")
        self._check_folder()
        try:
            found = obstore.list_with_delimiter(self._store, prefix)
        except _TROUBLE as error:
            raise told(self.place, prefix, error) from error
        objects = [str(one["path"]).rpartition("/")[2] for one in found["objects"] if one["path"] != prefix]
        return objects, [one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"]]

    def delete_all(self, keys: Sequence[str]) -> None:
        """As `delete`, of many in few requests. When it raises, some are deleted."""
        for key in keys:
            checked_key(key)
        if self._local is not None:
            for key in keys:
                self.delete(key)
            return
        try:
            obstore.delete(self._store, list(keys))
        except FileNotFoundError:
            return
        except _TROUBLE as error:
            raise told(self.place, keys[0], error) from error

    def delete(self, key: str) -> None:
        """Also of an object that is not there."""
        checked_key(key)
        self._check_folder()
        try:
            if self._local is not None:
                self._local.delete(key)
            else:
                obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except _TROUBLE as error:
            raise told(self.place, key, error) from error

    def _check_folder(self) -> None:
        """A disk that is not mounted must not look like an empty store."""
        if self._local is not None and not self.place.path.is_dir():
            raise told(self.place, "", FileNotFoundError(errno.ENOENT, ""))

    def _etag(self, key: str) -> str | None:
        try:
            return obstore.head(self._store, key)["e_tag"]
        except FileNotFoundError:
            return None


def open_store(
    url: str | Path,
    environ: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    field: str = "store",
    make: bool = True,
) -> ObjectStore:
    """The store at `url`. A local folder is made, or with `make` False must be there. Asks nothing of a remote one: `check` does.

    Credentials come from the environment, then from the profile files (S3), then from the machine's own identity. Raises
    SetupError for a URL that names no place, an endpoint that would send data readable, and what `profile_of` does;
    StoreUnavailable for a folder that is not there.
    """
    place = parse_place(str(url), field)
    environ = os.environ if environ is None else environ
    if place.scheme == "file":
        if not make and not place.path.is_dir():
            raise told(place, "", FileNotFoundError(errno.ENOENT, ""))
        return ObjectStore(place, _folder(place.path))
    if place.scheme == "memory":
        return ObjectStore(place, MemoryStore())
    try:
        return ObjectStore(place, remote_store(place, environ, patience or Patience()))
    except _TROUBLE as error:
        if place.scheme == "az" and "Account must be specified" in str(error):
            fix = "write abfs://container@account.dfs.core.windows.net/prefix, or set AZURE_STORAGE_ACCOUNT_NAME"
            raise SetupError(field, place.url, fix) from error
        raise told(place, "", error, opening=True) from error


def _folder(path: Path) -> LocalStore:
    try:
        make_folders(path, 0o700)
        return LocalStore(path)
    except OSError as error:
        raise refused(path, error) from error
    except BaseError as error:
        raise StoreUnavailable(f"{path}: {str(error).partition(chr(10))[0]}") from error


def size_of(data: bytes | Path) -> int:
    """Of what is to be put. Raises OSError."""
    return len(data) if isinstance(data, bytes) else data.stat().st_size


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], round(meta["last_modified"].timestamp() * 1000), meta["e_tag"] or "")
