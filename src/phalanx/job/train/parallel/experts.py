"""Expert parallelism: each rank has some experts of every mixture, and tokens travel to theirs (GShard, arXiv:2006.16668).

Neighbours among the ranks that share the state share the experts, `ep` of them all of a layer; along the rest each expert is cut
as FSDP does; with no rest it lies whole on one rank. Everything that is no expert is cut over all of them, and every rank has
tokens of its own: of another sample, of another part of a row (context parallel), or of another part of the sequence between
matrices (tensor parallel). So the ranks that share a row or the matrices are among those that share the experts, the nearest first,
and no expert's matrix is cut by `tp`.
"""

from collections.abc import Callable
from typing import Final

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.fabric.layouts import side_to_cut
from phalanx.job.models.moe.exchange import Exchange
from phalanx.job.models.moe.mixture import mixtures
from phalanx.job.train.parallel.mesh import REPLICATE, SHARD, TENSORS, data_mesh
from phalanx.job.train.precision import Dtype, policy

AXIS: Final = "ep"
REST: Final = "dp_rest"
_STATE: Final = "dp_state"


class ExpertParallel:
    """Cuts the experts of one model's blocks, before tensor and data parallelism lay out the rest of them; nothing where each rank
    has all experts, and no tensor-parallel ones beside it."""

    def __init__(self, mesh: DeviceMesh, ep: int, dtype: Dtype, recipe: LlamaRecipe) -> None:
        """A collective of all ranks. Raises SpecError where `ep` does not divide the ranks that share the state."""
        has_own = ep > 1 or (recipe.experts > 0 and TENSORS in (mesh.mesh_dim_names or ()))
        self._mesh = expert_mesh(mesh, ep) if has_own else None
        self._means = data_mesh(mesh).size()
        self._policy = policy(dtype, recipe.reduce_dtype)

    def block(self, block: nn.Module, reshards: bool) -> None:
        """One that has its weights, the same on every rank. reshards: whether FSDP lets go of gathered weights after a forward
        pass. Raises SpecError where its experts are not as many for each rank, or cannot be cut further."""
        if self._mesh is None:
            return
        is_cut = self._mesh[AXIS].size() > 1
        if is_cut:
            cut_experts(block, self._mesh)
        names = tuple(name for name in (REPLICATE, REST) if name in (self._mesh.mesh_dim_names or ()))
        rest = self._mesh[names]
        for mixture in mixtures(block):
            if rest.size() == 1:
                mixture.experts.mean_over = self._means
                continue
            fully_shard(
                mixture.experts, mesh=rest, mp_policy=self._policy, reshard_after_forward=reshards,
                shard_placement_fn=_along(self._mesh[AXIS].size(), self._mesh[REST].size()) if is_cut else None,
            )  # fmt: skip
            _mean_over(mixture.experts, self._means, self._mesh[REST].size())


def expert_mesh(mesh: DeviceMesh, ep: int) -> DeviceMesh:
    """The same ranks, with those that share the state, tensor-parallel ones among them, as two axes. Raises SpecError where `ep`
    does not divide them."""
    names = mesh.mesh_dim_names or ()
    state = mesh[SHARD, TENSORS]._flatten(_STATE) if TENSORS in names else mesh[SHARD]
    if state.size() % ep:
        raise SpecError("layout.ep", ep, f"{state.size()} ranks share the state; write a number that divides them")
    found = state._unflatten(0, (state.size() // ep, ep), (REST, AXIS))
    return DeviceMesh._concatenate([mesh[REPLICATE], found]) if REPLICATE in names else found


def cut_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Over the `ep` axis. Raises SpecError where they are not as many for each rank."""
    ep = mesh[AXIS]
    for mixture in mixtures(model):
        experts, ranks = mixture.shape.experts, ep.size()
        if experts % ranks:
            fits = [size for size in range(1, experts + 1) if experts % size == 0]
            raise SpecError("layout.ep", ranks, f"{experts} experts are not as many for each rank; write one of {fits}")
        for name, weight in list(mixture.experts.named_parameters(recurse=False)):
            cut = distribute_tensor(weight.detach(), ep, [Shard(0)], src_data_rank=None)
            mixture.experts.register_parameter(name, nn.Parameter(cut))
        mixture.experts.exchange = Exchange(ep.get_group())


def lie_alone(module: nn.Module) -> set[nn.Parameter]:
    """Experts' weights of which no other rank has a part: data parallelism leaves them alone. To gather them from nobody, cast and
    reduce their gradients over nobody took FSDP 8 % of a step."""
    lone = (one.experts for one in mixtures(module) if one.experts.exchange is not None and not isinstance(one.experts, FSDPModule))
    return {weight for experts in lone for weight in experts.parameters(recurse=False)}


def is_expert_parallel(model: nn.Module) -> bool:
    return any(mixture.experts.exchange is not None for mixture in mixtures(model))


def _along(ep: int, ranks: int) -> Callable[[nn.Parameter], Shard]:
    """See `side_to_cut`; `problems` refuses what has none before ranks start."""

    def side(weight: nn.Parameter) -> Shard:
        found = side_to_cut(weight.shape[1:], ranks)
        if found is None:
            raise SpecError("layout.ep", ep, f"experts of {list(weight.shape[1:])} cannot be cut over {ranks} ranks; write more")
        return Shard(1 + found)

    return side


def _mean_over(experts: nn.Module, ranks: int, shards: int) -> None:
    """An expert has gradients of the tokens of all `ep` ranks, and ranks have losses of their own tokens: what FSDP makes the mean
    over the rest alone is `ep` times too large (T13). ranks: those with a loss of their own; tensor-parallel ones have one among
    them, of which each has a part of the gradients."""
    assert isinstance(experts, FSDPModule)
    experts.set_gradient_divide_factor(float(ranks))
    if shards > 1:  # gloo has no sum that divides by itself; of one rank torch would divide twice
        experts.set_force_sum_reduction_for_comms(True)
