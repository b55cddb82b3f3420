"""Data parallelism: DDP, ZeRO-1, ZeRO-2, FSDP and HSDP, all by PyTorch's `fully_shard`, with its switches.

| zero | weights between steps | gathered | gradients of microbatches add up | reduced |
| --- | --- | --- | --- | --- |
| 0 | whole | once a step (a copy) | whole | once a step |
| 1 | shards | once a step | whole | once a step |
| 2 | shards | once a step | as shards | after each microbatch |
| 3 | shards | in each forward and backward | whole | once a step |

The optimiser updates what a rank has between steps, so from 1 on its state is shared out. Every parameter is a DTensor over the
same mesh whatever `zero` says: checkpoints, clipping and digests know one form, and any kind continues any other.
"""

from typing import Any, Final, cast

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from phalanx.core.recipe import AnyRecipe
from phalanx.core.spec import Zero
from phalanx.job.train.parallel.experts import lie_alone
from phalanx.job.train.parallel.mesh import data_mesh
from phalanx.job.train.precision import Dtype, policy

_ZERO: Final = "data_parallel_zero"
"""Attribute of a wrapped model."""


class DataParallel:
    """Wraps the parts of one model, and at last the model itself."""

    def __init__(self, mesh: DeviceMesh, dtype: Dtype, zero: Zero, recipe: AnyRecipe) -> None:
        self._zero = zero
        self._how: dict[str, Any] = {"mesh": data_mesh(mesh), "mp_policy": policy(dtype, recipe.reduce_dtype)}
        # Else backward finds the weights where forward left them.
        self._lets_go = zero == 3 and recipe.reshard_after_forward is not False

    @property
    def reshards(self) -> bool:
        """Whether weights are let go of between forward and backward."""
        return self._lets_go

    def part(self, module: nn.Module) -> None:
        """One that is gathered, and whose gradients are reduced, as one."""
        fully_shard(module, reshard_after_forward=self._lets_go, ignored_params=lie_alone(module), **self._how)

    def kept(self, modules: list[nn.Module]) -> None:
        """As one part, whose weights stay gathered from forward to backward."""
        fully_shard(modules, reshard_after_forward=False, **self._how)

    def whole(self, model: nn.Module) -> None:
        """After its parts."""
        reshards = None if self._zero == 3 else False
        fully_shard(model, reshard_after_forward=reshards, ignored_params=lie_alone(model), **self._how)
        setattr(model, _ZERO, self._zero)


def sync_gradients(model: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass is the last of its step, and so ends with gradients reduced over the mesh."""
    fsdp, zero = cast(FSDPModule, model), getattr(model, _ZERO, 3)
    if zero == 2:
        fsdp.set_requires_all_reduce(wanted)  # over replicas; between shards each microbatch is reduced
    else:
        fsdp.set_requires_gradient_sync(wanted)
    if zero < 3:
        fsdp.set_reshard_after_backward(wanted)  # the next microbatch needs the same weights


def let_go(model: nn.Module) -> None:
    """Of weights that are still gathered after a forward pass which no backward follows: what looks at them next finds shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
