"""From the bytes of an image to its pixels, by Pillow, which lets other threads run while it decodes and scales."""

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.images.boxes import Box
from phalanx.job.data.tars.open import Sample

FORMATS: Final[Mapping[str, str]] = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
"""Field of a sample to the only decoder that gets its bytes: those of rare formats are where decoders go wrong."""
PIXELS_MAX: Final = 2**26
"""Of an image as it is stored: a small file may say any size."""

Pixels = NDArray[np.uint8]


def decoded(sample: Sample, side: int, box: Callable[[int, int], Box]) -> Pixels:
    """[3, side, side]: red, green and blue of a part of the sample's image, scaled. box: from the image's width and height to the
    part. Raises DataError for a sample without an image, or with one that cannot be decoded."""
    field = next((name for name in FORMATS if name in sample.fields), None)
    if field is None:
        there = ", ".join(sample.fields)
        fix = f"has {there}, and no image ({', '.join(FORMATS)}); leave it out of the data, or convert it"
        raise DataError(f"fields of sample {sample.number}", sample.key, fix)
    try:
        return _pixels(sample.fields[field], FORMATS[field], side, box)
    except Exception as error:  # hostile bytes: decoders raise whatever they like
        fix = f"cannot be decoded as {FORMATS[field]} ({error}); leave it out of the data"
        raise DataError(f"field {field} of sample {sample.number}", sample.key, fix) from error


def _pixels(data: bytes, kind: str, side: int, box: Callable[[int, int], Box]) -> Pixels:
    from PIL import Image  # what data of tokens does without

    with Image.open(BytesIO(data), formats=[kind]) as image:
        if image.width * image.height > PIXELS_MAX:
            raise ValueError(f"{image.width * image.height} pixels, more than {PIXELS_MAX}")
        part = box(image.width, image.height)
        scaled = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC, box=part)
        return np.asarray(scaled).transpose(2, 0, 1)


def label_of(sample: Sample, classes: int) -> int:
    """The number of its class. Raises DataError where it has none, or one that the model does not know."""
    said = sample.fields.get("cls")
    if said is None:
        raise DataError(f"fields of sample {sample.number}", sample.key, "has no field cls, the number of its class; add it")
    try:
        label = int(said)
    except ValueError:
        label = -1
    if not 0 <= label < classes:
        fix = f"is no class: the model tells {classes} apart, from 0 on; mend the data, or write more `classes`"
        raise DataError(f"cls of sample {sample.number}", said[:20].decode(errors="replace"), fix)
    return label
