"""What pixels are scaled to before a model of images sees them. Pure."""

from collections.abc import Mapping
from typing import Final, Literal

Normalise = Literal["half", "imagenet"]
MEANS_AND_DEVIATIONS: Final[Mapping[Normalise, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # of its training images, as the field uses them
}
"""Mean and deviation of red, green and blue, of pixels from 0 to 1."""
