"""The arithmetic of the forward pass. Chosen once for a job: a resume uses what the checkpoint says."""

from typing import Literal

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

Dtype = Literal["fp32", "bf16", "fp8", "fp8_rowwise"]


def choose_dtype(asked: Literal["auto"] | Dtype, device: torch.device) -> Dtype:
    """`auto` is bf16 on CUDA, and on a CPU with units for its matrix products, which are many times faster in it; fp32 on others,
    some of which are a hundred times slower in bf16. Never by a clock: two runs of one job on one machine would part ways."""
    if asked != "auto":
        return asked
    return "bf16" if device.type == "cuda" or has_matrix_units() else "fp32"


def has_matrix_units() -> bool:
    """Whether this CPU has AMX tiles."""
    return torch.cpu._is_amx_tile_supported()


def policy(dtype: Dtype, reduce_dtype: Literal["fp32", "bf16"] = "fp32") -> MixedPrecisionPolicy:
    """Weights stay float32; bf16, and 8-bit products too, computes in bf16 and sums gradients over ranks in `reduce_dtype`: bf16
    halves what is sent, at an error of some 0.4 % in each gradient.

    Inputs are not cast: token ids are whole numbers, and the rotary tables stay float32.
    """
    if dtype == "fp32":
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    reduced = torch.float32 if reduce_dtype == "fp32" else torch.bfloat16
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced, cast_forward_inputs=False)
