"""Known sizes of vision transformers, as functions. What a job's `size` names; explicit hyperparameters go over it. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from phalanx.core.vit_shape import VitShape

_IMAGENET: Final = 1000


def vit_ti(classes: int = _IMAGENET) -> VitShape:
    """5.7 million parameters with 1,000 classes (DeiT, arXiv:2012.12877)."""
    return VitShape(image=224, patch=16, dim=192, layers=12, heads=3, classes=classes)


def vit_s(classes: int = _IMAGENET) -> VitShape:
    """22.1 million (DeiT)."""
    return VitShape(image=224, patch=16, dim=384, layers=12, heads=6, classes=classes)


def vit_b(classes: int = _IMAGENET) -> VitShape:
    """86.6 million (ViT, arXiv:2010.11929)."""
    return VitShape(image=224, patch=16, dim=768, layers=12, heads=12, classes=classes)


def vit_l(classes: int = _IMAGENET) -> VitShape:
    """304 million (ViT)."""
    return VitShape(image=224, patch=16, dim=1024, layers=24, heads=16, classes=classes)


def vit_h(classes: int = _IMAGENET) -> VitShape:
    """632 million (ViT)."""
    return VitShape(image=224, patch=14, dim=1280, layers=32, heads=16, classes=classes)


SIZES: Final[Mapping[str, Callable[..., VitShape]]] = {
    "vit-ti": vit_ti,
    "vit-s": vit_s,
    "vit-b": vit_b,
    "vit-l": vit_l,
    "vit-h": vit_h,
}
"""Name, as a job writes it, to its shape for a number of classes."""


def over_size(given: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters with those of the `size` that they name below them. The classes stay the data's. An unknown size is left for
    `VitRecipe.problems` to name."""
    size = SIZES.get(str(given.get("size", "")))
    if size is None:
        return dict(given)
    shape = asdict(size())
    del shape["classes"]
    return {**shape, **given}
