"""The loss that never holds all logits, against float64 and against the loss of all logits."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.job.models.llama import Llama, LlamaShape, initialise
from phalanx.job.train.fused_loss import fused_loss, token_losses, tokens_at_once
from phalanx.job.train.loss import HeadPlan, sample_losses, token_loss

TOKENS, WIDTH, VOCAB = 37, 16, 29
AT_ONCE = 8  # does not divide them


def parts(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, WIDTH, generator=draw).to(dtype).requires_grad_() for rows in (TOKENS, VOCAB))
    share = torch.rand(TOKENS, generator=draw)
    share[3] = 0.0
    return hidden, weight, torch.randint(VOCAB, (TOKENS,), generator=draw), share


@pytest.mark.parametrize(("dtype", "loss_off", "grad_off"), [(torch.float32, 1e-6, 1e-6), (torch.bfloat16, 1e-3, 1e-2)])
def test_loss_and_gradients_are_those_of_float64(dtype: torch.dtype, loss_off: float, grad_off: float) -> None:
    """bf16 has 8 bits: logits are rounded to it, as they are where all of them are held."""
    hidden, weight, targets, share = parts(dtype)
    loss = fused_loss(hidden, weight, targets, share, AT_ONCE)
    (loss / 3).backward()  # type: ignore[no-untyped-call]
    exact = [one.detach().double().requires_grad_() for one in (hidden, weight)]
    expected = (F.cross_entropy(exact[0] @ exact[1].t(), targets, reduction="none") * share.double()).sum()
    (expected / 3).backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=loss_off)
    for ours, theirs in zip((hidden, weight), exact, strict=True):
        assert ours.grad is not None and theirs.grad is not None and ours.grad.dtype == dtype
        assert float((ours.grad - theirs.grad).abs().max() / theirs.grad.abs().max()) < grad_off
    assert hidden.grad is not None and not hidden.grad[3].any()


def test_a_loss_without_gradients_and_each_tokens_own_are_the_same() -> None:
    hidden, weight, targets, share = parts(torch.float32)
    with torch.no_grad():
        alone = fused_loss(hidden, weight, targets, share, AT_ONCE)
    torch.testing.assert_close(alone, fused_loss(hidden, weight, targets, share, AT_ONCE).detach(), rtol=1e-6, atol=0)
    each = F.cross_entropy(hidden @ weight.t(), targets, reduction="none")
    torch.testing.assert_close(token_losses(hidden, weight, targets, AT_ONCE), each.detach(), rtol=1e-6, atol=1e-6)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many numbers the largest tensor has that is made."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            self.found = max(self.found, one.numel() if isinstance(one, Tensor) else 0)
        return made


def test_no_more_logits_are_held_than_of_the_tokens_at_once() -> None:
    hidden, weight, targets, share = parts(torch.float32)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        fused_loss(hidden, weight, targets, share, AT_ONCE).backward()  # type: ignore[no-untyped-call]
    assert largest.found == max(VOCAB * WIDTH, TOKENS * WIDTH, AT_ONCE * VOCAB) < TOKENS * VOCAB


def test_tokens_at_once_are_a_power_of_two_that_fits() -> None:
    assert tokens_at_once(32_000) == 4096
    assert tokens_at_once(128_256) == 1024
    assert tokens_at_once(10**7) == 128, "few, but not so few that a product is slow"


# Of a model

SHAPE = LlamaShape(vocab=31, dim=16, layers=2, heads=2, ffn_dim=24)
PLAIN = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 1, 2, 3]])
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, -1], [0, 1, 2, 3, 4, -1]])  # the second row has no target at all


def model_of(plan: HeadPlan | None, tied: bool = False) -> Llama:
    made = Llama(LlamaShape(vocab=31, dim=16, layers=2, heads=2, ffn_dim=24, tied=tied))
    for name, part in made.named_children():
        initialise(part, name, 0, 0.3)
    made.head_plan = plan
    return made


def gradients(model: nn.Module, samples: Tensor) -> tuple[Tensor, list[Tensor]]:
    loss = token_loss(model, samples)
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("samples", [PLAIN, torch.stack((PLAIN, SEGMENTS), dim=1)], ids=["plain", "packed"])
def test_a_model_has_the_loss_and_gradients_of_all_its_logits(samples: Tensor, tied: bool) -> None:
    fused, whole = model_of(HeadPlan(fused=True), tied), model_of(None, tied)
    torch.testing.assert_close(gradients(fused, samples), gradients(whole, samples), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(token_loss(fused, samples), token_loss(whole, samples), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(sample_losses(fused, samples), sample_losses(whole, samples), rtol=1e-6, atol=1e-7)


def test_a_plan_is_what_decides_and_small_models_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.job.train.loss.fused_loss", lambda *_, **__: torch.tensor(-1.0))
    assert token_loss(model_of(HeadPlan(fused=True)), PLAIN).item() == -1.0
    for plan in (None, HeadPlan(), HeadPlan(fused="auto")):
        assert token_loss(model_of(plan), PLAIN).item() > 0, plan
    assert HeadPlan(fused="auto").fuses(8192, 32_000), "1 GiB of logits"
    assert not HeadPlan(fused="auto").fuses(64, 4096), "of the demo's"
