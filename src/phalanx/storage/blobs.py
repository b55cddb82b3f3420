"""Bytes under the SHA-256 of their content, put once and never changed."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from phalanx.core.errors import NotFound, SpecError, StoreUnavailable
from phalanx.core.units import show_size
from phalanx.storage.atomic import fsync_folder, refused
from phalanx.storage.hashes import is_sha256, sha256_bytes

BLOB_BYTES_MAX: Final = 256 * 2**20


class BlobStore:
    """Blobs in a folder, one file each. Safe for several processes at once: a put is all or nothing and first wins.

    Raises SetupError when the folder cannot be made, StoreUnavailable when the disk refuses.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(root)
        except OSError as error:
            raise refused(root, error) from error
        except BaseError as error:
            raise StoreUnavailable(f"{root}: {_first_line(error)}") from error

    def put(self, data: bytes) -> str:
        """Stores `data` durably and returns its name. Raises SpecError over BLOB_BYTES_MAX."""
        if len(data) > BLOB_BYTES_MAX:
            raise SpecError("blob", show_size(len(data)), f"keep it under {show_size(BLOB_BYTES_MAX)}")
        sha256 = sha256_bytes(data)
        try:
            self._put(sha256, data)
        except OSError as error:
            raise refused(self._root, error) from error
        except BaseError as error:
            raise StoreUnavailable(f"blob {sha256}: {_first_line(error)}; nothing was stored") from error
        return sha256

    def put_checked(self, sha256: str, data: bytes) -> None:
        """Stores `data` if its hash is `sha256`. Raises SpecError when it is not."""
        actual = sha256_bytes(data)
        if actual != sha256:
            raise SpecError("blob", sha256, f"the bytes received hash to {actual}; send them again whole")
        self.put(data)

    def get(self, sha256: str) -> bytes:
        """Raises NotFound for an unknown name, and for bytes that are damaged on disk: they are removed, so that `has` is false
        and a put repairs."""
        data = self._read(sha256)
        if data is not None and sha256_bytes(data) != sha256:
            data = self._without_damage(sha256)
            if data is None:
                raise NotFound("blob", sha256, "its bytes were damaged on disk and are removed; send it again")
        if data is None:
            raise NotFound("blob", sha256, "no blob has this SHA-256; send it first")
        return data

    def has(self, sha256: str) -> bool:
        """Whether `get` would find it; does not read the bytes."""
        return is_sha256(sha256) and self._path(sha256).is_file()

    def _put(self, sha256: str, data: bytes) -> None:
        with self._alone():
            try:
                obstore.put(self._store, _key(sha256), data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                if self._read(sha256) != data:
                    obstore.put(self._store, _key(sha256), data, mode="overwrite", use_multipart=False)  # repairs a damaged blob
            self._flush(sha256)  # also what was there: whoever wrote it may have ended before it was flushed

    def _without_damage(self, sha256: str) -> bytes | None:
        """What a put has repaired meanwhile, or None with the damaged bytes removed."""
        try:
            with self._alone():
                data = self._read(sha256)
                if data is not None and sha256_bytes(data) == sha256:
                    return data
                self._path(sha256).unlink(missing_ok=True)
                return None
        except OSError as error:
            raise refused(self._root, error) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time among all processes, so that what one has just repaired is not removed as damaged by another."""
        handle = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _read(self, sha256: str) -> bytes | None:
        if not is_sha256(sha256):
            return None
        try:
            return bytes(obstore.get(self._store, _key(sha256)).bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise StoreUnavailable(f"blob {sha256}: {_first_line(error)}") from error

    def _flush(self, sha256: str) -> None:
        """obstore's local store leaves flushing to the system; a committed job names its blob, so it must outlive a power cut."""
        path = self._path(sha256)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fsync_folder(path.parent)
        fsync_folder(self._root)

    def _path(self, sha256: str) -> Path:
        return self._root / _key(sha256)


def _key(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
