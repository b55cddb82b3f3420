"""What lies at a path where prepared data should, for people: each mistake has another remedy.

Only names are looked at: at most 500 of the folder, and as many of each of the first 20 folders in it. Whether a manifest is a
good one is for who reads it.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

MANIFEST: Final = "manifest.json"
"""Written last, so a folder without one is no data set."""

JOURNAL: Final = "journal.jsonl"
"""In a folder that is being made: what is finished of it."""

_PREPARED: Final = "name a folder made by `phalanx data prepare`"
_REMEDIES: Final = {
    errno.EACCES: "give this user the right to read it, or name a folder that it can read",
    errno.EPERM: "give this user the right to read it, or name a folder that it can read",
    errno.ENAMETOOLONG: "name a folder with a shorter name",
    errno.ELOOP: "its links lead in a circle: mend them, or name the folder itself",
    errno.EIO: "its disk fails: mend that, or name a copy on another one",
}
_NAMES_MAX: Final = 500
_FOLDERS_MAX: Final = 20
_SHOWN: Final = 3
_IMAGES: Final = (".jpg", ".jpeg", ".png", ".webp")


@dataclass(frozen=True, slots=True)
class Unprepared:
    """fix: what it is instead, and what to change. seen: it was looked at; else it may be good elsewhere, or for another user."""

    fix: str
    seen: bool = True


def being_made(out: Path) -> Path:
    """Where the folder `out` is built: beside it, and renamed to it when it is whole."""
    return out.parent / f".{out.name}.preparing"


def moved_aside(out: Path) -> Path:
    """Where it is for the moment in which another one takes its place."""
    return out.parent / f".{out.name}.replaced"


def unprepared(path: Path) -> Unprepared | None:
    """None for a folder with a manifest."""
    try:
        return _looked_at(path)
    except OSError as error:
        return _unreadable(error)


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Also of a link to one; a loop of links is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _looked_at(path: Path) -> Unprepared | None:
    """Raises OSError."""
    try:
        if (path / MANIFEST).stat():
            return None
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        return _of_file(path)
    try:
        found = _listed(path)
    except FileNotFoundError:
        return _of_nothing(path)
    return Unprepared(_of_folder(path, found))


@dataclass(frozen=True, slots=True)
class _Listed:
    files: Sequence[str]
    folders: Sequence[str]

    def ending(self, *endings: str) -> list[str]:
        return [name for name in self.files if name.lower().endswith(endings)]


def _listed(path: Path) -> _Listed:
    """In the order of their names, which is the disk's own where there are too many. Raises OSError."""
    with os.scandir(path) as entries:
        found = sorted((entry.name, is_folder(entry)) for entry in islice(entries, _NAMES_MAX))
    return _Listed([name for name, folder in found if not folder], [name for name, folder in found if folder])


def _unreadable(error: OSError) -> Unprepared:
    remedy = _REMEDIES.get(error.errno or 0, "name a folder that can be read")
    return Unprepared(f"cannot be read ({error.strerror}); {remedy}", seen=False)


def _of_nothing(path: Path) -> Unprepared:
    if moved_aside(path).is_dir():
        said = "is not there: a command was killed while it replaced it"
        return Unprepared(f"{said}; the data from before is in {moved_aside(path)}: rename that, or give the command again")
    if being_made(path).is_dir():
        return Unprepared(_half_made(being_made(path)))
    if _is_pair(path):
        return Unprepared(_megatron(path))
    if path.is_symlink():
        return Unprepared(f"is a link to {path.readlink()}, which is not there; {_PREPARED}", seen=False)
    above = next((folder for folder in path.parents if folder.is_dir()), path)
    return Unprepared(f"is not there: {above.resolve()} has no {path.relative_to(above).parts[0]}; {_PREPARED}", seen=False)


def _of_file(path: Path) -> Unprepared:
    if not path.exists():  # something above it is the file
        above = next(one for one in path.parents if one.exists())
        return Unprepared(f"is not there: {above} is a file; {_PREPARED}")
    if (path.parent / MANIFEST).is_file():
        return Unprepared(f"is a file of a prepared folder; name the folder, {path.parent}")
    if path.suffix in (".bin", ".idx") and _is_pair(path.with_suffix("")):
        return Unprepared(_megatron(path.with_suffix("")))
    if path.suffix == ".tar":
        return Unprepared(f"is a tar file, not a folder; run `phalanx data index {path.parent}` and name that folder")
    return Unprepared(f"is a file, not a folder; if it is text, run `phalanx data prepare {path} --out DIR` and name DIR")


def _of_folder(path: Path, found: _Listed) -> str:
    """What it is most surely taken for comes first."""
    inner = {name: one for name in found.folders[:_FOLDERS_MAX] if (one := _inner(path / name)) is not None}
    if JOURNAL in found.files:
        return _half_made(path)
    if found.ending(".mds") or ("index.json" in found.files and found.ending(".mds.zstd", ".mds.gz", ".mds.br", ".mds.snappy")):
        return f"holds MDS shards (MosaicML Streaming), which are not read as they are; {_mds(path)}"
    if splits := [name for name, one in inner.items() if "index.json" in one.files]:
        return f"holds MDS folders ({_few(splits)}), which are not read as they are; {_mds(path / splits[0])}"
    if pairs := [Path(name).stem for name in found.ending(".idx") if f"{Path(name).stem}.bin" in found.files]:
        return _of_pairs(path, pairs, found)
    if tars := found.ending(".tar"):
        return f"holds tar files ({_few(tars)}) without an index; run `phalanx data index {path}`"
    if prepared := [name for name, one in inner.items() if MANIFEST in one.files]:
        return f"holds prepared folders ({_few(prepared)}) and is none itself; name one of them, or several in data.sources"
    if found.ending(*_IMAGES) or any(one.ending(*_IMAGES) for one in inner.values()):
        return f"holds images that were not packed; run `phalanx data pack {path} --out DIR` and name DIR"
    if names := [*found.files, *(f"{name}/" for name in found.folders)]:
        what = f"holds no prepared data, but {_few(names)}"
        return f"{what}; if that is text, run `phalanx data prepare {path} --out DIR` and name DIR"
    return f"is empty: {_PREPARED}, or make it here: `phalanx data prepare PATHS --out {path}`"


def _inner(folder: Path) -> _Listed | None:
    try:
        return _listed(folder)
    except OSError:
        return None


def _of_pairs(path: Path, pairs: Sequence[str], found: _Listed) -> str:
    if "tokenizer.json" in found.files and found.ending(".xxh3"):  # as `phalanx data prepare` names them
        return f"holds shards of a prepared folder without their {MANIFEST}, so it is not all there; copy or make it again"
    return f"holds Megatron's indexed data ({_few(pairs)}); {_import_megatron(path / pairs[0])}"


def _half_made(folder: Path) -> str:
    said = "is not finished: a command that makes it is at work, or was killed"
    return f"{said} ({folder} is what it has so far); wait for it, or give it again: `phalanx data prepare` goes on from there"


def _is_pair(prefix: Path) -> bool:
    return all(Path(f"{prefix}{ending}").is_file() for ending in (".bin", ".idx"))


def _megatron(prefix: Path) -> str:
    return f"is Megatron's indexed data, a pair .bin and .idx, and not a folder; {_import_megatron(prefix)}"


def _import_megatron(prefix: Path) -> str:
    return f"run `phalanx data import-megatron {prefix} --tokenizer tokenizer.json --out DIR` and name DIR"


def _mds(folder: Path) -> str:
    return f"run `phalanx data import-mds {folder} --tokens COLUMN --tokenizer tokenizer.json --out DIR` and name DIR"


def _few(names: Sequence[str]) -> str:
    return ", ".join(_shown(names)) + (" and more" if len(names) > _SHOWN else "")


def _shown(names: Sequence[str]) -> Iterator[str]:
    return (name if len(name) < 60 else f"{name[:60]}..." for name in names[:_SHOWN])
