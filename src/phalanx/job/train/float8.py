"""Matrix products of 8-bit floats in the blocks, by torchao: scales are taken from the tensors at hand, one each or one a row.

Weights, gradients, optimiser and checkpoints are those of bf16, and so are attention, norms, embedding and output: a run may be
evaluated and served without any of this.
"""

from typing import Any, Final

import torch
from torch import nn

from phalanx.core.errors import SetupError
from phalanx.core.fp8 import NEED, Fp8, fits_fp8

_SCALED: Final = {"fp8": "tensorwise", "fp8_rowwise": "rowwise"}
_CAPABILITY_MIN: Final = (8, 9)
"""Of the first cards that have such products."""


def to_float8(block: nn.Module, kind: Fp8, device: torch.device) -> None:
    """In place, names of parameters kept. On a CPU the same numbers are computed by way of float32, which is for tests.

    Raises SetupError where torchao is not installed, or the card or a layer has no such products."""
    _check_card(kind, device)
    for name, part in block.named_modules():
        _check_layer(kind, name, part)
    torchao = _torchao(kind)
    config = torchao.Float8LinearConfig.from_recipe_name(_SCALED[kind])
    if device.type == "cpu":
        object.__setattr__(config, "emulate", True)
    if kind == "fp8_rowwise":
        torch._inductor.config.emulate_precision_casts = True  # pytorch#150859: compiled, scales of rows would be of other numbers
    torchao.convert_to_float8_training(block, config=config)


def has_8_bit_products(layer: nn.Module) -> bool:
    """Whether it was made by `to_float8`; asked without torchao."""
    return isinstance(layer, nn.Linear) and type(layer).__module__.startswith("torchao.float8.")


def _check_layer(kind: Fp8, name: str, part: nn.Module) -> None:
    """A layer of a kind of its own would be replaced by one that has its weight alone, and lose what it does beside."""
    if isinstance(part, nn.Linear) and type(part) is not nn.Linear:
        raise SetupError("dtype", kind, f"{name} is a layer that has no 8-bit products ({type(part).__name__}); write bf16")
    if isinstance(part, nn.Linear) and not (fits_fp8(part.in_features) and fits_fp8(part.out_features)):
        sides = f"{name} is {part.in_features} x {part.out_features}"
        raise SetupError("dtype", kind, f"{sides}, and {NEED}; write bf16")


def _torchao(kind: Fp8) -> Any:
    try:
        import torchao.float8
    except ImportError as error:
        raise SetupError("dtype", kind, "torchao is not installed: install phalanx[fp8], or write bf16") from error
    return torchao.float8


def _check_card(kind: Fp8, device: torch.device) -> None:
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < _CAPABILITY_MIN:
        need = ".".join(map(str, _CAPABILITY_MIN))
        raise SetupError("dtype", kind, f"this card has compute capability {found[0]}.{found[1]}, and 8-bit products need {need}")
