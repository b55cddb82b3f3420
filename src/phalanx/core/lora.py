"""Low-rank adapters (LoRA, arXiv:2106.09685): what is asked for, and what it weighs. Pure.

Layers have the names that Hugging Face's PEFT knows them by.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from phalanx.core.llama_shape import LlamaShape

TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALL: Final = "all-linear"
"""All of them, as PEFT calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """rank: inner width of each adapter. alpha: what it adds is multiplied by alpha / rank. targets: layers of each block, in the
    order of TARGETS."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def targets_of(text: str) -> tuple[str, ...]:
    """Of names between commas, or `all-linear`. Raises ValueError that says what to write."""
    if text.strip() == ALL:
        return TARGETS
    named = [word.strip() for word in text.split(",")]
    if not set(named) <= set(TARGETS):
        raise ValueError(f"write some of {', '.join(TARGETS)} between commas, or {ALL}")
    return tuple(one for one in TARGETS if one in named)


def widths(shape: LlamaShape) -> Mapping[str, tuple[int, int]]:
    """(in, out) of each target."""
    return {
        "q_proj": (shape.dim, shape.q_dim), "k_proj": (shape.dim, shape.kv_dim), "v_proj": (shape.dim, shape.kv_dim),
        "o_proj": (shape.q_dim, shape.dim), "gate_proj": (shape.dim, shape.ffn_dim), "up_proj": (shape.dim, shape.ffn_dim),
        "down_proj": (shape.ffn_dim, shape.dim),
    }  # fmt: skip


def num_lora_parameters(shape: LlamaShape, lora: Lora) -> int:
    """Of all adapters: those that are trained and saved."""
    return shape.layers * lora.rank * sum(sum(widths(shape)[target]) for target in lora.targets)


def lora_problems(rank: int, alpha: float, targets: str, init: str) -> Iterator[tuple[str, object, str]]:
    """(field, value, what to change) of a recipe's fields that cannot work together. rank 0 asks for none."""
    if rank < 0:
        yield "lora_rank", rank, "write 0 for no adapters, or their inner width, such as 16"
    if not alpha >= 0:
        yield "lora_alpha", alpha, "write a number above 0, or 0 for 2 x lora_rank"
    try:
        targets_of(targets)
    except ValueError as error:
        yield "lora_targets", targets, str(error)
    if rank == 0 and alpha > 0:
        yield "lora_alpha", alpha, "write lora_rank too, or leave it out: without one there are no adapters"
    if rank == 0 and targets != ALL:
        yield "lora_targets", targets, "write lora_rank too, or leave it out: without one there are no adapters"
    if rank > 0 and not init:
        yield "lora_rank", rank, "adapters are trained on given weights: name their folder as init"
