"""Experts over ranks: each rank has some of every mixture, and tokens travel to theirs (GShard, arXiv:2006.16668).

The mesh has an axis `ep`, of ranks that share all experts, and the rest, along which each expert is cut as FSDP does. Everything
that is no expert is cut over both together, and every rank has tokens of its own.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from phalanx.core.errors import SpecError
from phalanx.job.models.moe.exchange import Exchange
from phalanx.job.models.moe.mixture import Experts, mixtures


def expert_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cuts the experts of every mixture in a model, or a part of one, over the `ep` axis, of which all ranks have the same weights.
    Before what FSDP does. Raises SpecError where they are not as many for each rank."""
    ep = mesh["ep"]
    for mixture in mixtures(model):
        experts, ranks = mixture.shape.experts, ep.size()
        if experts % ranks:
            fits = [size for size in range(1, experts + 1) if experts % size == 0]
            raise SpecError("ep", ranks, f"{experts} experts are not as many for each rank; write one of {fits}")
        for name, weight in list(mixture.experts.named_parameters(recurse=False)):
            cut = distribute_tensor(weight.detach(), ep, [Shard(0)], src_data_rank=None)
            mixture.experts.register_parameter(name, nn.Parameter(cut))
        mixture.experts.exchange = Exchange(ep.get_group())


def fully_shard_experts(model: nn.Module, rest: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    """FSDP of what `expert_parallel` has cut, over the rest of the mesh, be it one rank: gradients and arithmetic are FSDP's there
    too. Before FSDP of the blocks. Raises SpecError where a weight has no side that these ranks divide."""
    for mixture in mixtures(model):
        if mixture.experts.exchange is None:
            continue
        shards = rest.size(rest.ndim - 1)
        fully_shard(mixture.experts, mesh=rest, mp_policy=policy, shard_placement_fn=_along(mixture.experts, shards))
        _mean_over_all(mixture.experts, rest.size() * mixture.experts.exchange.group.size(), shards)


def is_expert_parallel(model: nn.Module) -> bool:
    return any(mixture.experts.exchange is not None for mixture in mixtures(model))


def _along(experts: Experts, ranks: int) -> Callable[[nn.Parameter], Shard]:
    """Not along the experts, which `ep` has cut: so a rank's piece is one box, and a checkpoint can cut it anew."""

    def side(weight: nn.Parameter) -> Shard:
        sides = [dim for dim in (1, 2) if weight.shape[dim] % ranks == 0]
        if not sides:
            fix = f"no side of an expert's weights {list(weight.shape[1:])} is a multiple of the {ranks} ranks it is cut over"
            raise SpecError("ep", ranks, f"{fix}; change dim or expert_ffn_dim, or take a larger ep")
        return Shard(sides[0])

    return side


def _mean_over_all(experts: nn.Module, ranks: int, shards: int) -> None:
    """An expert has gradients of the tokens of all `ep` ranks, whose losses are means over their own tokens: what FSDP makes the
    mean over the rest alone is `ep` times too large (T13)."""
    assert isinstance(experts, FSDPModule)
    experts.set_gradient_divide_factor(float(ranks))
    if shards > 1:  # gloo has no sum that divides by itself; of one rank torch would divide twice
        experts.set_force_sum_reduction_for_comms(True)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's piece, in place."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
