"""The objective of a classifier of images: cross-entropy over classes, and how often the likeliest class is the right one.

Samples are rows (b, words) of `job.data.images.rows`, which are taken apart and normalised on the device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from phalanx.core.pixels import MEANS_AND_DEVIATIONS, Normalise
from phalanx.job.data.images.rows import FIRST, LABEL, pixels_of

_BRIGHTEST: Final = 255.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageClasses:
    """side: pixels of an image. normalise: see `VitRecipe`. smoothing: of the targets, while gradients are taken."""

    side: int
    normalise: Normalise
    smoothing: float

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        return self._losses(model, samples, self.smoothing).mean()

    def losses(self, model: nn.Module, samples: Tensor) -> Tensor:
        return self._losses(model, samples, self.smoothing)

    def scores(self, model: nn.Module, samples: Tensor) -> Mapping[str, Tensor]:
        """Without smoothing, so that runs with and without compare."""
        images, labels = self.parts(samples)
        logits = model(images).float()
        right = logits.argmax(dim=1) == labels
        return {"loss": F.cross_entropy(logits, labels), "accuracy": right.float().mean()}

    def parts(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised images (b, 3, y, x) in float32, and the numbers of their classes (b,)."""
        bytes_each = samples[:, FIRST:].contiguous().view(torch.uint8)[:, : pixels_of(self.side)]
        pixels = bytes_each.reshape(-1, 3, self.side, self.side).float()
        mean, deviation = _scale(self.normalise, pixels.device)
        return (pixels - mean) / deviation, samples[:, LABEL]

    def _losses(self, model: nn.Module, samples: Tensor, smoothing: float) -> Tensor:
        images, labels = self.parts(samples)
        return F.cross_entropy(model(images).float(), labels, reduction="none", label_smoothing=smoothing)


@cache
def _scale(normalise: Normalise, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel of pixels up to 255. Made once, so that the device waits for no copy in each step."""
    mean, deviation = (torch.tensor(one, device=device).view(3, 1, 1) * _BRIGHTEST for one in MEANS_AND_DEVIATIONS[normalise])
    return mean, deviation
