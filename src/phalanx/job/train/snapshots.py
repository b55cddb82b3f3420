"""This rank's state after each step, in memory that outlives its process: what a gang goes back to when one of it dies.

Every rank keeps all that it would need itself, replicated tensors too: whoever takes its place asks nobody for them. Each part says
where it lies in the whole tensor, so that a gang of another size can be made of the snapshots of this one (`sealed.Sealed`).

The copy is made beside the next forward and backward, and before the update after that every rank has waited for its own and for
the others': so whoever has made step n + 1 knows that all have n whole, and at most one completed step is ever made again.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from phalanx.core.errors import CheckpointError, NotFound, SetupError, StoreUnavailable
from phalanx.job.checkpoint.copier import Copier, Held
from phalanx.job.checkpoint.fitting import Fitting
from phalanx.job.checkpoint.keeper.place import IDLE_S, Place
from phalanx.job.checkpoint.live import LiveState, is_in_place
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.owners import held_parts
from phalanx.job.checkpoint.replicas import RANK, WORLD_SIZE, Kept, Moment, read
from phalanx.job.checkpoint.rng import rng_parts, set_rng
from phalanx.job.checkpoint.sealed import Sealed
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.staged import copy_in, flat
from phalanx.job.checkpoint.state import set_training_state, training_state
from phalanx.job.train.device import Rank, synchronise
from phalanx.job.train.exchange import Exchange, Recalled

_log: Final = logging.getLogger(__name__)
Note = Mapping[str, str | int | float | bool]
"""What else belongs to a state: numbers of the run, such as where it stands in its data."""
BUFFERS: Final = 3
"""The newest whole one, one that is being copied, and one that is being written to durable storage."""
FIRST_WAIT_S: Final = 0.5
"""For memory that is taken beside training, after the first step: so long small states last, of which every step is kept then."""
REPLICA_BUFFERS: Final = 5
"""Besides one that is on its way to another place, and the last one of which every rank has a replica there."""


class Snapshots:
    """Of one rank's place, in all generations of one process. `place` is the same for whoever holds the rank."""

    def __init__(self, place: Place, idle_s: float = IDLE_S, buffers: int = 0, replicas: int = 0) -> None:
        """buffers: for how many snapshots there shall be memory, 0 for as many as are of use. Where there is room for fewer, the
        gang goes on with fewer. replicas: how many other places shall hold each state, 0 or 1."""
        self.saves_wait = False
        self.place = place
        self._exchange = Exchange(place, replicas)
        self._buffers = buffers or (REPLICA_BUFFERS if replicas else BUFFERS)
        self._is_fitted = False
        self._fits_beside = False
        self._is_after_fault = False
        self._fitting: Fitting | None = None
        self._parts: Sequence[Part] = ()
        self._waits = True
        self._is_told = False
        self._restored: int | None = None
        self._idle_s = idle_s
        self._copier: Copier | None = None
        self._live: LiveState | None = None
        self._hook: RemovableHandle | None = None
        self._settled = True

    @property
    def copier(self) -> Copier:
        if self._copier is None:
            device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
            self._copier = Copier(self.place, device, self._idle_s)
        return self._copier

    @property
    def buffers_needed(self) -> int:
        """As `EveryStep`."""
        return 2 if self._buffers > 2 else 1

    def fit(self, parts: Sequence[Part]) -> None:
        """Takes memory for snapshots of these parts, see `Fitting`; beside training where `fits_beside` was called. A collective of
        all ranks, first in each generation.

        Raises, on every rank, when one has too little, SetupError before a first step; after a fault StoreUnavailable: the job had
        room for all its ranks, and may have it again.
        """
        self._parts = parts
        if not self._fits_beside:
            self._have(self._begun(), math.inf)

    def fits_beside(self) -> None:
        """What this generation goes on from stays in memory that others hold, so that nobody needs to wait for its own: it is taken
        once a step was made, which a driver that locks pages would hold up, and until it is there no step is kept."""
        self._fits_beside = True

    def has_memory(self, wait_s: float = 0.0) -> bool:
        """Whether that was taken by now, on every rank. A collective of all ranks. Raises as `fit`."""
        if not self._is_fitted:
            self._have(self._fitting if self._fitting is not None else self._begun(), wait_s)
        return self._is_fitted

    def _begun(self) -> Fitting:
        self._fitting = Fitting(self.copier, self._parts, self._buffers)
        return self._fitting

    def _have(self, fitting: Fitting, wait_s: float) -> None:
        try:
            found = fitting.finish() if wait_s == math.inf else fitting.ready(wait_s)
        except SetupError as error:
            if not self._is_after_fault:
                raise
            raise StoreUnavailable(f"{error.sentence()}; the gang cannot go on with {dist.get_world_size()} ranks") from error
        if found is not None:
            self._is_fitted, self._fitting, self._buffers = True, None, found[1]
            self._exchange.meet(self.copier, self._restored)

    def recall(self, kept: list[Kept], at: Moment) -> Recalled:
        """Sees to it that each place of a gang of that size has its part of the state `at`, of which `kept` has all: its own, or a
        replica that is fetched. A collective of all ranks, after a fault."""
        self.copier.rest()
        return self._exchange.recall(self.copier, kept, at, self._buffers)

    def gathered(self) -> list[Kept]:
        """All that any keeper of the gang holds, of gangs of other sizes too. A collective of all ranks, after a fault."""
        self._is_after_fault = True
        self.copier.rest()
        return self._exchange.gathered(self.copier)

    def read(self, one: Kept) -> Sealed:
        """See `replicas.read`."""
        return read(one, self._exchange.secret, self.place.attempt)

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

    def live(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> LiveState:
        """Where the state of this model and optimizer lies, of which the optimizer waits for snapshots from now on."""
        if self._live is None:
            self._live = LiveState(model, optimizer)
            self._hook = optimizer.register_step_pre_hook(lambda *_: self._before_change())
        return self._live

    def take(self, model: nn.Module, optimizer: torch.optim.Optimizer, rank: Rank, step: int, note: Note) -> bool:
        """Begins to copy the state after `step`, at least 1. A collective of all ranks. False when there was no room for it: then
        the one before it stays.

        Raises as `fit`.
        """
        held: Held = [*self.live(model, optimizer).held(), *rng_parts(rank.rank, rank.device)]
        self.copier.wait()
        if not self._is_fitted and not self._fits_beside:
            self.fit([part for part, _ in held])
        if not self.has_memory(FIRST_WAIT_S if self._waits else 0.0):
            self._waits = False
            return False
        self._settled = False
        if self._buffers == 2 and not self._all_have_room():
            if not self._is_told:
                _log.warning("no snapshot of step %d: there is memory for two, and one is being saved", step)
            self._is_told = True
            return False
        self._exchange.agree(self.copier, step, rank.generation, self.saves_wait)
        whose = {RANK: rank.rank, WORLD_SIZE: rank.world_size}
        return self.copier.take(step, rank.generation, held, json.dumps({**note, **whose}))

    def settle(self) -> float:
        """Waits until the newest snapshot of this rank is whole; for how many seconds. Whoever calls this sees to it that all ranks
        have, before any makes its next update."""
        self._settled = True
        return self.copier.wait()

    def holds(self, step: int) -> bool:
        """Whether the state after `step` is whole in this rank's place; waits for a copy that is under way."""
        self.settle()
        return step in self.sealed()

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer, rank: Rank, step: int) -> None:
        """Puts the state after `step` into a new model and optimizer; later snapshots are of a history that did not happen.

        Raises NotFound, and CheckpointError when what is there is of another model.
        """
        memory = self._found()
        held = self.copier.stored(step)
        state = training_state(model, optimizer)
        wanted = [(part, tensor) for part, tensor in held_parts(state) if part.num_bytes]
        generators = rng_parts(rank.rank, rank.device)
        missing = {part.key for part, _ in (*wanted, *generators)} ^ set(held)
        if memory is None or missing:
            raise CheckpointError(f"snapshot of step {step}", sorted(missing)[:3], "is of another model; restart the job")
        _fill([*wanted, *generators], held, is_locked=self.copier.is_locked(step))
        synchronise(rank.device)
        if not is_in_place(state, model, optimizer):
            set_training_state(model, optimizer, state)
        set_rng({part.name.rpartition(".")[2]: one for part, one in generators}, "", rank.rank, rank.world_size, rank.device)
        memory.forget_after(step)
        self._restored = step

    def forget_after(self, step: int) -> None:
        """Later snapshots of this place are of a history that did not happen."""
        memory = self._found()
        if memory is not None:
            memory.forget_after(step)
        self._restored = step

    def new_model(self) -> None:
        """What was read of the model before is another one's now."""
        if self._copier is not None:
            self._copier.wait()
        if self._hook is not None:
            self._hook.remove()
        self._live, self._hook, self._settled, self._is_fitted, self._restored = None, None, True, False, None
        self._fitting, self._fits_beside, self._waits = None, False, True  # what is being taken the next generation ends

    def close(self) -> None:
        """The rank needs no successor any more: its memory is let go of."""
        self.new_model()
        if self._copier is not None:
            self._copier.close()
            self._copier = None

    def _before_change(self) -> None:
        """Nothing where the trainer has settled by itself. A collective of all ranks where it has not."""
        if self._settled:
            return
        self.settle()
        if dist.is_initialized():
            dist.all_reduce(torch.zeros((), dtype=torch.int32))  # over gloo: waits for every rank's copy

    def _all_have_room(self) -> bool:
        """Were some to go on without the others, they would soon have no step in common."""
        memory = self.copier.memory
        room = torch.tensor(int(memory is not None and memory.has_room()), dtype=torch.int32)
        if dist.is_initialized():
            dist.all_reduce(room, dist.ReduceOp.MIN)
        return bool(room.item())

    def _found(self) -> Memory | None:
        self.copier.wait()
        return self.copier.find()


@torch.no_grad()
def _fill(wanted: Held, held: Mapping[str, torch.Tensor], is_locked: bool) -> None:
    """Straight from where the snapshot lies: what is page-locked a GPU reads by itself."""
    staged: list[tuple[torch.Tensor, torch.Tensor]] = []
    for part, tensor in wanted:
        if is_locked or tensor.device.type == "cpu" or not tensor.is_contiguous():
            tensor.copy_(held[part.key].view(tensor.dtype).view(tensor.shape), non_blocking=True)
        else:
            staged.append((flat(tensor), held[part.key]))
    if staged:
        copy_in(staged, staged[0][0].device)
