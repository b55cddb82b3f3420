"""From the bytes of an image to its pixels, by Pillow, which lets other threads run while it decodes and scales."""

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.images.boxes import Box
from phalanx.job.data.tars.open import Sample

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS: Final[Mapping[str, str]] = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
"""Field of a sample to the only decoder that gets its bytes: those of rare formats are where decoders go wrong."""
CLASS_FIELD: Final = "cls"
PIXELS_MAX: Final = 2**26
"""Of an image as it is stored: a small file may say any size."""
LARGE: Final = threading.Lock()
"""Held over the pixels of an image of more than `LARGE_PIXELS`: 4 bytes for each, twice where it is converted or turned, would be
half a GiB a thread."""
LARGE_PIXELS: Final = 2**24
_DEEP_SHIFT: Final = 8
"""From 16 bits to 8, as Pillow itself does with 16 bits of three colours."""
_TURNS: Final[Mapping[int, str]] = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip
"""By EXIF's orientation, what sets an image upright (tag 274 of CIPA DC-008)."""

_LEFT_OUT: Final = "leave it out of the data, or let others stand in for it in training (`data.on_bad_data: quarantine`)"

Pixels = NDArray[np.uint8]


def decoded(sample: Sample, side: int, box: Callable[[int, int], Box]) -> Pixels:
    """[3, side, side]: red, green and blue of a part of the sample's image, scaled. box: from the image's width and height to the
    part, both as its camera was held. Raises DataError for a sample without an image, or with one that cannot be decoded."""
    field = next((name for name in FORMATS if name in sample.fields), None)
    if field is None:
        there = ", ".join(sample.fields)
        fix = f"has {there}, and no image ({', '.join(FORMATS)}); convert it, {_LEFT_OUT}"
        raise DataError(f"fields of sample {sample.number}", sample.key, fix)
    try:
        return _pixels(sample.fields[field], FORMATS[field], side, box)
    except MemoryError:  # which says nothing about the image
        raise
    except Exception as error:  # hostile bytes: decoders raise whatever they like
        fix = f"cannot be decoded as {FORMATS[field]} ({error}); {_LEFT_OUT}"
        raise DataError(f"field {field} of sample {sample.number}", sample.key, fix) from error


def _pixels(data: bytes, kind: str, side: int, box: Callable[[int, int], Box]) -> Pixels:
    from PIL import Image  # what data of tokens does without

    with Image.open(BytesIO(data), formats=[kind]) as image:
        pixels = image.width * image.height
        if pixels > PIXELS_MAX:
            raise ValueError(f"{pixels} pixels, more than {PIXELS_MAX}")
        with LARGE if pixels > LARGE_PIXELS else nullcontext():
            upright = _rgb(_upright(image))
            part = box(upright.width, upright.height)
            scaled = upright.resize((side, side), Image.Resampling.BICUBIC, box=part)
        return np.asarray(scaled).transpose(2, 0, 1)


def _upright(image: "Image") -> "Image":
    """As its camera was held. EXIF that nobody can read turns nothing, as the pixels may be good: what Pillow has for this writes
    the rest of it anew, and fails where that is odd."""
    from PIL import ExifTags
    from PIL.Image import Transpose

    image.load()  # what is wrong with the pixels is raised here
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 -- hostile bytes, and no reason to leave the pixels out
        return image
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(Transpose[turn])


def _rgb(image: "Image") -> "Image":
    """Without a copy where it is that already."""
    from PIL import Image

    if image.mode.startswith("I"):  # grey of 16 bits, which `convert` would cut off at 255
        image = Image.fromarray((np.asarray(image) >> _DEEP_SHIFT).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def label_of(sample: Sample, classes: int) -> int:
    """The number of its class. Raises DataError where it has none, or one that the model does not know."""
    said = sample.fields.get(CLASS_FIELD)
    if said is None:
        fix = f"has no field {CLASS_FIELD}, the number of its class; add it"
        raise DataError(f"fields of sample {sample.number}", sample.key, fix)
    try:
        label = int(said)
    except ValueError:
        label = -1
    if not 0 <= label < classes:
        fix = f"is no class: the model tells {classes} apart, from 0 on; mend the data, or write more `classes`"
        raise DataError(f"{CLASS_FIELD} of sample {sample.number}", said[:20].decode(errors="replace"), fix)
    return label
