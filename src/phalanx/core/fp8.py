"""Widths of matrices whose products are of 8-bit floats: what they have to be multiples of, whole and over ranks. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

from phalanx.core.llama_shape import LlamaShape

Fp8 = Literal["fp8", "fp8_rowwise"]
FP8_MULTIPLE: Final = 16
"""Of both dimensions of such a matrix (cuBLAS's documentation, its table of FP8 kernels)."""
NEED: Final = f"8-bit products need multiples of {FP8_MULTIPLE}"


@dataclass(frozen=True, slots=True)
class Width:
    """field: of the shape, that it hangs on most. made_of: all of them. is_cut: whether tensor-parallel ranks share it."""

    name: str
    field: str
    made_of: str
    number: int
    is_cut: bool = True


def is_fp8(dtype: str) -> TypeGuard[Fp8]:
    return dtype in ("fp8", "fp8_rowwise")


def fits_fp8(width: int, parts: int = 1) -> bool:
    """parts: over which it is cut evenly."""
    return width % (parts * FP8_MULTIPLE) == 0


def fp8_widths(shape: LlamaShape) -> Iterator[Width]:
    """Of a model's blocks. Experts have no such products, but for the shared ones."""
    moe = shape.moe
    yield Width("residual stream", "dim", "dim", shape.dim, is_cut=False)
    yield Width("queries", "head_dim", "heads x head_dim", shape.q_dim)
    yield Width("queries, keys and values", "head_dim", "(heads + 2 x kv_heads) x head_dim", shape.q_dim + 2 * shape.kv_dim)
    if moe is None or moe.dense_layers:
        yield Width("feed-forward", "ffn_dim", "ffn_dim", shape.ffn_dim)
    if moe is not None and moe.shared:
        yield Width("shared experts", "shared_experts", "shared_experts x expert_ffn_dim", moe.shared * moe.ffn_dim)


def fp8_problems(shape: LlamaShape, dtype: str, is_given: bool) -> Iterator[tuple[str, object, str]]:
    """(field, value, what to change) for each width that no rank could compute. is_given: the shape is that of a model that is
    there, so that the arithmetic alone can change."""
    for width in fp8_widths(shape) if is_fp8(dtype) else ():
        if fits_fp8(width.number):
            continue
        what = f"the width of the {width.name} ({width.made_of}) is {width.number}, and {NEED}"
        if is_given:
            yield "dtype", dtype, f"write bf16: {what}"
        else:
            yield width.field, getattr(shape, width.field), f"{what}; change that, or write dtype: bf16"
