"""The whole model of a pipeline, of which a rank has what is its stages': what checkpoints hold, and all weights in one place."""

from collections.abc import Mapping
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from phalanx.core.lora import Lora
from phalanx.job.checkpoint.owners import code_of, specs_of
from phalanx.job.checkpoint.rows import Rows, as_saved, rows_of
from phalanx.job.checkpoint.state import training_state
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.checkpoint.whole import TensorSpec
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.models.lora import adapt
from phalanx.job.train.pipeline.stage import RankPart

_MODEL, _MOMENTS = "model.", "optimizer.state."


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer, lora: Lora | None) -> dict[str, TensorSpec] | None:
    """See `Identity.tensors`; None without a pipeline. lora: of `whole_tensors`."""
    if not isinstance(model, RankPart):
        return None
    return whole_tensors(model.shape, training_state(model, optimizer), lora)


def whole_tensors(shape: LlamaShape, own: Mapping[str, Tensor], lora: Lora | None = None) -> dict[str, TensorSpec]:
    """Type and shape of every tensor of the run's state, by this rank's own one (`state.training_state`): moments are of the same
    kinds for every parameter, and what is no parameter (of mixtures) has none. lora: the adapters that are trained, if these are
    all."""
    with torch.device("meta"):
        model = Llama(shape)
        if lora is not None:
            adapt(model, lora)
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(one.shape) for name, one in parameters.items() if one.requires_grad}
    found = specs_of({_MODEL + name: one for name, one in model.state_dict().items() if name not in parameters})
    mine = next(name for name in shapes if _MODEL + name in own)
    kinds = {key.removeprefix(f"{_MOMENTS}{mine}."): one for key, one in own.items() if key.startswith(f"{_MOMENTS}{mine}.")}
    code = code_of(mine, own[_MODEL + mine].dtype)
    found |= {_MODEL + name: TensorSpec(dtype=code, shape=size) for name, size in shapes.items()}
    for kind, moment in kinds.items():
        found |= {
            f"{_MOMENTS}{name}.{kind}": TensorSpec(dtype=code_of(kind, moment.dtype), shape=size if moment.dim() else ())
            for name, size in shapes.items()
        }
    return found


@torch.no_grad()
def gathered_weights(part: nn.Module) -> dict[str, Tensor]:
    """All weights of the model that are trained, and the buffers beside them, in the host memory of rank 0, as in checkpoints; none
    elsewhere. One after another, so that no device holds more than one of them whole, and to the host goes what the first rank that
    has it hands on. A collective of all ranks, each with its own part."""
    own = cast(dict[str, Tensor], get_model_state_dict(part, options=StateDictOptions(ignore_frozen_params=True)))
    rows, rank, found = rows_of(part), dist.get_rank(), {}
    told = told_by_all({name: (tuple(one.shape), one.dtype) for name, one in own.items()})
    for name in sorted({name for of_rank in told for name in of_rank}):
        holder = next(at for at, of_rank in enumerate(told) if name in of_rank)
        whole = _whole(own[name]) if name in own else None
        if whole is not None and rank == holder:
            found[name] = _on_host(whole, name, rows)
            if rank != 0:
                dist.send(found.pop(name), 0)
        elif rank == 0:
            shape, dtype = told[holder][name]
            found[name] = torch.empty(shape, dtype=dtype)
            dist.recv(found[name], holder)
    return found


def _whole(weight: Tensor) -> Tensor:
    """A collective of the ranks that have a part of it."""
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach()


def _on_host(whole: Tensor, name: str, rows: Mapping[str, Rows]) -> Tensor:
    whole = whole.cpu()
    return (as_saved(whole, rows[name]) if name in rows else whole).contiguous()
