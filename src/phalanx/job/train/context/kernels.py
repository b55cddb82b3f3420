"""Attention of one block, with what merging and its gradient need: the logarithm of each query's sum of exponentials.

torch's fused operators, which are behind its own attention; it has no public function that takes the logarithm back for a
gradient. Shapes: b batch, h heads, g heads of keys and values (h is a multiple), s queries, t keys, k head width. Scores are
scaled by 1 / sqrt(k). causal: query i sees the keys up to the i-th; s and t are then the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

Kept = tuple[Any, ...]
"""What an operator wants back for its gradient, such as states of a generator that nothing was drawn from."""
Forward = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor, Kept]]
"""(q_bhsk, k_bgtk, v_bgtk, causal) -> (out_bhsk, lse_bhs, kept)"""
Gradients = tuple[Tensor, Tensor, Tensor]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, Kept], Gradients]
"""(grad_bhsk, q_bhsk, k_bgtk, v_bgtk, out_bhsk, lse_bhs, causal, kept) -> gradients of q, k, v. Given out and lse of all the
keys that a query sees, they are the block's part of the gradients."""
_aten: Final[Any] = torch.ops.aten
_FLASH_WIDTH_MAX: Final = 256
_CUDNN_WIDTH_MAX: Final = 128
_HOPPER: Final = (9, 0)
"""Where cuDNN's attention is the faster one."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One implementation."""

    name: str
    forward: Forward
    backward: Backward


def kernel_for(q_bhsk: Tensor) -> Kernel:
    """The fastest one for queries such as these. On CUDA float32, and odd head widths, are plain arithmetic."""
    width, half = q_bhsk.shape[-1], q_bhsk.dtype in (torch.bfloat16, torch.float16)
    if q_bhsk.device.type == "cpu":
        return CPU_FLASH
    if q_bhsk.device.type != "cuda" or not half or width % 8 or width > _FLASH_WIDTH_MAX:
        return PLAIN
    fits_cudnn = width <= _CUDNN_WIDTH_MAX and torch.cuda.get_device_capability(q_bhsk.device) >= _HOPPER
    wanted = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    if fits_cudnn and wanted and not torch.are_deterministic_algorithms_enabled():
        return CUDNN
    return CUDA_FLASH


def widened(dtype: torch.dtype) -> torch.dtype:
    """In which sums over blocks are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _plain_scores(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """(b, g, h / g, s, t)"""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _grouped(x_bhs: Tensor, num_groups: int) -> Tensor:
    batch, heads, *rest = x_bhs.shape
    return x_bhs.to(widened(x_bhs.dtype)).reshape(batch, num_groups, heads // num_groups, *rest)


def _plain_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor, Kept]:
    groups, wide = k.shape[1], widened(q.dtype)
    scores = _plain_scores(_grouped(q, groups), k.to(wide).unsqueeze(2), causal)
    lse = scores.logsumexp(dim=-1)
    out = (scores - lse.unsqueeze(-1)).exp() @ v.to(wide).unsqueeze(2)
    return out.flatten(1, 2).to(q.dtype), lse.flatten(1, 2), ()


def _plain_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, kept: Kept) -> Gradients:
    groups, wide = k.shape[1], widened(q.dtype)
    grad, grouped_q, out, lse = (_grouped(x, groups) for x in (grad, q, out, lse))
    wide_k, wide_v = k.to(wide).unsqueeze(2), v.to(wide).unsqueeze(2)
    weights = (_plain_scores(grouped_q, wide_k, causal) - lse.unsqueeze(-1)).exp()
    grad_scores = weights * (grad @ wide_v.transpose(-1, -2) - (grad * out).sum(dim=-1, keepdim=True)) / math.sqrt(q.shape[-1])
    grad_q = (grad_scores @ wide_k).flatten(1, 2)
    grad_k = (grad_scores.transpose(-1, -2) @ grouped_q).sum(dim=2)
    grad_v = (weights.transpose(-1, -2) @ grad).sum(dim=2)
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)


def _cpu_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor, Kept]:
    out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse, ()


def _cpu_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, kept: Kept) -> Gradients:
    found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, lse, 0.0, causal)
    return found[0], found[1], found[2]


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor, Kept]:
    out, lse, *kept, _ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
    return out, lse, tuple(kept[-2:])


def _flash_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, kept: Kept) -> Gradients:
    sizes = (None, None, q.shape[2], k.shape[2])
    found = _aten._scaled_dot_product_flash_attention_backward(grad, q, k, v, out, lse, *sizes, 0.0, causal, *kept)
    return found[0], found[1], found[2]


def _cudnn_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor, Kept]:
    out, lse, *kept, _ = _aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
    return out, lse.squeeze(-1), tuple(kept[-2:])


def _cudnn_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, kept: Kept) -> Gradients:
    sizes = (None, None, None, q.shape[2], k.shape[2])
    operator = _aten._scaled_dot_product_cudnn_attention_backward
    found = operator(grad, q, k, v, out, lse.unsqueeze(-1), *kept, *sizes, 0.0, causal)
    return found[0], found[1], found[2]


PLAIN: Final = Kernel("plain", _plain_forward, _plain_backward)
CPU_FLASH: Final = Kernel("cpu flash", _cpu_forward, _cpu_backward)
CUDA_FLASH: Final = Kernel("cuda flash", _flash_forward, _flash_backward)
CUDNN: Final = Kernel("cudnn", _cudnn_forward, _cudnn_backward)
