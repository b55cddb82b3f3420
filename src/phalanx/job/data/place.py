"""The folder that is built beside its name and renamed into place: a kill at any moment leaves no folder, or the one before."""

import contextlib
import errno
import fcntl
import fnmatch
import glob
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from phalanx.core.errors import Conflict, DataError, PhalanxError, SetupError
from phalanx.core.unprepared import being_made, moved_aside
from phalanx.job.data import manifest as manifests
from phalanx.job.data.default_corpus import STDLIB
from phalanx.job.data.journal import JOURNAL
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.standing import check_only, check_replaced, is_prepared
from phalanx.job.data.stored_corpus import is_url
from phalanx.job.data.tars import manifest as sample_manifests
from phalanx.storage.atomic import fsync_folder, refused
from phalanx.storage.places import parse_place

_log: Final = logging.getLogger(__name__)


def check_out(out: Path, paths: Sequence[str | Path], force: bool) -> None:
    """Raises DataError for a folder that must not be replaced, Conflict for a prepared one with other files in it, SetupError where
    nothing can be made: before all the work, not after it. Puts back what a killed run had moved aside, and says so in the log."""
    _check_writable(out)
    try:
        _put_back(out)
    except OSError as error:
        raise not_made("out", out, error) from error
    if out.exists() and not out.is_dir():
        raise DataError("out", str(out), "is a file; name a folder")
    if out in (Path.home(), Path.cwd(), *Path.cwd().parents):
        raise DataError("out", str(out), "is your home, the folder you stand in or one above it; name a folder of its own")
    _check_neither_in(out, paths)
    try:
        taken = out.exists() and any(out.iterdir()) and not force
        if taken and manifests.kind(manifests.load(out)) == "samples":
            check_only(out, {MANIFEST, *(file.name for file in sample_manifests.read(out)[0].files)})
        elif taken:
            check_only(out, {MANIFEST, *(file.name for file in manifests.read(out)[0].files)})
    except DataError as error:
        raise DataError(
            "out", str(out), "is neither empty nor a prepared folder; name another, or replace it with --force"
        ) from error
    except OSError as error:
        raise refused(out, error) from error


def _check_neither_in(out: Path, paths: Sequence[str | Path]) -> None:
    """Neither lies the folder in a data set, of which it would be no part, nor the text in the folder."""
    for above in out.parents:
        if is_prepared(above):
            raise DataError("out", str(out), f"lies inside {above}, which is a prepared folder; name one beside it")
    for path, real in _local(paths):
        if out in (real, *real.parents) and out.exists():
            raise DataError("out", str(out), f"holds the text itself ({path}) and would be replaced; name another folder")


def _check_writable(out: Path) -> None:
    """Makes a folder beside `out`, or in the nearest one above that there is, and removes it."""
    try:
        above = next(one for one in (out.parent, *out.parent.parents) if one.exists())
        Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=above)).rmdir()
    except OSError as error:
        raise not_made("out", out, error) from error


def not_made(field: str, path: Path, error: OSError) -> PhalanxError:
    """The error to raise for a place that a user named and that was refused."""
    if error.errno == errno.ENOENT:  # as of a file system that the kernel makes up
        return SetupError(field, str(path), "lies where nothing can be made; choose another place")
    found = refused(path, error)
    return SetupError(field, str(path), found.fix) if isinstance(found, SetupError) else found


def check_apart(out: Path, paths: Sequence[str | Path], field: str = "out") -> None:
    """Raises DataError for what is made inside a folder that is read, or where an input lies: it would be among the inputs of the
    next run."""
    for path, real in _local(paths):
        if (real == out or real in out.parents) and _reads(path, out.name):
            raise DataError(field, str(out), f"lies inside the input {path}, so the next run would read it; name a place beside it")


def _local(paths: Sequence[str | Path]) -> Iterator[tuple[str, Path]]:
    """What of these lies on disks of this machine, and where; of a pattern the folder before its first wildcard."""
    for path in map(str, paths):
        place = path
        if path.startswith("file://"):
            place = str(parse_place(path, "paths").path)
        elif path == STDLIB or is_url(path):
            continue
        if _is_pattern(place):
            place = os.path.join(*takewhile(lambda part: not glob.has_magic(part), ("", *Path(place).parts)))  # noqa: PTH118
        yield path, Path(os.path.realpath(place))


def _reads(path: str, name: str) -> bool:
    """Whether an input reads files of that name, where it reads any in their folder."""
    return not _is_pattern(path) or fnmatch.fnmatch(name, Path(path).name)


def _is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not os.path.lexists(path)


@contextlib.contextmanager
def building(out: Path, fresh: bool = False) -> Iterator[Path]:
    """A folder beside `out`, locked against a second run, with what an interrupted run left in it.

    It stays when this run is interrupted too and shards are finished; it goes when the text or what was asked is at fault. fresh:
    by one that cannot go on from what is there, which is removed.
    """
    folder = being_made(out)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _locked(descriptor, folder):
            raise Conflict("out", str(out), "another prepare is writing it; wait for it, or name another folder")
        try:
            _without_folders(folder, fresh)
            yield folder
        except BaseException as error:
            if isinstance(error, DataError) or not _has_shards(folder):
                shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _locked(descriptor: int, folder: Path) -> bool:
    """Whether the open folder is ours alone, and still the one of that name: another run may have moved it into place."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _without_folders(folder: Path, fresh: bool) -> None:
    """Nothing that is gone on from is a folder or a link."""
    for entry in folder.iterdir():
        if entry.is_symlink() or (fresh and not entry.is_dir()):
            entry.unlink()
        elif entry.is_dir():
            shutil.rmtree(entry)


def _has_shards(folder: Path) -> bool:
    try:
        return (folder / JOURNAL).read_bytes().count(b"\n") > 1
    except OSError:
        return False


def _put_back(out: Path) -> None:
    """What a run had moved aside that was killed before its own folder took the place. Not while a run is at it."""
    old, preparing = moved_aside(out), being_made(out)
    if out.exists() or not old.is_dir():
        return
    with contextlib.ExitStack() as stack:
        if preparing.is_dir():
            descriptor = os.open(preparing, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            if not _locked(descriptor, preparing) or out.exists():
                return
        old.rename(out)
    _log.warning("%s is back: a run was killed while it replaced that, and had moved it to %s", out, old)


def move_into_place(folder: Path, out: Path, force: bool) -> None:
    """Readers that mapped the old shards keep them: their files live until unmapped. A kill between leaves the old folder beside
    `out`, for `check_out` of the next run. Raises Conflict for a data set at `out` that is not this one again, unless `force`."""
    check_replaced(folder, out, force)
    old = moved_aside(out)
    if out.exists():
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)
    try:
        folder.rename(out)
    except OSError:
        with contextlib.suppress(OSError):  # unless somebody else has put something there
            old.rename(out)
        raise
    fsync_folder(out.parent)
    shutil.rmtree(old, ignore_errors=True)
