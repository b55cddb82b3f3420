"""A Llama-like decoder (arXiv:2302.13971): RMSNorm before each part, rotary positions, SwiGLU; what else its shape says. Its
feed-forwards may be mixtures of experts (`moe`).

Shapes end names: b batch, s sequence, d width, h heads (of keys and values: as many as there are), k head width, v vocabulary.
"""

import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from phalanx.core.llama_shape import PLAIN_ROPE, LlamaShape, Rope
from phalanx.job.models.context import WHOLE, Context
from phalanx.job.models.moe.mixture import Mixture

__all__ = ["Llama", "LlamaShape"]

DRAWN_AT_ONCE: Final = 8
"""Tensors whose initial values are drawn at a time, each by one thread: one core draws some 150 million a second."""

Head = Callable[[Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Causal self-attention with rotary positions, of grouped queries: each head of keys serves as many heads of queries.

    One matrix gives q, k and v, whose rows stand in this order. documents: as its `context` gives them.
    """

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.context: Context = WHOLE
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.widths = (shape.q_dim, shape.kv_dim, shape.kv_dim)
        self.head_dim = shape.head_dim
        self.qkv = nn.Linear(shape.dim, sum(self.widths), bias=shape.qkv_bias)
        self.out = nn.Linear(shape.q_dim, shape.dim, bias=False)
        self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.norm_epsilon) if shape.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.norm_epsilon) if shape.qk_norm else nn.Identity()

    def forward(self, x_bsd: Tensor, cos_sk: Tensor, sin_sk: Tensor, documents: Any = None) -> Tensor:
        batch, sequence, _ = x_bsd.shape
        q_bshk, k_bshk, v_bshk = (
            part.view(batch, sequence, -1, self.head_dim) for part in self.qkv(x_bsd).split(self.widths, dim=-1)
        )
        q_bhsk, k_bhsk, v_bhsk = self.q_norm(q_bshk).transpose(1, 2), self.k_norm(k_bshk).transpose(1, 2), v_bshk.transpose(1, 2)
        q_bhsk, k_bhsk = rotate(q_bhsk, cos_sk, sin_sk), rotate(k_bhsk, cos_sk, sin_sk)
        y_bhsk = self.context.attend(q_bhsk, k_bhsk, v_bhsk, documents)
        attended: Tensor = self.out(y_bhsk.transpose(1, 2).reshape(batch, sequence, -1))
        return attended


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x_bsd: Tensor) -> Tensor:
        fed: Tensor = self.down(F.silu(self.gate(x_bsd)) * self.up(x_bsd))
        return fed


def feed_of(shape: LlamaShape, index: int) -> nn.Module:
    """The feed-forward of that block."""
    moe = shape.moe
    if moe is None or index < moe.dense_layers:
        return FeedForward(shape)
    return Mixture(shape.dim, moe, lambda width: FeedForward(replace(shape, ffn_dim=width)))


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: LlamaShape, index: int = 0) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=shape.norm_epsilon)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.dim, eps=shape.norm_epsilon)
        self.feed = feed_of(shape, index)

    def forward(self, x_bsd: Tensor, cos_sk: Tensor, sin_sk: Tensor, documents: Any = None) -> Tensor:
        x_bsd, normed_bsd = self.attended(x_bsd, cos_sk, sin_sk, documents)
        fed: Tensor = x_bsd + self.feed(normed_bsd)
        return fed

    def attended(self, x_bsd: Tensor, cos_sk: Tensor, sin_sk: Tensor, documents: Any = None) -> tuple[Tensor, Tensor]:
        """After attention: the residual stream, and what the feed-forward is given of it."""
        x_bsd = x_bsd + self.attention(self.attention_norm(x_bsd), cos_sk, sin_sk, documents)
        return x_bsd, self.feed_norm(x_bsd)


class Output(nn.Linear):
    """Hidden states (b, s, d) to logits (b, s, v), or to what a head makes of them."""

    def forward(self, x_bsd: Tensor, head: Head | None = None) -> Tensor:
        return projected(x_bsd, self.weight, head)


def projected(x_bsd: Tensor, weight_vd: Tensor, head: Head | None) -> Tensor:
    return F.linear(x_bsd, weight_vd) if head is None else head(x_bsd, weight_vd)


class Llama(nn.Module):
    """Token ids (b, s) to logits (b, s, v).

    segments_bs: for each token the number of its document in the row. A token then attends to its own document alone, in which
    positions begin at 0: its logits are those that it has when the document is alone. None makes one document of each row.

    Ranks that share rows each give whole ones, and get the logits of the tokens that their `context` cuts out of them.

    head: what is made of the last hidden states (b, s, d) and the output's weight (v, d) instead of logits; called where a sharded
    weight is whole. head_plan: what the trainer notes about that.
    """

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.frozen_stay_out = False  # of checkpoints; see `job.checkpoint.state`
        self.context: Context = WHOLE
        self.head_plan: Any = None
        self.embedding = nn.Embedding(shape.vocab, shape.dim)
        self.blocks = nn.ModuleList(Block(shape, index) for index in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_epsilon)
        self.output = nn.Identity() if shape.tied else Output(shape.dim, shape.vocab, bias=False)

    def forward(self, ids_bs: Tensor, segments_bs: Tensor | None = None, head: Head | None = None) -> Tensor:
        x_bsd = self.embedding(self.context.cut(ids_bs))
        cos, sin = rope_tables(ids_bs.shape[1], self.shape.head_dim, ids_bs.device, self.shape.rope)
        if segments_bs is None:
            cos, sin = self.context.cut(cos, dim=0), self.context.cut(sin, dim=0)
        else:
            places_bs = self.context.cut(places_in_documents(segments_bs))
            cos, sin = cos[places_bs].unsqueeze(1), sin[places_bs].unsqueeze(1)  # (b, 1, s, k)
        documents = self.context.documents(ids_bs.shape[1], segments_bs)
        for block in self.blocks:
            x_bsd = block(x_bsd, cos, sin, documents)
        x_bsd = self.norm(x_bsd)
        logits_bsv: Tensor = projected(x_bsd, self.embedding.weight, head) if self.shape.tied else self.output(x_bsd, head)
        return logits_bsv


def rope_tables(sequence: int, head_dim: int, device: torch.device, rope: Rope = PLAIN_ROPE) -> tuple[Tensor, Tensor]:
    """cos and sin, each (s, k) float32, of the angle that dimension i and i + k/2 of a head turn by at each position."""
    frequency = rope.base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    if rope.factor != 1:
        turns = rope.trained * frequency / (2 * math.pi)
        kept = ((turns - rope.low) / (rope.high - rope.low)).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / rope.factor)
    angle = torch.outer(torch.arange(sequence, dtype=torch.float32, device=device), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def places_in_documents(segments_bs: Tensor) -> Tensor:
    """For each token how many of its document come before it in the row. The tokens of a document stand side by side."""
    place_s = torch.arange(segments_bs.shape[1], device=segments_bs.device)
    begins_bs = torch.ones_like(segments_bs, dtype=torch.bool)
    begins_bs[:, 1:] = segments_bs[:, 1:] != segments_bs[:, :-1]
    places_bs: Tensor = place_s - torch.where(begins_bs, place_s, 0).cummax(dim=1).values
    return places_bs


def rotate(x_bhsk: Tensor, cos_sk: Tensor, sin_sk: Tensor) -> Tensor:
    """Turns each pair (i, i + k/2) of a head; in float32, given back in x's dtype. The tables may also be (b, 1, s, k)."""
    wide = x_bhsk.float()
    low, high = wide.chunk(2, dim=-1)
    return (wide * cos_sk + torch.cat((-high, low), dim=-1) * sin_sk).to(x_bhsk.dtype)


@torch.no_grad()
def initialise(module: nn.Module, prefix: str, seed: int, std: float) -> None:
    """Fills this module's parameters: norms with 1, biases with 0, the rest from a normal of `std`.

    Each tensor draws from its own generator, seeded by (seed, name): neither sharding nor the order of layers changes it, nor how
    many are drawn at a time.
    """
    matrices = []
    for name, parameter in module.named_parameters(prefix=prefix):
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith(".bias") else 1.0)
        else:
            matrices.append((name, parameter))
    with ThreadPoolExecutor(min(DRAWN_AT_ONCE, max(1, len(matrices)))) as threads:
        drawn = threads.map(lambda one: _normal(f"{seed} {one[0]}", one[1].shape, std), matrices)
        for (_, parameter), values in zip(matrices, drawn, strict=True):
            parameter.copy_(values)


def _normal(key: str, shape: torch.Size, std: float) -> Tensor:
    return torch.empty(shape).normal_(0.0, std, generator=drawn_alone(key))


def drawn_alone(key: str) -> torch.Generator:
    """A generator for one tensor, the same for the same key."""
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
