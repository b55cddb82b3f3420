"""A training state as it lies in memory: found once, and looked up again only when something lies elsewhere.

Collecting hundreds of sharded tensors takes tens of milliseconds, which a training thread would stand still for at each save.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from phalanx.job.checkpoint.local import local_of
from phalanx.job.checkpoint.owners import held_parts, local_parts, specs_of
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.state import Optimizers, listed, training_state
from phalanx.job.checkpoint.whole import TensorSpec


class LiveState:
    """Of one model and optimizer, whose moments are there. mesh: see owners.local_parts."""

    def __init__(self, model: nn.Module, optimizer: Optimizers, mesh: DeviceMesh | None = None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._mesh = mesh
        self._places: tuple[int, ...] = ()
        self._parts: list[tuple[Part, torch.Tensor]] = []
        self._held: list[tuple[Part, torch.Tensor]] = []
        self._specs: Mapping[str, TensorSpec] = {}

    def parts(self) -> list[tuple[Part, torch.Tensor]]:
        """This rank's own parts, in place: later updates are seen in them."""
        self._look()
        return self._parts

    def held(self) -> list[tuple[Part, torch.Tensor]]:
        """Every part that this rank has, in place; but copies of a model's buffers, which its forward may change."""
        self._look()
        return self._lasting(self._held)

    def own(self) -> list[tuple[Part, torch.Tensor]]:
        """As `parts`, but with copies of buffers as `held`."""
        return self._lasting(self.parts())

    def specs(self) -> Mapping[str, TensorSpec]:
        """Of every tensor of the gang's state."""
        self._look()
        return self._specs

    def _lasting(self, parts: list[tuple[Part, torch.Tensor]]) -> list[tuple[Part, torch.Tensor]]:
        passing = {_storage(buffer) for buffer in self._model.buffers()}
        return [(part, tensor.clone() if _storage(tensor) in passing else tensor) for part, tensor in parts]

    def _look(self) -> None:
        places = self._where()
        if places != self._places:
            state = training_state(self._model, self._optimizer)
            self._parts, self._specs = local_parts(state, self._mesh), specs_of(state)
            self._held = held_parts(state)
            self._places = self._where() if self._in_place(state) else ()

    def _in_place(self, state: Mapping[str, torch.Tensor]) -> bool:
        """Whether every part is the state itself: of a piece that is not contiguous it is a copy, which later updates leave."""
        own = {_storage(tensor) for tensor in state.values()}
        return all(_storage(tensor) in own for _, tensor in (*self._parts, *self._held))

    @torch.no_grad()
    def _where(self) -> tuple[int, ...]:
        found = [_address(parameter) for parameter in self._model.parameters()]
        found += [_address(buffer) for buffer in self._model.buffers()]
        for optimizer in listed(self._optimizer):
            for moments in optimizer.state.values():
                found += [_address(value) for value in moments.values() if isinstance(value, torch.Tensor)]
        return tuple(found)


def is_in_place(state: Mapping[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether a training state is the model's and optimizer's own memory, so that what is written to it is theirs."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [value for moments in optimizer.state.values() for value in moments.values() if isinstance(value, torch.Tensor)]
    with torch.no_grad():
        own = {_storage(tensor) for tensor in tensors}
        return all(_storage(tensor) in own for tensor in state.values())


def _storage(tensor: torch.Tensor) -> int:
    return local_of(tensor).untyped_storage().data_ptr()


def _address(tensor: torch.Tensor) -> int:
    return local_of(tensor).data_ptr()
