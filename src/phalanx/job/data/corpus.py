"""Finds the files under the paths, patterns and names that a user gives."""

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import DataError
from phalanx.core.unprepared import is_folder
from phalanx.job.data.default_corpus import STDLIB, standard_library_paths, stdlib_folder
from phalanx.job.data.file_pieces import File
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.standing import is_prepared
from phalanx.job.data.stored_corpus import SKIPPED_FOLDERS, find_objects, is_url
from phalanx.storage.places import parse_place


@dataclass(frozen=True, slots=True)
class Found:
    """What one given path names: its files, in order. direct: the path is itself the file. again: files that it names beside
    these, which an earlier path has given."""

    path: str
    label: str
    files: tuple[File, ...]
    direct: bool
    again: int = 0


def find(paths: Sequence[str | Path], leave_out: Path, prepared_too: bool = False) -> list[Found]:
    """The files of each path, in the order given and by name, each file once; `leave_out` is not entered.

    A path is a file, a folder, a pattern such as 'texts/**/*.jsonl' that no file has for its name, the URL of a store with the same
    after its bucket, or 'stdlib:'. Hidden files and folders are not entered, nor, but for `prepared_too`, what was prepared: its
    manifest and tokenizer are no text. Raises DataError for a path that is missing, that no file matches, or that is a prepared
    folder, and what `find_objects` does.
    """
    seen: set[str] = set()
    found = []
    for path in paths:
        one = _find(str(path), leave_out, prepared_too)
        fresh = {file.path: file for file in one.files if file.path not in seen}
        again = sum(1 for file in one.files if file.path in seen)
        found.append(Found(one.path, one.label, tuple(fresh.values()), one.direct, again))
        seen.update(fresh)
    return found


def _find(path: str, leave_out: Path, prepared_too: bool) -> Found:
    if path.startswith("file://"):
        path = str(parse_place(path, "paths").path)
    if is_url(path):
        objects, direct = find_objects(path)
        return Found(path, path, objects, direct)
    if path == STDLIB:
        root = stdlib_folder()
        files = tuple(_file(file.relative_to(root).as_posix(), str(file)) for file in standard_library_paths())
        return Found(path, STDLIB, files, direct=False)
    if glob.has_magic(path) and not os.path.lexists(path):
        return _matching(path, leave_out, prepared_too)
    try:
        place = Path(path).resolve(strict=True)
        if place.is_dir():
            _check_root(place, path, prepared_too)
            return Found(path, place.name, tuple(sorted(_walked(str(place), str(leave_out), prepared_too))), direct=False)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise DataError("paths", path, f"cannot be read ({reason}); name an existing file or folder, or {STDLIB}") from error
    return Found(path, place.name, (_file(place.name, str(place)),), direct=True)


def _matching(pattern: str, leave_out: Path, prepared_too: bool) -> Found:
    """Names and label are relative to the folder before the first wildcard, so that they say nothing of this machine."""
    parts = Path(pattern).parts
    plain = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    root, label = Path(*parts[:plain]), str(Path(*parts[plain:]))
    _check_root(root, pattern, prepared_too)
    matches = sorted(glob.glob(label, root_dir=root, recursive=True))  # noqa: PTH207  # Path's enters what is hidden
    if not prepared_too:
        inside = {above for name in matches for above in Path(name).parents}
        prepared = {above for above in inside if is_prepared(root / above)}
        matches = [name for name in matches if prepared.isdisjoint(Path(name).parents)]
    files = tuple(_file(_shown(name), os.path.realpath(root / name)) for name in matches if not (root / name).is_dir())
    files = tuple(file for file in files if leave_out not in Path(file.path).parents)
    if not files:
        raise DataError("paths", pattern, "matches no file; name existing files, or quote the pattern so that ** reaches Phalanx")
    return Found(pattern, label, files, direct=False)


def _check_root(root: Path, path: str, prepared_too: bool) -> None:
    if not prepared_too and is_prepared(root):
        raise DataError("paths", path, "is a prepared folder, not text; name the texts that it was made of")


def _walked(root: str, leave_out: str, prepared_too: bool) -> Iterator[File]:
    """Links to files are followed, links to folders are not."""
    folders = [(root, "")]
    while folders:
        here, above = folders.pop()
        try:
            with os.scandir(here) as entries:
                inside = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            if here == root:
                raise DataError("paths", root, f"cannot be read ({error.strerror}); name a folder this user can read") from error
            continue
        if not prepared_too and any(entry.name == MANIFEST for entry in inside) and is_prepared(Path(here)):
            continue
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in SKIPPED_FOLDERS and entry.path != leave_out:
                    folders.append((entry.path, f"{above}{entry.name}/"))
            elif entry.is_symlink():
                real = os.path.realpath(entry.path)
                made = not prepared_too and real.startswith(f"{leave_out}{os.sep}")
                if not made and not is_folder(entry):
                    yield _file(_shown(above + entry.name), real)
            else:  # its folder is without links, so most files need no look at the folders above them
                yield File(_shown(above + entry.name), entry.path, _size(entry))


def _file(name: str, path: str) -> File:
    return File(name, path, _size(Path(path)))


def _size(file: "os.DirEntry[str] | Path") -> int | None:
    """None of what is gone, and of a pipe, which to open would be to wait for ever."""
    try:
        status = file.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_size or _nothing(os.fspath(file))


def _nothing(path: str) -> int | None:
    """The size of a file that is said to have none. The kernel says so too of those that it makes while they are read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return None if file.read(1) else 0
    except OSError:
        return None


def _shown(name: str) -> str:
    """As it may stand in a manifest: a file's name need not be UTF-8."""
    return name if name.isascii() else os.fsencode(name).decode(errors="backslashreplace")
