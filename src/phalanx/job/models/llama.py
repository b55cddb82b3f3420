"""A Llama-style decoder (arXiv:2302.13971): RMSNorm before each part, rotary positions, SwiGLU, no biases, untied output.

Shapes end names: b batch, s sequence, d width, h heads, k head width, v vocabulary.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from phalanx.job.models.context import WHOLE, Context

ROPE_BASE: Final = 10_000.0
"""Of RoFormer (arXiv:2104.09864), section 3.2.2."""
NORM_EPSILON: Final = 1e-5
DRAWN_AT_ONCE: Final = 8
"""Tensors whose initial values are drawn at a time, each by one thread: one core draws some 150 million a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """What fixes the weights' shapes; stored with a saved model."""

    vocab: int
    dim: int
    layers: int
    heads: int
    ffn_dim: int

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions. documents: as its `context` gives them."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.context: Context = WHOLE
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim, bias=False)
        self.out = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x_bsd: Tensor, cos_sk: Tensor, sin_sk: Tensor, documents: Any = None) -> Tensor:
        batch, sequence, _ = x_bsd.shape
        q_bhsk, k_bhsk, v_bhsk = self.qkv(x_bsd).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
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


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=NORM_EPSILON)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.dim, eps=NORM_EPSILON)
        self.feed = FeedForward(shape)

    def forward(self, x_bsd: Tensor, cos_sk: Tensor, sin_sk: Tensor, documents: Any = None) -> Tensor:
        x_bsd = x_bsd + self.attention(self.attention_norm(x_bsd), cos_sk, sin_sk, documents)
        fed: Tensor = x_bsd + self.feed(self.feed_norm(x_bsd))
        return fed


class Llama(nn.Module):
    """Token ids (b, s) to logits (b, s, v).

    segments_bs: for each token the number of its document in the row. A token then attends to its own document alone, in which
    positions begin at 0: its logits are those that it has when the document is alone. None makes one document of each row.

    Ranks that share rows each give whole ones, and get the logits of the tokens that their `context` cuts out of them.
    """

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.context: Context = WHOLE
        self.embedding = nn.Embedding(shape.vocab, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, eps=NORM_EPSILON)
        self.output = nn.Linear(shape.dim, shape.vocab, bias=False)

    def forward(self, ids_bs: Tensor, segments_bs: Tensor | None = None) -> Tensor:
        x_bsd = self.embedding(self.context.cut(ids_bs))
        cos, sin = rope_tables(ids_bs.shape[1], self.shape.head_dim, ids_bs.device)
        if segments_bs is None:
            cos, sin = self.context.cut(cos, dim=0), self.context.cut(sin, dim=0)
        else:
            places_bs = self.context.cut(places_in_documents(segments_bs))
            cos, sin = cos[places_bs].unsqueeze(1), sin[places_bs].unsqueeze(1)  # (b, 1, s, k)
        documents = self.context.documents(ids_bs.shape[1], segments_bs)
        for block in self.blocks:
            x_bsd = block(x_bsd, cos, sin, documents)
        logits_bsv: Tensor = self.output(self.norm(x_bsd))
        return logits_bsv


def rope_tables(sequence: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each (s, k) float32, of the angle that dimension i and i + k/2 of a head turn by at each position."""
    frequency = ROPE_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
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
    """Fills this module's parameters: norms with 1, the rest from a normal of `std`.

    Each tensor draws from its own generator, seeded by (seed, name): neither sharding nor the order of layers changes it, nor how
    many are drawn at a time.
    """
    matrices = []
    for name, parameter in module.named_parameters(prefix=prefix):
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            matrices.append((name, parameter))
    with ThreadPoolExecutor(min(DRAWN_AT_ONCE, max(1, len(matrices)))) as threads:
        drawn = threads.map(lambda one: _normal(f"{seed} {one[0]}", one[1].shape, std), matrices)
        for (_, parameter), values in zip(matrices, drawn, strict=True):
            parameter.copy_(values)


def _normal(key: str, shape: torch.Size, std: float) -> Tensor:
    digest = hashlib.sha256(key.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.empty(shape).normal_(0.0, std, generator=generator)
