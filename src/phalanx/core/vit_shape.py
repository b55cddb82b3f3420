"""What fixes the shapes of a vision transformer (ViT, arXiv:2010.11929), and what follows from it alone: counts of parameters and
operations. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CHANNELS: Final = 3
"""Red, green and blue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VitShape:
    """What fixes the weights' shapes, and how norms are computed; stored with a saved model.

    image, patch: pixels of a side of the square image, and of each square that becomes a token. ffn_dim: inner width of the
    feed-forward; 0 becomes 4 x dim.
    """

    image: int
    patch: int
    dim: int
    layers: int
    heads: int
    classes: int
    ffn_dim: int = 0
    norm_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        object.__setattr__(self, "ffn_dim", self.ffn_dim or 4 * self.dim)

    @property
    def patches(self) -> int:
        """Of an image."""
        side: int = self.image // self.patch
        return side * side

    @property
    def tokens(self) -> int:
        """That attend to each other: the patches, and one for the class."""
        return self.patches + 1

    @property
    def patch_values(self) -> int:
        """Numbers that a patch is made of."""
        return CHANNELS * self.patch * self.patch

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """(field, value, what to change) for what no model can have."""
        least = ("image", "patch", "dim", "layers", "heads", "classes")
        small = [name for name in least if getattr(self, name) < 1]
        for name in small:
            yield name, getattr(self, name), "write a whole number above 0"
        if small:
            return
        if self.ffn_dim < 0:
            yield "ffn_dim", self.ffn_dim, "write a whole number above 0, or 0 for 4 x dim"
        if self.image % self.patch:
            yield "image", self.image, f"write a multiple of patch ({self.patch})"
        if self.dim % self.heads:
            yield "dim", self.dim, f"write a multiple of heads ({self.heads})"
        if not self.norm_epsilon > 0:
            yield "norm_epsilon", self.norm_epsilon, "write a number above 0"


def num_parameters(shape: VitShape) -> int:
    """All of them, biases and norms too."""
    dim, inner = shape.dim, shape.ffn_dim
    block = 4 * dim + (3 * dim * dim + 3 * dim) + (dim * dim + dim) + (dim * inner + inner) + (inner * dim + dim)
    embedding = shape.patch_values * dim + dim + dim + shape.tokens * dim  # patches, the class's token, places
    return embedding + shape.layers * block + 2 * dim + dim * shape.classes + shape.classes


def flops_per_image(shape: VitShape) -> int:
    """Of a training step: three times the forward pass, a multiply-add counting as two.

    Forward: 2 x the weights of the matrices that a token goes through, 4 x dim x tokens of attention for each token and layer (all
    tokens see all), 2 x patch values x dim for each patch, and 2 x dim x classes once. Norms, biases and activations are next to
    nothing; recomputation does not count.
    """
    matrices = 4 * shape.dim * shape.dim + 2 * shape.dim * shape.ffn_dim
    blocks = shape.layers * shape.tokens * (2 * matrices + 4 * shape.dim * shape.tokens)
    ends = 2 * shape.patches * shape.patch_values * shape.dim + 2 * shape.dim * shape.classes
    return 3 * (blocks + ends)
