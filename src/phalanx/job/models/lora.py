"""Low-rank adapters on the layers of a `Llama`: the given weights stay, and beside them two narrow matrices are trained.

A layer keeps the names of its weights, so that given weights are read as ever; an adapter's are `LAYER.adapters.TARGET.down` and
`.up`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from phalanx.core.errors import SpecError
from phalanx.core.llama_shape import LlamaShape
from phalanx.core.lora import TARGETS, Lora, widths
from phalanx.job.models.llama import Llama, drawn_alone
from phalanx.job.models.parts import part_of

_LAYERS: Final[Mapping[str, tuple[str, ...]]] = {
    "attention.qkv": ("q_proj", "k_proj", "v_proj"),
    "attention.out": ("o_proj",),
    "feed.gate": ("gate_proj",),
    "feed.up": ("up_proj",),
    "feed.down": ("down_proj",),
}
"""Layer of a block to the targets whose rows make up its own, in this order."""
_OF_PEFT: Final = {target: f"{'self_attn' if target[0] in 'qkvo' else 'mlp'}.{target}" for target in TARGETS}
_ADAPTERS: Final = ".adapters."


class Adapter(nn.Module):
    """What one target adds: up(down(x)) * alpha / rank."""

    def __init__(self, into: int, out: int, lora: Lora) -> None:
        super().__init__()
        self.down = nn.Linear(into, lora.rank, bias=False)
        self.up = nn.Linear(lora.rank, out, bias=False)
        self.scale = lora.scale

    def forward(self, x: Tensor) -> Tensor:
        inner = F.linear(x, part_of(self.down.weight))
        return F.linear(inner, part_of(self.up.weight)) * self.scale


class AdaptedLinear(nn.Linear):
    """A layer with adapters on some of the targets whose rows it holds. `rows`: how many each of them has here, in order."""

    def __init__(self, layer: nn.Linear, targets: tuple[str, ...], rows: tuple[int, ...], lora: Lora) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        self.targets, self.rows = targets, rows
        self.adapters = nn.ModuleDict(
            {
                target: Adapter(layer.in_features, width, lora)
                for target, width in zip(targets, rows, strict=True)
                if target in lora.targets
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        bias = self._parameters["bias"]
        whole = F.linear(x, part_of(self.weight), None if bias is None else part_of(bias))
        parts = torch.split(whole, list(self.rows), dim=-1)
        added = [
            part + self.adapters[target](x) if target in self.adapters else part
            for target, part in zip(self.targets, parts, strict=True)
        ]
        return added[0] if len(added) == 1 else torch.cat(added, dim=-1)


def adapt(model: Llama, lora: Lora) -> None:
    """Puts adapters on the targets of every block and freezes all else, which its checkpoints leave out. Of a model without memory
    (`meta`), whose weights are filled afterwards. Raises SpecError for a model with experts."""
    if model.shape.experts:
        raise SpecError("hyperparameters.lora_rank", lora.rank, "write 0: experts have no adapters yet")
    model.requires_grad_(False)
    model.frozen_stay_out = True
    for block in model.blocks:
        for name, targets in _LAYERS.items():
            if set(targets) & set(lora.targets):
                layer = _linear(block, name)
                rows = tuple(widths(model.shape)[target][1] for target in targets)
                adapted = AdaptedLinear(layer, targets, rows, lora)
                adapted.requires_grad_(False)
                adapted.adapters.requires_grad_(True)
                block.set_submodule(name, adapted)


def _linear(block: nn.Module, name: str) -> nn.Linear:
    """Raises SpecError where the block has something else there, as a mixture of experts has."""
    found = dict(block.named_modules()).get(name)
    if not isinstance(found, nn.Linear):
        fix = f"blocks of this model have no plain {name}; write those of {', '.join(TARGETS)} that they have"
        raise SpecError("hyperparameters.lora_targets", ", ".join(_LAYERS[name]), fix)
    return found


def is_of_adapter(name: str) -> bool:
    """Whether a parameter is an adapter's, by its name in the model."""
    return _ADAPTERS in name


@torch.no_grad()
def initialise_adapters(part: nn.Module, prefix: str, seed: int) -> None:
    """`down` uniform within 1 / sqrt(its inputs), as PEFT's, each drawn by (seed, name); `up` zero: at first nothing is added."""
    for name, parameter in part.named_parameters(prefix=prefix):
        if name.endswith(".up.weight") and is_of_adapter(name):
            parameter.zero_()
        elif is_of_adapter(name):
            bound = 1 / math.sqrt(parameter.shape[1])
            parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=drawn_alone(f"{seed} {name}")))


@torch.no_grad()
def merge(model: Llama, adapters: Mapping[str, Tensor], lora: Lora) -> None:
    """Adds to the weights of a model without adapters what these would add to its layers' outputs."""
    for layer, targets in _LAYERS.items():
        for number, block in enumerate(model.blocks):
            weight, at = block.get_parameter(f"{layer}.weight"), 0
            for target in targets:
                rows = widths(model.shape)[target][1]
                if target in lora.targets:
                    down, up = (adapters[f"blocks.{number}.{layer}{_ADAPTERS}{target}.{one}.weight"] for one in ("down", "up"))
                    weight[at : at + rows] += (up.float() @ down.float()) * lora.scale
                at += rows


def adapter_shapes(shape: LlamaShape, lora: Lora) -> Mapping[str, tuple[int, ...]]:
    """Every adapter's parameters by name."""
    return {name: size for name, size, _ in _parameters(shape, lora)}


def peft_names(shape: LlamaShape, lora: Lora) -> Mapping[str, str]:
    """Our name of each parameter to PEFT's."""
    return {name: theirs for name, _, theirs in _parameters(shape, lora)}


def _parameters(shape: LlamaShape, lora: Lora) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for number in range(shape.layers):
        for layer, targets in _LAYERS.items():
            for target in (one for one in targets if one in lora.targets):
                into, out = widths(shape)[target]
                ours = f"blocks.{number}.{layer}{_ADAPTERS}{target}"
                theirs = f"base_model.model.model.layers.{number}.{_OF_PEFT[target]}"
                yield f"{ours}.down.weight", (lora.rank, into), f"{theirs}.lora_A.weight"
                yield f"{ours}.up.weight", (out, lora.rank), f"{theirs}.lora_B.weight"
