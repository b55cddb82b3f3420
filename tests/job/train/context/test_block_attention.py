"""One block's attention by every kernel of this machine, against float64 by the definition; no gang."""

import math

import pytest
import torch
from torch import Tensor

from phalanx.job.train.context.kernels import CPU_FLASH, CUDA_FLASH, CUDNN, PLAIN, Kernel, kernel_for

KERNELS = [PLAIN, CPU_FLASH]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def drawn(heads: int, tokens: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(2, heads, tokens, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_definition(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """out and lse, float64."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("bhsk,bhtk->bhst", q.double(), k) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("heads", "keys", "causal"), [((4, 4), 6, True), ((4, 2), 6, True), ((4, 2), 9, False), ((4, 1), 3, False)]
)
def test_a_block_is_as_by_the_definition(
    kernel: Kernel, dtype: torch.dtype, heads: tuple[int, int], keys: int, causal: bool
) -> None:
    q, k, v = drawn(heads[0], 6, dtype, 0), drawn(heads[1], keys, dtype, 1), drawn(heads[1], keys, dtype, 2)
    grad = drawn(heads[0], 6, dtype, 3)
    exact_q, exact_k, exact_v = (x.double().requires_grad_() for x in (q, k, v))
    wanted, wanted_lse = by_definition(exact_q, exact_k, exact_v, causal)
    wanted_grads = torch.autograd.grad(wanted, (exact_q, exact_k, exact_v), grad.double())
    out, lse, kept = kernel.forward(q, k, v, causal)
    found = kernel.backward(grad, q, k, v, out, lse, causal, kept)
    assert [x.dtype for x in (out, *found)] == [dtype] * 4
    for ours, theirs in zip((out, lse, *found), (wanted, wanted_lse, *wanted_grads), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("dtype", "width", "deterministic", "capability", "chosen"),
    [
        (torch.bfloat16, 64, False, (9, 0), CUDNN),
        (torch.bfloat16, 64, True, (9, 0), CUDA_FLASH),
        (torch.bfloat16, 192, False, (9, 0), CUDA_FLASH),
        (torch.float16, 64, False, (8, 0), CUDA_FLASH),
        (torch.bfloat16, 20, False, (9, 0), PLAIN),
        (torch.float32, 64, False, (9, 0), PLAIN),
    ],
)
def test_a_kernel_is_chosen_by_what_the_tensors_are(
    dtype: torch.dtype,
    width: int,
    deterministic: bool,
    capability: tuple[int, int],
    chosen: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a card, which this machine may not have: a tensor of its kind without memory."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 4, width, dtype=dtype, device="cuda")
    assert kernel_for(q) is chosen


def test_a_cpu_has_one_kernel() -> None:
    assert kernel_for(torch.empty(1, 2, 4, 5)) is CPU_FLASH
