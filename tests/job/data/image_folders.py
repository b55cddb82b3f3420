"""Folders of small generated images, a class in each, and tars of given members."""

import io
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data.tars.open import Sample

CLASSES = ("cat", "dog", "eel")


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A grey image of this height and width."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def pixels_of(sample: Sample) -> NDArray[np.uint8]:
    """Of an image that `png` made."""
    data = sample.fields["png"]
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + length]), dtype=np.uint8).reshape(height, width + 1)
    return rows[:, 1:].copy()


def class_of(sample: Sample) -> int:
    return int(sample.fields["cls"])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_images(root: Path, each: int = 20, side: int = 6) -> dict[str, bytes]:
    """`each` of every class, whose images are dark, middling or bright; gives the bytes by class/name without the ending."""
    random, written = np.random.default_rng(1), {}
    for number, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for image in range(each):
            data = png(random.integers(number * 80, number * 80 + 60, (side, side), dtype=np.uint8))
            (root / name / f"{image:03d}.png").write_bytes(data)
            written[f"{name}/{image:03d}"] = data
    return written


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> None:
    """A tar of files with these names and bytes."""
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            archive.addfile(file_named(name, len(data)), io.BytesIO(data))


def file_named(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def special(name: str, kind: bytes, link: str = "", headers: Mapping[str, str] | None = None) -> tarfile.TarInfo:
    """A member without bytes of its own."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.pax_headers = dict(headers or {})
    return info


def contents(folder: Path, leave_out: Sequence[str] = ()) -> dict[str, bytes]:
    """Of every file, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in leave_out}
