"""`phalanx data pack`: a folder of images, a class in each of its folders, becomes tar shards with an index.

The layout is the one that torchvision's ImageFolder reads: ROOT/CLASS/.../NAME.ENDING. Samples are laid in a fixed random order, so
that neighbours, which are read together, are of different classes.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from phalanx.core.errors import DataError
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.order import sample
from phalanx.job.data.place import building, check_apart, check_out, move_into_place
from phalanx.job.data.standing import check_same, is_prepared
from phalanx.job.data.tars.ingest import Report
from phalanx.job.data.tars.manifest import FORMAT, commit
from phalanx.job.data.tars.members import is_safe
from phalanx.job.data.tars.writer import SHARD_BYTES_MAX, TarWriter
from phalanx.storage.atomic import refused

ENDINGS: Final = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff")
CLASS_FIELD: Final = "cls"
_SEED: Final = 0x5041434B
_FILE_BYTES_MAX: Final = 2**32
_HIDDEN: Final = re.compile(r"\.|__.*__$")


@dataclass(frozen=True, slots=True)
class _Image:
    """A file, the key of its sample, the ending that names its field, and the number of its class."""

    path: Path
    key: str
    ending: str
    number: int


def pack(
    root: Path,
    out: Path,
    shard_bytes_max: int = SHARD_BYTES_MAX,
    endings: Sequence[str] = ENDINGS,
    progress: Report | None = None,
    force: bool = False,
) -> Path:
    """Makes the folder `out` of the images below the folders of `root`, each named as its class; classes are numbered by name.

    Each sample has the image's bytes as they are, in a field named by the file's ending, and in `cls` the number of its class as
    digits. endings: of the files to take, in lower case. The same files and endings give the same bytes. `out` lies beside `root`;
    what stands there and is not this very data set is replaced only with `force`, and prepared folders in `root` are not entered.
    Raises DataError, StoreUnavailable (disk full), Conflict.
    """
    out = Path(os.path.realpath(out))
    check_out(out, [root], force)
    check_apart(out, [root])
    skipped: Counter[str] = Counter()
    classes, images = _found(root, tuple(endings), skipped)
    parameters: dict[str, str | int] = {"made_by": "pack", "shard_bytes_max": shard_bytes_max, "endings": ",".join(endings)}
    wanted = {"kind": "samples", "format": FORMAT, "parameters": parameters, "classes": list(classes), "samples": len(images)}
    check_same(out, force, wanted)
    report, done = progress or (lambda *_: None), 0
    try:
        sizes = [image.path.stat().st_size for image in images]
        with building(out, fresh=True) as folder, TarWriter(folder, shard_bytes_max) as writer:
            for number in sample(_SEED, 0, np.arange(len(images), dtype=np.int64), len(images)).tolist():
                image = images[number]
                writer.add(image.key, {image.ending: _read(image.path), CLASS_FIELD: str(image.number).encode()})
                done += sizes[number]
                report(done, sum(sizes))
            commit(folder, writer.finish(classes, skipped, parameters))
            move_into_place(folder, out, force)
    except OSError as error:
        raise refused(out, error) from error
    return out


def _found(root: Path, endings: tuple[str, ...], skipped: Counter[str]) -> tuple[tuple[str, ...], list[_Image]]:
    """The classes, and their images by name."""
    if is_prepared(root):
        raise DataError("folder", str(root), "is a prepared folder, not images; name the folder that it was made of")
    try:
        folders = sorted(
            one.name for one in root.iterdir() if one.is_dir() and not _HIDDEN.match(one.name) and not is_prepared(one)
        )
    except OSError as error:
        raise DataError("folder", str(root), f"cannot be read ({error.strerror}); name a folder this user can read") from error
    if not folders:
        raise DataError("folder", str(root), "has no folders of images in it; make one for each class, named by it")
    images: list[_Image] = []
    for number, name in enumerate(folders):
        found = _of_class(root / name, name, number, endings, skipped)
        if not found:
            fix = f"has no file that ends in {', '.join(endings)}; move it away, or name other endings with --ending"
            raise DataError("class", str(root / name), fix)
        images += found
    return tuple(folders), images


def _of_class(folder: Path, name: str, number: int, endings: tuple[str, ...], skipped: Counter[str]) -> list[_Image]:
    found: list[_Image] = []
    taken: set[str] = set()
    files = sorted(_walked(folder))
    for path in files:
        ending = path.suffix[1:].lower()
        inside = path.relative_to(folder).as_posix()
        if ending not in endings or path.name.startswith("."):
            skipped["other_file"] += 1
        elif not is_safe(f"{name}/{inside}"):
            skipped["unsafe_name"] += 1
        elif not path.is_file():
            skipped["unreadable"] += 1
        else:
            key = _key(f"{name}/{inside.removesuffix(path.suffix)}", taken)
            found.append(_Image(path, key, ending, number))
    return found


def _walked(folder: Path) -> Iterator[Path]:
    """The files below it, but for those of prepared folders."""
    for here, inside, names in os.walk(folder, followlinks=False):
        if MANIFEST in names and is_prepared(Path(here)):
            inside.clear()
        else:
            yield from (Path(here) / name for name in names)


def _key(name: str, taken: set[str]) -> str:
    """The path without its ending; what dots would cut off is kept, and of equal ones the later get a number."""
    above, slash, last = name.rpartition("/")
    plain = f"{above}{slash}{last.replace('.', '_')}"
    key, number = plain, 2
    while key in taken:
        key, number = f"{plain}_{number}", number + 1
    taken.add(key)
    return key


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise DataError("image", str(path), "has over 4 GiB; leave it out")
        return path.read_bytes()
    except OSError as error:
        raise DataError("image", str(path), f"cannot be read ({error.strerror}); leave it out, or let this user read it") from error
