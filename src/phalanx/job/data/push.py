"""Puts a prepared folder, of tokens or of samples, into a store, where `open_data` and `open_samples` read it."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from phalanx.core.errors import DataError, NotFound, SetupError, StoreUnavailable
from phalanx.job.data import manifest as manifests
from phalanx.job.data.checked import path_of, shown
from phalanx.job.data.manifest import MANIFEST, FileEntry
from phalanx.job.data.shards import damaged, unreadable, wrong_size
from phalanx.job.data.store_source import REQUEST, UNIT_BYTES
from phalanx.job.data.tars.manifest import SampleManifest, of_either, of_samples
from phalanx.storage.hashes import sha256_bytes
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
    folder = path_of("folder", folder)
    if not isinstance(url, str):
        raise DataError("place", shown(url), "name a place in a store by its URL, such as s3://bucket/prefix")
    if parse_place(url, "place").scheme in ("file", "memory"):
        raise SetupError("place", url, "name one in a store, such as s3://bucket/prefix; a folder is copied by any tool")
    return push_into(folder, open_store(url, patience=REQUEST, field="place"), progress)


def pushed(folder: Path, url: str, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
    """As `push`, with what `phalanx data push` tells of it."""
    place = push(folder, url, progress)
    manifest, data = _read(folder)
    return {
        "path": str(folder),
        "place": place,
        "manifest_hash": sha256_bytes(data),
        "files": len(manifest.files) + 1,
        "size_bytes": sum(entry.size_bytes for entry in manifest.files) + len(data),
    }


def push_into(
    folder: Path,
    store: ObjectStore,
    progress: Callable[[int, int], None] = lambda done, total: None,
    pause: Callable[[float], object] | None = None,
) -> str:
    """As `push`, into an open store. pause: instead of waiting before a call is tried again."""
    manifest, data = _read(folder)
    put = _put if isinstance(manifest, manifests.Manifest) else _put_of_samples
    ended = threading.Event()

    def again(call: Callable[[], _T]) -> _T:
        return _again(call, pause or ended.wait)

    if (found := again(lambda: _manifest_there(store))) not in (None, data):
        raise _other_data(store)
    files = manifest.files
    total, done = sum(entry.size_bytes for entry in files), 0
    with ThreadPoolExecutor(FILES_AT_ONCE, "push") as pool:
        try:
            for entry, _ in zip(files, pool.map(lambda entry: again(lambda: put(store, folder, entry, ended)), files), strict=True):
                done += entry.size_bytes
                progress(done, total)
        finally:
            ended.set()  # what is on its way else goes on for minutes, where the store is away
    ended.clear()
    taken = found is None and not again(lambda: store.put_if_absent(MANIFEST, data))  # by us too, where an answer was lost
    if taken and again(lambda: _manifest_there(store)) != data:
        raise _other_data(store)
    return store.url


def _read(folder: Path) -> tuple[manifests.Manifest | SampleManifest, bytes]:
    data = manifests.load(folder)
    return of_either(data, str(folder / MANIFEST)), data


def _put(store: ObjectStore, folder: Path, entry: FileEntry, ended: threading.Event) -> None:
    """Its bytes are hashed while they go, so what is damaged here fails when its last byte is due: before the object exists."""
    path = folder / entry.name
    try:
        if (size := path.stat().st_size) != entry.size_bytes:
            raise wrong_size(entry, folder, size)
        if store.takes_parts(size):
            store.put_pieces(entry.name, _checked(folder, entry, ended))
        else:
            store.put(entry.name, b"".join(_checked(folder, entry, ended)))
    except OSError as error:
        raise unreadable(entry, path, error) from error


def _put_of_samples(store: ObjectStore, folder: Path, entry: FileEntry, ended: threading.Event) -> None:
    """What is damaged is made again otherwise than tokens are."""
    try:
        _put(store, folder, entry, ended)
    except DataError as error:
        raise of_samples(error) from error


def _checked(folder: Path, entry: FileEntry, ended: threading.Event) -> Iterator[memoryview]:
    digest = hashlib.sha256()
    with (folder / entry.name).open("rb") as file:
        while piece := file.read(UNIT_BYTES):
            if ended.is_set():
                raise StoreUnavailable(f"{entry.name}: the push has ended")
            digest.update(piece)
            if file.tell() >= entry.size_bytes and digest.hexdigest() != entry.sha256:
                raise damaged(entry, folder, digest.hexdigest())
            yield memoryview(piece)
        if file.tell() < entry.size_bytes:  # it was cut since it was looked at
            raise wrong_size(entry, folder, file.tell())


def _again(call: Callable[[], _T], pause: Callable[[float], object]) -> _T:
    """Some times over, while the store is away, and the pause does not say that it is over."""
    for turn in range(TRIES - 1):
        try:
            return call()
        except StoreUnavailable:
            if pause(2.0**turn):
                raise
    return call()


def _manifest_there(store: ObjectStore) -> bytes | None:
    try:
        return store.get(MANIFEST)
    except NotFound:
        return None


def _other_data(store: ObjectStore) -> DataError:
    return DataError("place", store.url, "holds other data, which would be lost; name an empty place")
