"""Gradients are scaled by the rule, to the bit, and left alone where it says 1."""

import math

import pytest
import torch
from torch import Tensor, nn

from phalanx.job.train.clip import EPSILON, clip


def model_with(*gradients: Tensor) -> nn.Module:
    model = nn.Module()
    for number, gradient in enumerate(gradients):
        weight = nn.Parameter(torch.zeros_like(gradient))
        weight.grad = gradient.clone()
        model.register_parameter(f"weight{number}", weight)
    model.register_parameter("frozen", nn.Parameter(torch.zeros(2), requires_grad=False))
    return model


@pytest.mark.parametrize("norm", [0.0, 0.3, 0.5 - 2e-6, 0.5 - 1e-6, 0.5 - 1e-7, 0.5, 0.5 + 1e-7, 0.7, 1e6, math.inf, math.nan])
def test_gradients_are_scaled_by_the_rule(norm: float) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, 5, generator=generator), torch.randn(7, generator=generator)]
    model, of_norm = model_with(*gradients), torch.tensor(norm, dtype=torch.float32)
    clip(model, float(of_norm), 0.5)
    scale = torch.clamp(0.5 / (of_norm + EPSILON), max=1.0)
    for parameter, before in zip(model.parameters(), gradients, strict=False):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, before * scale, rtol=0, atol=0, equal_nan=True)


def test_gradients_of_a_calm_step_are_not_written() -> None:
    """That would read and write all of them once more."""
    model = model_with(torch.ones(4))
    (weight, _) = model.parameters()
    assert weight.grad is not None
    before = weight.grad._version
    clip(model, 0.4, 0.5)
    assert weight.grad._version == before
    clip(model, 0.6, 0.5)
    assert weight.grad._version > before
