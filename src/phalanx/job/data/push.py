"""Puts a prepared folder, of tokens or of samples, into a store, where `open_data` and `open_samples` read it."""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from phalanx.core.errors import DataError, NotFound, SetupError, StoreUnavailable
from phalanx.job.data import manifest as manifests
from phalanx.job.data.manifest import MANIFEST, FileEntry
from phalanx.job.data.shards import damaged, unreadable, wrong_size
from phalanx.job.data.store_source import REQUEST, UNIT_BYTES
from phalanx.job.data.tars.manifest import of_either, of_samples
from phalanx.storage.objects import ObjectStore, open_store
from phalanx.storage.places import parse_place

FILES_AT_ONCE: Final = 4
TRIES: Final = 5
_T = TypeVar("_T")


def push(folder: Path, url: str, progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """Puts every file of the folder below a place such as s3://bucket/prefix, each compared with its hash on the way, and the
    manifest last, so that until then there is no data set; gives the place. progress: bytes that are there, of how many.

    Given again after a kill, it puts all again. Raises DataError where the folder is damaged, or the place holds other data;
    SetupError and StoreUnavailable as stores do.
    """
    if parse_place(url, "place").scheme in ("file", "memory"):
        raise SetupError("place", url, "name one in a store, such as s3://bucket/prefix; a folder is copied by any tool")
    return push_into(folder, open_store(url, patience=REQUEST, field="place"), progress)


def push_into(folder: Path, store: ObjectStore, progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """As `push`, into an open store."""
    data = manifests.load(folder)
    manifest = of_either(data, str(folder / MANIFEST))
    put = _put if isinstance(manifest, manifests.Manifest) else _put_of_samples
    if (found := _manifest_there(store)) not in (None, data):
        raise _other_data(store)
    files = manifest.files
    total, done = sum(entry.size_bytes for entry in files), 0
    with ThreadPoolExecutor(FILES_AT_ONCE, "push") as pool:
        for entry, _ in zip(files, pool.map(lambda entry: _again(lambda: put(store, folder, entry)), files), strict=True):
            done += entry.size_bytes
            progress(done, total)
    if found is None and not _again(lambda: store.put_if_absent(MANIFEST, data)) and _manifest_there(store) != data:
        raise _other_data(store)
    return store.url


def _put(store: ObjectStore, folder: Path, entry: FileEntry) -> None:
    """Its bytes are hashed while they go, so what is damaged here fails when its last byte is due: before the object exists."""
    path = folder / entry.name
    try:
        if (size := path.stat().st_size) != entry.size_bytes:
            raise wrong_size(entry, folder, size)
        if store.takes_parts(size):
            store.put_pieces(entry.name, _checked(folder, entry))
        else:
            store.put(entry.name, b"".join(_checked(folder, entry)))
    except OSError as error:
        raise unreadable(entry, path, error) from error


def _put_of_samples(store: ObjectStore, folder: Path, entry: FileEntry) -> None:
    """What is damaged is made again otherwise than tokens are."""
    try:
        _put(store, folder, entry)
    except DataError as error:
        raise of_samples(error) from error


def _checked(folder: Path, entry: FileEntry) -> Iterator[memoryview]:
    digest = hashlib.sha256()
    with (folder / entry.name).open("rb") as file:
        while piece := file.read(UNIT_BYTES):
            digest.update(piece)
            if file.tell() >= entry.size_bytes and digest.hexdigest() != entry.sha256:
                raise damaged(entry, folder, digest.hexdigest())
            yield memoryview(piece)


def _again(put: Callable[[], _T]) -> _T:
    """Some times over, while the store is away."""
    for turn in range(TRIES - 1):
        try:
            return put()
        except StoreUnavailable:
            time.sleep(2**turn)
    return put()


def _manifest_there(store: ObjectStore) -> bytes | None:
    try:
        return store.get(MANIFEST)
    except NotFound:
        return None


def _other_data(store: ObjectStore) -> DataError:
    return DataError("place", store.url, "holds other data, which would be lost; name an empty place")
