"""Finds the files under the paths, patterns and names that a user gives."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phalanx.core.errors import DataError
from phalanx.job.data.default_corpus import STDLIB, standard_library_paths, stdlib_folder

_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True, slots=True)
class Found:
    """What one given path names: its files with their names relative to it, in order. direct: the path is itself the file."""

    path: str
    label: str
    files: tuple[tuple[str, Path], ...]
    direct: bool


def find(paths: Sequence[str | Path], leave_out: Path) -> list[Found]:
    """The files of each path, in the order given and by name, each file once; `leave_out` is not entered.

    A path is a file, a folder, a pattern such as 'texts/**/*.jsonl' that no file has for its name, or 'stdlib:'. Hidden files and
    folders are not entered. Raises DataError for a path that is missing, or that no file matches.
    """
    seen: set[Path] = set()
    found = []
    for path in paths:
        one = _find(str(path), leave_out)
        files = tuple((name, file) for name, file in one.files if not (file in seen or seen.add(file)))  # type: ignore[func-returns-value]
        found.append(Found(one.path, one.label, files, one.direct))
    return found


def _find(path: str, leave_out: Path) -> Found:
    if path == STDLIB:
        root = stdlib_folder()
        files = tuple((file.relative_to(root).as_posix(), file) for file in standard_library_paths())
        return Found(path, STDLIB, files, direct=False)
    if glob.has_magic(path) and not os.path.lexists(path):
        return _matching(path, leave_out)
    try:
        place = Path(path).resolve(strict=True)
        if place.is_dir():
            return Found(path, place.name, tuple(sorted(_walked(place, leave_out))), direct=False)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise DataError("paths", path, f"cannot be read ({reason}); name an existing file or folder, or {STDLIB}") from error
    return Found(path, place.name, ((place.name, place),), direct=True)


def _matching(pattern: str, leave_out: Path) -> Found:
    """Names and label are relative to the folder before the first wildcard, so that they say nothing of this machine."""
    parts = Path(pattern).parts
    plain = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    root, label = Path(*parts[:plain]), str(Path(*parts[plain:]))
    matches = sorted(glob.glob(label, root_dir=root, recursive=True))  # noqa: PTH207  # Path's enters what is hidden
    files = tuple((_shown(name), _real(root / name)) for name in matches if not (root / name).is_dir())
    files = tuple((name, file) for name, file in files if leave_out not in file.parents)
    if not files:
        raise DataError("paths", pattern, "matches no file; name existing files, or quote the pattern so that ** reaches Phalanx")
    return Found(pattern, label, files, direct=False)


def _walked(root: Path, leave_out: Path) -> Iterator[tuple[str, Path]]:
    def stop(error: OSError) -> None:
        if error.filename == str(root):
            raise DataError("paths", str(root), f"cannot be read ({error.strerror}); name a folder this user can read")

    for here, folders, files in os.walk(root, onerror=stop):
        base = Path(here)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED_FOLDERS and _real(base / name) != leave_out
        ]
        above = "" if base == root else f"{base.relative_to(root)}/"
        for name in files:
            if not name.startswith("."):
                file = base / name  # its folder is without links, so most files need no look at the folders above them
                yield _shown(above + name), _real(file) if file.is_symlink() else file


def _shown(name: str) -> str:
    """As it may stand in a manifest: a file's name need not be UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _real(path: Path) -> Path:
    """Without links; unlike Path.resolve, a loop of them is left as it is, to be unreadable later."""
    return Path(os.path.realpath(path))
