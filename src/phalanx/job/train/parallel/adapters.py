"""Layers with adapters, cut over tensor-parallel ranks along with their matrices, as ways to parallelise a module.

A column-wise layer's outputs are cut, so of each adapter `up` is, and every rank computes the narrow `down` whole. A row-wise one's
inputs are cut, so `down` is; what ranks then have of the narrow numbers are parts of sums, and stay so through `up`, until they are
added up together with those of the layer itself. Nothing is sent for adapters but gradients of halves that lie whole.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

from phalanx.job.models.lora import AdaptedLinear


class AdaptedColumns(ParallelStyle):
    """As `ColwiseParallel`. input_layouts: of an input that is no DTensor."""

    def __init__(self, input_layouts: Placement) -> None:
        super().__init__()
        self.input_layouts = input_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, AdaptedLinear)
        _lay(module, device_mesh, Shard(0), down=Replicate(), up=Shard(0))
        module.rows = tuple(rows // device_mesh.size() for rows in module.rows)

        def whole(_: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor]:
            (x,) = given
            laid = x if isinstance(x, DTensor) else DTensor.from_local(x, device_mesh, (self.input_layouts,), run_check=False)
            gathered = laid.redistribute(placements=(Replicate(),), async_op=True)
            return (gathered.to_local(grad_placements=(Partial(),)),)  # each rank's outputs are its own

        module.register_forward_pre_hook(whole)
        return module


class AdaptedRows(ParallelStyle):
    """As `RowwiseParallel`, of a layer without bias, whose input is cut along its width."""

    def __init__(self, output_layouts: Placement) -> None:
        super().__init__()
        self.output_layouts = output_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, AdaptedLinear) and module._parameters["bias"] is None, "each rank would add it"
        _lay(module, device_mesh, Shard(1), down=Shard(1), up=Replicate())

        def summed(_: nn.Module, given: tuple[Any, ...], y: Tensor) -> Tensor:
            sums = DTensor.from_local(y, device_mesh, (Partial(),), run_check=False)
            found: Tensor = sums.redistribute(placements=(self.output_layouts,), async_op=True).to_local()
            return found

        module.register_forward_hook(summed)
        return module


def _lay(layer: AdaptedLinear, mesh: DeviceMesh, own: Placement, down: Placement, up: Placement) -> None:
    """own: of the layer's weight and bias."""
    _lay_each(layer, mesh, own)
    for adapter in layer.adapters.values():
        for part, placement in ((adapter.down, down), (adapter.up, up)):
            assert isinstance(part, nn.Linear)
            _lay_each(part, mesh, placement)


def _lay_each(layer: nn.Linear, mesh: DeviceMesh, placement: Placement) -> None:
    for name, one in list(layer.named_parameters(recurse=False)):
        laid = distribute_tensor(one.detach(), mesh, [placement], src_data_rank=None)
        layer.register_parameter(name, nn.Parameter(laid, requires_grad=one.requires_grad))
