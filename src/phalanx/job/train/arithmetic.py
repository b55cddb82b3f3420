"""The process's switches of arithmetic, by the recipe: whether the same bits come each time, and whose attention computes."""

from typing import Final

import torch
from torch.nn.attention import SDPBackend

_ATTENTION_ORDER: Final = (
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
)  # fmt: skip
"""The fastest first, as measured on H200: 58,500 tokens/s with cuDNN's where flash gives 51,300 (1.1B, sequences of 8,192). torch
itself passes over cuDNN's where bits have to be the same, and over any that cannot do what is asked."""


def settle_arithmetic(deterministic: bool, device: torch.device) -> None:
    """Until it is called again. On a CPU bits are the same each time, whatever is asked."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(deterministic)
    prefer_attention()


def prefer_attention() -> None:
    """What `sdpa_kernel(set_priority=True)` sets for its block, for the process: a checkpointed block computes attention again in
    its backward pass, which is outside of any such block, and has to get the same bits."""
    order = [int(one) for one in _ATTENTION_ORDER]  # type: ignore[call-overload]  # an enum of C++
    others = [int(one) for one in torch._C._get_sdp_priority_order()]
    torch._C._set_sdp_priority_order([*order, *(one for one in others if one not in order)])
