"""What fixes the shapes of a Llama-like dense decoder, and what follows from it alone: counts of parameters and operations. Pure.

One shape for Llama (arXiv:2302.13971), Mistral, Qwen2 (arXiv:2407.10671) and Qwen3 (arXiv:2505.09388): grouped-query attention
(arXiv:2305.13245), rotary positions of any base, biases on q, k and v, norms on q and k, an output tied to the embedding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

ROPE_BASE: Final = 10_000.0
"""Of RoFormer (arXiv:2104.09864), section 3.2.2."""
NORM_EPSILON: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions. base: of the frequencies. factor: how many times longer the context became than it was `trained` for, as
    Llama 3.1 stretches it (arXiv:2407.21783); 1 for no stretching. Frequencies that turn fewer than `low` times in the context
    that was trained are divided by `factor`, those that turn more than `high` times stay, and those between lie between.
    """

    base: float = ROPE_BASE
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    trained: int = 8192


PLAIN_ROPE: Final = Rope()


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """What fixes the weights' shapes, and how positions and norms are computed; stored with a saved model.

    kv_heads: heads of keys and values; 0 becomes `heads`. head_dim: width of a head; 0 becomes dim / heads. rope_*: see `Rope`.
    qkv_bias: q, k and v have biases. qk_norm: each head's q and k are normed before they are turned. tied: the output layer is the
    embedding.
    """

    vocab: int
    dim: int
    layers: int
    heads: int
    ffn_dim: int
    kv_heads: int = 0
    head_dim: int = 0
    rope_base: float = ROPE_BASE
    rope_factor: float = 1.0
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_trained: int = 8192
    norm_epsilon: float = NORM_EPSILON
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.dim // max(1, self.heads))

    @property
    def q_dim(self) -> int:
        """Of all heads' queries together."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Of all heads' keys together, and of their values."""
        return self.kv_heads * self.head_dim

    @property
    def rope(self) -> Rope:
        return Rope(base=self.rope_base, factor=self.rope_factor, low=self.rope_low, high=self.rope_high, trained=self.rope_trained)

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """(field, value, what to change) for each value that no model can have. Sizes are above 0 already."""
        if self.heads % self.kv_heads:
            fits = ", ".join(str(count) for count in range(1, self.heads + 1) if self.heads % count == 0)
            yield "kv_heads", self.kv_heads, f"each serves as many of the {self.heads} heads; write one of {fits}"
        if self.head_dim % 2:
            yield "head_dim", self.head_dim, "write an even number: dimensions are turned in pairs"
        for name in ("rope_base", "norm_epsilon", "rope_low"):
            if not getattr(self, name) > 0:
                yield name, getattr(self, name), "write a number above 0"
        if not self.rope_factor >= 1:
            yield "rope_factor", self.rope_factor, "write 1 for no stretching, or a number above 1"
        if not self.rope_high > self.rope_low:
            yield "rope_high", self.rope_high, f"write a number above rope_low ({self.rope_low:g})"
        if self.rope_trained < 1:
            yield "rope_trained", self.rope_trained, "write a whole number above 0"
        if self.qk_norm and self.qkv_bias:
            yield "qk_norm", True, "no architecture that others read has it beside qkv_bias; set one of them to false"


def num_parameters(shape: LlamaShape) -> int:
    """All weights, embeddings included; tied ones once."""
    attention = shape.dim * (2 * shape.q_dim + 2 * shape.kv_dim)
    attention += (shape.q_dim + 2 * shape.kv_dim) * shape.qkv_bias + 2 * shape.head_dim * shape.qk_norm
    block = attention + 3 * shape.dim * shape.ffn_dim + 2 * shape.dim
    return (1 if shape.tied else 2) * shape.vocab * shape.dim + shape.layers * block + shape.dim


def flops_per_token(shape: LlamaShape, sequence: int, frozen: bool = False) -> int:
    """Of a training step: 6 x (parameters - embedding) + 12 x layers x (width of all heads) x sequence.

    As PaLM's appendix B (arXiv:2204.02311) and torchtitan count: attention in full although it is causal; recomputation not. A tied
    embedding multiplies as the output layer, so it counts. frozen: no gradient of a weight is computed, which leaves 4 of the 6;
    those of adapters are next to nothing.
    """
    looked_up = 0 if shape.tied else shape.vocab * shape.dim
    return (4 if frozen else 6) * (num_parameters(shape) - looked_up) + 12 * shape.layers * shape.q_dim * sequence
