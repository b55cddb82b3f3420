"""Names of Hugging Face's Llama-like weights for ours. Some of ours are several of theirs, one below the other. No torch."""

from collections.abc import Iterator
from typing import Final

from phalanx.core.llama_shape import LlamaShape

_WHOLE: Final = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_BLOCK: Final = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "attention.qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "attention.qkv.bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "attention.q_norm.weight": ("self_attn.q_norm.weight",),
    "attention.k_norm.weight": ("self_attn.k_norm.weight",),
    "attention.out.weight": ("self_attn.o_proj.weight",),
    "feed_norm.weight": ("post_attention_layernorm.weight",),
    "feed.gate.weight": ("mlp.gate_proj.weight",),
    "feed.up.weight": ("mlp.up_proj.weight",),
    "feed.down.weight": ("mlp.down_proj.weight",),
}
IGNORED: Final = (".rotary_emb.inv_freq",)
"""Endings of what older files hold although it follows from config.json."""


def theirs(name: str) -> tuple[str, ...]:
    """Of one parameter of ours, in the order of its rows."""
    if name in _WHOLE:
        return (_WHOLE[name],)
    _, number, rest = name.split(".", 2)
    return tuple(f"model.layers.{number}.{one}" for one in _OF_BLOCK[rest])


def pieces(name: str, rows: int, shape: LlamaShape) -> Iterator[tuple[str, int, int]]:
    """(their name, first row, row after the last) of each piece of one of our parameters, which has so many rows."""
    widths = (shape.q_dim, shape.kv_dim, shape.kv_dim) if ".qkv." in name else (rows,)
    at = 0
    for one, width in zip(theirs(name), widths, strict=True):
        yield one, at, at + width
        at += width
