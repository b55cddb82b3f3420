"""Activation checkpointing: what a block computes again in its backward pass, instead of keeping it from its forward pass.

Whole blocks, or all but some of a block's products: those that take the most arithmetic for each byte that they fill. Nothing of it
is random, and what is computed again gets the same bits, so losses do not depend on it.
"""

from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.models.llama import LlamaShape

Run = Callable[..., Tensor]
"""A block's forward pass, as a function of the block and what it is given."""
Sides = tuple[int, int]
"""Of the matrix in a product: (in, out)."""
_PRODUCTS: Final = {torch.ops.aten.mm.default: 1, torch.ops.aten._scaled_mm.default: 1, torch.ops.aten.addmm.default: 2}
"""Each with which of its arguments is the matrix."""
_ATTENTION: Final = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}").default
    for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
}


def plain(block: nn.Module, *given: Any) -> Tensor:
    """A block's forward pass that keeps all that its backward pass needs."""
    x_bsd: Tensor = type(block).forward(block, *given)
    return x_bsd


def whole(block: nn.Module, *given: Any) -> Tensor:
    """One that keeps what the block was given, alone."""
    return _checkpointed(block, given)


@cache
def all_but(attention: bool, products: frozenset[Sides]) -> Run:
    """One that also keeps what attention gives, or not, and the products by matrices of such sides. The same function each time,
    since what was compiled is found again by it."""
    contexts = partial(create_selective_checkpoint_contexts, partial(_policy, attention, products))

    def run(block: nn.Module, *given: Any) -> Tensor:
        return _checkpointed(block, given, context_fn=contexts)

    return run


def runs(shape: LlamaShape, recipe: LlamaRecipe) -> list[Run]:
    """For each block, by the recipe."""
    match recipe.activation_checkpointing:
        case "none":
            again = plain
        case "full":
            again = whole
        case "selective":
            again = all_but(*kept(shape, recipe.sequence, recipe.activation_budget))
    return [plain if index % recipe.activation_blocks else again for index in range(shape.layers)]


def kept(shape: LlamaShape, sequence: int, budget: float) -> tuple[bool, frozenset[Sides]]:
    """Whether attention's outputs are kept, and the sides of the matrices whose products are: the dearest for each byte, which
    together take at most `budget` of the bytes of all.

    A token's product by a matrix costs 2 x in x out FLOPs and fills out elements; attention costs 2 x sequence x out where a
    token sees half of the others. The feed-forward's last product is no part of it: nothing backward needs it.
    """
    costs = _costs(shape, sequence)
    left = budget * sum(filled for filled, _ in costs.values())
    chosen = set()
    for name, (filled, _) in sorted(costs.items(), key=lambda one: -one[1][1] / one[1][0]):  # stable among equals
        if filled <= left:
            left -= filled
            chosen.add(name)
    sides = _sides(shape)
    of_sides = {side: {name for name, other in sides.items() if other == side} for side in sides.values()}
    return "attention" in chosen, frozenset(side for side, names in of_sides.items() if names <= chosen)


def _costs(shape: LlamaShape, sequence: int) -> dict[str, tuple[int, int]]:
    """Name -> (elements, FLOPs) of a token."""
    costs = {"attention": (shape.q_dim, 2 * sequence * shape.q_dim)}
    for name, (inner, outer) in _sides(shape).items():
        number = 2 if name == "gate and up" else 1
        costs[name] = number * outer, number * 2 * inner * outer
    return costs


def _sides(shape: LlamaShape) -> dict[str, Sides]:
    return {
        "out": (shape.q_dim, shape.dim),
        "qkv": (shape.dim, shape.q_dim + 2 * shape.kv_dim),
        "gate and up": (shape.dim, shape.ffn_dim),
    }


def _policy(attention: bool, products: Collection[Sides], _: Any, op: Any, *given: Any, **named: Any) -> CheckpointPolicy:
    keeps = (op in _PRODUCTS and tuple(given[_PRODUCTS[op]].shape) in products) or (attention and op in _ATTENTION)
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _checkpointed(block: nn.Module, given: tuple[Any, ...], **more: Any) -> Tensor:
    def inner(*again: Any) -> Tensor:
        return plain(block, *again)

    x_bsd: Tensor = checkpoint(inner, *given, use_reentrant=False, preserve_rng_state=False, **more)
    return x_bsd
