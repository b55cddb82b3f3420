"""Files that are whole or absent: written beside, flushed to the disk, then renamed over the name."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from phalanx.core.errors import PhalanxError, SetupError, StoreUnavailable

_USERS_TO_FIX: Final = {
    errno.EACCES: "is not writable for this user; change its owner or mode, or choose another place",
    errno.EPERM: "is not writable for this user; change its owner or mode, or choose another place",
    errno.EROFS: "lies on a read-only file system; choose another place",
    errno.ENOTDIR: "has a file where a folder is needed; move it away, or choose another place",
    errno.EEXIST: "has a file where a folder is needed; move it away, or choose another place",
    errno.EISDIR: "is a folder where a file is needed; move it away, or choose another place",
    errno.ENAMETOOLONG: "is too long for this file system; choose a shorter place",
    errno.ELOOP: "runs through too many links; choose another place",
}


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Makes `path` hold exactly `data`, durably, with permission bits `mode`; missing parent folders are made.

    A reader, or a crash at any point, meets the old file or the new one. Raises SetupError where the place itself cannot be
    written by this user, StoreUnavailable where the disk is full or failing; either way nothing was changed.
    """
    try:
        make_folders(path.parent)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        fsync_folder(path.parent)
    except OSError as error:
        raise refused(path, error) from error


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Makes `folder`, and durable the names of it and of every one above that was missing: what is written into a folder whose own
    name is lost is lost with it. Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=mode)
    for made in missing:
        fsync_folder(made.parent)


def fsync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refused(path: Path, error: OSError) -> PhalanxError:
    """The error to raise for a refused write at `path`: the user's where they can fix it, else the world's."""
    fix = _USERS_TO_FIX.get(error.errno or 0)
    if fix is not None:
        return SetupError("path", str(path), fix)
    return StoreUnavailable(f"{path}: {error.strerror or error}; nothing was changed, free space or try again")
