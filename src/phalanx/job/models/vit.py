"""A vision transformer (ViT, arXiv:2010.11929): patches of an image as tokens, with one more for its class, which all attend to
each other; LayerNorm before each part, GELU.

Shapes end names: b batch, c channels, y and x pixels, n tokens, d width, h heads, k head width.
"""

from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from phalanx.core.vit_shape import VitShape
from phalanx.job.models.llama import drawn_alone

__all__ = ["Vit", "VitShape"]

_ZEROS: Final = ("class_token", "head.weight")
"""A head of zeros: all classes are alike at first (ViT's own code)."""


class PatchEmbedding(nn.Module):
    """Images (b, c, y, x) to tokens (b, n, d): the class's first, then the patches row by row, each with its place added."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.patch = shape.patch
        self.project = nn.Linear(shape.patch_values, shape.dim)
        self.class_token = nn.Parameter(torch.empty(shape.dim))
        self.places = nn.Parameter(torch.empty(shape.tokens, shape.dim))

    def forward(self, images_bcyx: Tensor) -> Tensor:
        patches = patches_of(images_bcyx, self.patch).to(self.project.weight.dtype)
        tokens_bnd = self.project(patches)
        first_b1d = self.class_token.expand(len(tokens_bnd), 1, -1)
        embedded: Tensor = torch.cat((first_b1d, tokens_bnd), dim=1) + self.places
        return embedded


def patches_of(images_bcyx: Tensor, patch: int) -> Tensor:
    """(b, patches, c x patch x patch): squares row by row, the values of each channel by channel and row by row."""
    batch, channels, height, width = images_bcyx.shape
    squares = images_bcyx.view(batch, channels, height // patch, patch, width // patch, patch)
    return squares.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch * patch)


class Attention(nn.Module):
    """Of all tokens to all. One matrix gives q, k and v, whose rows stand in this order."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)
        self.out = nn.Linear(shape.dim, shape.dim)

    def forward(self, x_bnd: Tensor) -> Tensor:
        batch, tokens, dim = x_bnd.shape
        parts = self.qkv(x_bnd).view(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        q_bhnk, k_bhnk, v_bhnk = parts.unbind(0)
        y_bhnk = F.scaled_dot_product_attention(q_bhnk, k_bhnk, v_bhnk)
        attended: Tensor = self.out(y_bhnk.transpose(1, 2).reshape(batch, tokens, dim))
        return attended


class FeedForward(nn.Module):
    """down(gelu(up(x)))."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.dim, shape.ffn_dim)
        self.down = nn.Linear(shape.ffn_dim, shape.dim)

    def forward(self, x_bnd: Tensor) -> Tensor:
        fed: Tensor = self.down(F.gelu(self.up(x_bnd)))
        return fed


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.dim, eps=shape.norm_epsilon)
        self.attention = Attention(shape)
        self.feed_norm = nn.LayerNorm(shape.dim, eps=shape.norm_epsilon)
        self.feed = FeedForward(shape)

    def forward(self, x_bnd: Tensor) -> Tensor:
        x_bnd = x_bnd + self.attention(self.attention_norm(x_bnd))
        fed: Tensor = x_bnd + self.feed(self.feed_norm(x_bnd))
        return fed


class Vit(nn.Module):
    """Images (b, 3, y, x), whose pixels are already normalised, to logits of classes (b, classes)."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.shape = shape
        self.objective: Any = None  # what the trainer notes about its losses
        self.embedding = PatchEmbedding(shape)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.dim, eps=shape.norm_epsilon)
        self.head = nn.Linear(shape.dim, shape.classes)

    def forward(self, images_bcyx: Tensor) -> Tensor:
        x_bnd = self.embedding(images_bcyx)
        for block in self.blocks:
            x_bnd = block(x_bnd)
        logits: Tensor = self.head(self.norm(x_bnd[:, 0]))
        return logits


@torch.no_grad()
def initialise(module: nn.Module, prefix: str, seed: int, std: float) -> None:
    """Fills this module's parameters: norms with 1, biases, the class's token and the head with 0, the rest from a normal of `std`.
    Each draws from its own generator, as a `Llama`'s do."""
    norms = {name for name, part in module.named_modules(prefix=prefix) if isinstance(part, nn.LayerNorm)}
    for name, parameter in module.named_parameters(prefix=prefix):
        owner, _, last = name.rpartition(".")
        if owner in norms and last == "weight":
            parameter.fill_(1.0)
        elif last == "bias" or name.endswith(_ZEROS):
            parameter.fill_(0.0)
        else:
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=drawn_alone(f"{seed} {name}")))
