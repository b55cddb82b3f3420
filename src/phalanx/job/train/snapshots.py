"""This rank's state after each step, in memory that outlives its process: what a gang goes back to when one of it dies.

Every rank keeps all that it would need itself, replicated tensors too: whoever takes its place asks nobody for them. Each part says
where it lies in the whole tensor, so that a gang of another size can be made of the snapshots of this one (`sealed.Sealed`).
"""

import json
from collections.abc import Mapping
from typing import cast

import torch
from torch import nn

from phalanx.core.errors import CheckpointError, NotFound
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.owners import held_parts, host_bytes
from phalanx.job.checkpoint.rng import rng_parts, set_rng
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.state import set_training_state, training_state
from phalanx.job.train.device import Rank

Note = Mapping[str, str | int | float | bool]
"""What else belongs to a state: numbers of the run, such as where it stands in its data."""


class Snapshots:
    """Of one rank's place. `place` is the same for whoever holds the rank."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._memory: Memory | None = None
        self._tensors: list[tuple[Part, torch.Tensor]] = []

    def sealed(self) -> tuple[int, ...]:
        """Steps whose whole state is in memory, newest first."""
        memory = self._found()
        return memory.sealed() if memory is not None else ()

    def note(self, step: int) -> Note:
        """Raises NotFound."""
        memory = self._found()
        if memory is None:
            raise NotFound("snapshot", step, "this place holds none")
        return cast(Note, json.loads(memory.seal_of(step).note))

    def take(self, model: nn.Module, optimizer: torch.optim.Optimizer, rank: Rank, step: int, note: Note) -> bool:
        """Copies the state after `step`, at least 1. False when there was no room for it: then the one before it stays.

        Raises SetupError when there is too little memory.
        """
        if not self._tensors:
            self._tensors = held_parts(training_state(model, optimizer))
        held = [*self._tensors, *rng_parts(rank.rank, rank.device)]
        if self._memory is None or [part for part, _ in held] != list(self._memory.layout.parts):
            self._leave()
            self._memory = Memory.attach(self._place, [part for part, _ in held])
        draft = self._memory.begin(step, rank.generation)
        if draft is None:
            return False
        for (_, place), (_, tensor) in zip(draft.places, held, strict=True):
            place[:] = host_bytes(tensor)
        draft.seal(json.dumps(dict(note)))
        return True

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer, rank: Rank, step: int) -> None:
        """Puts the state after `step` into a new model and optimizer; later snapshots are of a history that did not happen.

        Raises NotFound, and CheckpointError when what is there is of another model.
        """
        memory = self._found()
        held = memory.read(step) if memory is not None else {}
        state = training_state(model, optimizer)
        wanted = held_parts(state)
        generators = rng_parts(rank.rank, rank.device)
        missing = {part.key for part, _ in (*wanted, *generators)} ^ set(held)
        if memory is None or missing:
            raise CheckpointError(f"snapshot of step {step}", sorted(missing)[:3], "is of another model; restart the job")
        for part, tensor in wanted:
            _fill(tensor, held[part.key])
        set_training_state(model, optimizer, state)
        for part, generator in generators:
            host_bytes(generator)[:] = held[part.key]
        set_rng({part.name.rpartition(".")[2]: one for part, one in generators}, "", rank.rank, rank.world_size, rank.device)
        memory.forget_after(step)

    def new_model(self) -> None:
        """What was read of the model before is another one's now."""
        self._tensors = []

    def close(self) -> None:
        """The rank needs no successor any more: its memory is let go of."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _leave(self) -> None:
        if self._memory is not None:
            self._memory.leave()
            self._memory = None

    def _found(self) -> Memory | None:
        if self._memory is None:
            try:
                self._memory = Memory.attach(self._place)
            except NotFound:
                return None
        return self._memory


def _fill(tensor: torch.Tensor, data: memoryview) -> None:
    host = tensor if tensor.device.type == "cpu" and tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype)
    host_bytes(host)[:] = data
    if host is not tensor:
        tensor.copy_(host)
