"""Which part of an image is looked at. A box is (left, top, right, bottom) in pixels, not rounded. Pure but for what it draws."""

import math
from typing import Final

import numpy as np

Box = tuple[float, float, float, float]
_TRIES: Final = 10
_RATIO: Final = 4 / 3
"""Of a box's width to its height, at most, and its reverse at least (GoogLeNet, arXiv:1409.4842, section 6)."""


def middle(width: int, height: int) -> Box:
    """The largest square in the middle."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def drawn(width: int, height: int, area_min: float, random: np.random.Generator) -> Box:
    """A box somewhere in the image of at least that share of its area, of any shape up to `_RATIO`; the middle where none that was
    drawn fits, as of a very long image, or where all of the area is asked for."""
    if area_min >= 1:
        return middle(width, height)
    for _ in range(_TRIES):
        area = width * height * random.uniform(area_min, 1.0)
        ratio = math.exp(random.uniform(-math.log(_RATIO), math.log(_RATIO)))
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = random.uniform(0.0, width - wide), random.uniform(0.0, height - high)
            return left, top, min(left + wide, width), min(top + high, height)
    return middle(width, height)
