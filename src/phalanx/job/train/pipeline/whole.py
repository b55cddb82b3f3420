"""What a checkpoint of a pipeline holds: every tensor of the model, of which a rank has those of its stages."""

from collections.abc import Mapping

import torch
from torch import Tensor

from phalanx.job.checkpoint.owners import code_of
from phalanx.job.checkpoint.whole import TensorSpec
from phalanx.job.models.llama import Llama, LlamaShape

_MODEL, _MOMENTS = "model.", "optimizer.state."


def whole_tensors(shape: LlamaShape, own: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Type and shape of every tensor of the run's state, by this rank's own one (`state.training_state`): moments are of the same
    kinds for every parameter."""
    with torch.device("meta"):
        shapes = {name: tuple(one.shape) for name, one in Llama(shape).named_parameters()}
    mine = next(name for name in shapes if _MODEL + name in own)
    kinds = {key.removeprefix(f"{_MOMENTS}{mine}."): one for key, one in own.items() if key.startswith(f"{_MOMENTS}{mine}.")}
    code = code_of(mine, own[_MODEL + mine].dtype)
    found = {_MODEL + name: TensorSpec(dtype=code, shape=size) for name, size in shapes.items()}
    for kind, moment in kinds.items():
        found |= {
            f"{_MOMENTS}{name}.{kind}": TensorSpec(dtype=code_of(kind, moment.dtype), shape=size if moment.dim() else ())
            for name, size in shapes.items()
        }
    return found
