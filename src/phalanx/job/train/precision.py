"""The arithmetic of the forward pass. Chosen once for a job: a resume uses what the checkpoint says, whatever a probe would say."""

from collections.abc import Callable
from typing import Final, Literal

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from phalanx.job.train.device import synchronise

Dtype = Literal["fp32", "bf16", "fp8", "fp8_rowwise"]
_PROBE_SIZE: Final = 512
_PROBE_TIMES: Final = 9
_CLEARLY_FASTER: Final = 1.5
"""Two probes of one machine differ by some tenths; with less than this between them, two runs of one job could part ways."""


def choose_dtype(asked: Literal["auto"] | Dtype, device: torch.device, clock_s: Callable[[], float]) -> Dtype:
    """`auto` is bf16 on CUDA; elsewhere only where a matrix product is clearly faster in it (on some CPUs 50-110 times slower)."""
    if asked != "auto":
        return asked
    if device.type == "cuda":
        return "bf16"
    times = {dtype: _product_s(dtype, device, clock_s) for dtype in (torch.float32, torch.bfloat16)}
    return "bf16" if times[torch.bfloat16] * _CLEARLY_FASTER < times[torch.float32] else "fp32"


def _product_s(dtype: torch.dtype, device: torch.device, clock_s: Callable[[], float]) -> float:
    """The best of a few products; the first of all warms up and does not count."""
    square = torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype, device=device)
    times = []
    for _ in range(_PROBE_TIMES + 1):
        started = clock_s()
        square @ square
        synchronise(device)
        times.append(clock_s() - started)
    return min(times[1:])


def policy(dtype: Dtype, reduce_dtype: Literal["fp32", "bf16"] = "fp32") -> MixedPrecisionPolicy:
    """Weights stay float32; bf16, and 8-bit products too, computes in bf16 and sums gradients over ranks in `reduce_dtype`: bf16
    halves what is sent, at an error of some 0.4 % in each gradient.

    Inputs are not cast: token ids are whole numbers, and the rotary tables stay float32.
    """
    if dtype == "fp32":
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    reduced = torch.float32 if reduce_dtype == "fp32" else torch.bfloat16
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced, cast_forward_inputs=False)
