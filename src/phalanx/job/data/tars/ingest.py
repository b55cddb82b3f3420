"""`phalanx data index`: tar files that are there already become a data set, where they lie or by links from another folder."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from phalanx.core.errors import Conflict, DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data.corpus import find
from phalanx.job.data.crew import Crew, default_processes
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.place import building, check_out, move_into_place
from phalanx.job.data.standing import check_same
from phalanx.job.data.stored_corpus import is_url
from phalanx.job.data.tars.index import is_index
from phalanx.job.data.tars.manifest import FORMAT, FieldCount, SampleManifest, SampleShard, commit, read
from phalanx.job.data.tars.scan import scan
from phalanx.job.data.tars.writer import added, manifest_of, with_index
from phalanx.storage.atomic import refused

Report = Callable[[int, int], None]
"""Told how many bytes are read, of how many."""

_PARAMETERS: Final = {"made_by": "index"}
_COMPRESSED: Final = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


def index(
    paths: Sequence[str | Path],
    out: Path | None = None,
    processes: int | None = 1,
    progress: Report | None = None,
    force: bool = False,
    classes: Sequence[str] | None = None,
) -> Path:
    """Makes a data set of the WebDataset tars in `paths` (files, folders, patterns), by an index for each and a manifest, and gives
    its folder.

    out: a folder to be made, with links to the tars; None makes it in the folder in which all of them lie. processes: any number
    gives the same bytes; None as many as help. force: replace another data set at `out`, or the manifest that another command wrote
    beside the tars; tars themselves never. classes: their names, by the numbers in the field `cls`; None those that the folder of
    the tars knew already, if it was a data set.
    Raises DataError, SetupError, StoreUnavailable, Conflict.
    """
    place = Path(os.path.realpath(out)) if out is not None else None
    tars = _tars(paths, place)
    there = _beside(paths, tars) if place is None else tars[0].parent
    names = _known(there) if classes is None else tuple(classes)
    if place is not None:
        check_out(place, paths, force)
        _check_no_tars(place)
        wanted = {"kind": "samples", "format": FORMAT, "parameters": _PARAMETERS, "classes": list(names)}
        check_same(place, force, wanted, [tar.name.removesuffix(".tar") for tar in tars])
    elif not force:
        _check_left(there, tars)
    total = sum(tar.stat().st_size for tar in tars)
    with (
        Crew(default_processes(total) if processes is None else processes) as crew,
        _folder(place or there, place is None) as folder,
    ):
        commit(folder, _fill(folder, tars, names, crew, progress or (lambda *_: None), total))
        if place is not None:
            _check_no_tars(place)
            move_into_place(folder, place, force)
    return place or folder


def _fill(folder: Path, tars: Sequence[Path], classes: tuple[str, ...], crew: Crew, progress: Report, total: int) -> SampleManifest:
    shards: list[SampleShard] = []
    counts: dict[str, FieldCount] = {}
    skipped: Counter[str] = Counter()
    done = 0
    for path, found in zip(tars, crew.map(scan, tars), strict=True):
        if not found.samples:
            names = ", ".join(f"{times} {reason}" for reason, times in sorted(found.skipped.items())) or "none at all"
            raise DataError("tar", path.name, f"holds no sample (its members: {names}); leave it out")
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
        shards.append(with_index(folder, found.tar, found.index, found.samples))
        counts = added(counts, found.fields)
        skipped.update(found.skipped)
        done += found.tar.size_bytes
        progress(done, total)
    return manifest_of(shards, counts, classes, skipped, _PARAMETERS)


def _check_no_tars(place: Path) -> None:
    """Links to tars are made again; a tar may be the only one. Raises Conflict."""
    if tar := next((path for path in place.rglob("*.tar") if not path.is_symlink()), None):
        raise Conflict(
            "out", str(place), f"holds {tar.relative_to(place)} itself, not a link to it; move it away, or give another --out"
        )


def _check_left(folder: Path, tars: Sequence[Path]) -> None:
    """Raises Conflict where a data set lies beside the tars that `index` did not make, or that has more of them."""
    try:
        old = read(folder)[0]
    except DataError:
        return
    made_by = old.parameters.get("made_by", "others")
    if made_by != _PARAMETERS["made_by"]:
        fix = f"holds the data set that `{made_by}` made; give --force to index it anew, or a folder to be made with --out"
        raise Conflict("paths", str(folder), fix)
    given = {tar.name for tar in tars}
    if left := [shard.tar.name for shard in old.shards if shard.tar.name not in given and (folder / shard.tar.name).exists()]:
        fix = f"holds a data set with {left[0]} in it, too; name all its tars, give --force, or a folder to be made with --out"
        raise Conflict("paths", str(folder), fix)


def _known(folder: Path) -> tuple[str, ...]:
    try:
        return read(folder)[0].classes
    except DataError:
        return ()


@contextlib.contextmanager
def _folder(place: Path, is_there: bool) -> Iterator[Path]:
    """Where the data set is written. Raises what `refused` says."""
    try:
        if is_there:
            yield place
        else:
            with building(place, fresh=True) as folder:
                yield folder
    except OSError as error:
        raise refused(place, error) from error


def _tars(paths: Sequence[str | Path], out: Path | None) -> list[Path]:
    """In the order of their paths and names. Raises DataError when there are none, or two have one name."""
    if not paths:
        raise DataError("paths", "(none)", "name tar files, or a folder of them")
    if urls := [str(path) for path in paths if is_url(str(path))]:
        fix = "copy the tars here, index them, then `phalanx data push`"
        raise DataError("paths", urls[0], f"lies in a store, and an index is made from disks of this machine: {fix}")
    found = [Path(file.path) for one in find(paths, out or Path(os.devnull), prepared_too=True) for file in one.files]
    if packed := [file for file in found if file.name.endswith(_COMPRESSED)]:
        raise DataError("paths", str(packed[0]), "is compressed, so nothing can be read from its middle; unpack it to a .tar")
    tars = [file for file in found if file.name.endswith(".tar")]
    if not tars:
        fix = "hold no file that ends in .tar; name WebDataset tars, or make some of a folder of images with `phalanx data pack`"
        raise DataError("paths", ", ".join(map(str, paths)), fix)
    names = Counter(tar.name for tar in tars)
    for tar in tars:
        if names[tar.name] > 1:
            raise DataError("paths", str(tar), "has the name of another one; shards of one data set have names of their own")
        if not manifests.is_plain(tar.name):
            raise DataError("paths", str(tar), "has a name that no shard may have; use letters, digits, `-`, `_` and dots")
    return tars


def _beside(paths: Sequence[str | Path], tars: Sequence[Path]) -> Path:
    """The folder of all tars: the one that was given, if it was, since it may hold links to them. Raises DataError, Conflict."""
    folder = Path(paths[0]).resolve() if len(paths) == 1 and Path(paths[0]).is_dir() else tars[0].parent
    for tar in tars:
        if not (folder / tar.name).exists() or not (folder / tar.name).samefile(tar):
            raise DataError("paths", str(tar), f"lies in another folder than {folder}; name a folder for all of them with --out")
    with contextlib.suppress(FileNotFoundError):
        data = (folder / MANIFEST).read_bytes()
        if manifests.kind(data) != "samples":
            raise Conflict("paths", str(folder), f"has a {MANIFEST} of something else; name a folder to be made with --out")
    for tar in tars:
        path = (folder / tar.name).with_suffix(".index")
        if path.exists() and not is_index(path):
            raise Conflict("paths", str(path), "is of something else and would be replaced; name a folder to be made with --out")
    return folder
