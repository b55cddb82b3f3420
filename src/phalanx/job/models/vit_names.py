"""Names and shapes of Hugging Face's weights of a vision transformer for ours. Some of ours are several of theirs, one below the
other. No torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.core.vit_shape import CHANNELS, VitShape

_WHOLE: Final = {
    "embedding.project": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
    "embedding.class_token": "embeddings.cls_token",
    "embedding.places": "embeddings.position_embeddings",
}
_OF_BLOCK: Final = {
    "attention_norm": ("layernorm_before",),
    "attention.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    "attention.out": ("attention.output.dense",),
    "feed_norm": ("layernorm_after",),
    "feed.up": ("intermediate.dense",),
    "feed.down": ("output.dense",),
}
HEAD: Final = "head"
"""Our part whose shape is that of the classes."""
POOLER: Final = ("pooler.dense.weight", "pooler.dense.bias")
"""What a model without a head has instead, and no classifier computes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor of theirs: rows `start` up to `end` of one of our parameters, in another shape."""

    name: str
    start: int
    end: int
    shape: tuple[int, ...]


def pieces(name: str, ours: Sequence[int], shape: VitShape, prefix: str) -> Iterator[Piece]:
    """Of one of our parameters, which has the shape `ours`. prefix: of their names of all but the head."""
    rows, rest = ours[0], tuple(ours[1:])
    names = _theirs(name, prefix)
    for number, one in enumerate(names):
        start, end = (rows * at // len(names) for at in (number, number + 1))
        yield Piece(one, start, end, _shapes(shape).get(name, (end - start, *rest)))


def _theirs(name: str, prefix: str) -> tuple[str, ...]:
    layer, _, kind = name.rpartition(".")
    if name in _WHOLE:
        return (f"{prefix}{_WHOLE[name]}",)
    if layer == HEAD:
        return (f"classifier.{kind}",)
    if layer in _WHOLE:
        return (f"{prefix}{_WHOLE[layer]}.{kind}",)
    _, number, rest = layer.split(".", 2)
    return tuple(f"{prefix}encoder.layer.{number}.{one}.{kind}" for one in _OF_BLOCK[rest])


def _shapes(shape: VitShape) -> dict[str, tuple[int, ...]]:
    """Of those that are no matrices or rows there."""
    return {
        "embedding.project.weight": (shape.dim, CHANNELS, shape.patch, shape.patch),
        "embedding.class_token": (1, 1, shape.dim),
        "embedding.places": (1, shape.tokens, shape.dim),
    }
