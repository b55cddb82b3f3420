"""A run's saves in the background: device -> host memory beside the next step -> keeper -> durable storage.

The training thread stands still only to agree with the other ranks that all of them have room, and before it changes a state that
is still being copied. Ranks begin the same saves, so that each of them can be whole.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
import torch.distributed as dist

from phalanx.core.errors import CheckpointError, SetupError
from phalanx.job.checkpoint.commit import Content, Saved, SaveFailed, reason_of
from phalanx.job.checkpoint.copier import Copier
from phalanx.job.checkpoint.fitting import Fitting
from phalanx.job.checkpoint.keeper.link import TAKING_S
from phalanx.job.checkpoint.keeper.messages import Committed, GivenUp, News, Persist, Troubled
from phalanx.job.checkpoint.keeper.place import IDLE_S, Place
from phalanx.job.checkpoint.live import LiveState
from phalanx.job.checkpoint.manifest import Scalar
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.rng import rng_parts
from phalanx.job.checkpoint.save import Identity, SavePolicy
from phalanx.job.checkpoint.shard_file import Part, SaveKey
from phalanx.job.checkpoint.together import decided_by_rank_zero

BUFFERS: Final = 2
"""One snapshot on its way to durable storage, and one that is being taken."""
PATIENCE_S: Final = 600.0
"""How long a full disk or a store that is away is tried again, for one save."""
ROOM_WAIT_S: Final = 1.0
"""How long a due save waits for room when every snapshot is still being written. Afterwards it is put off to the next step, and
that one does not wait."""
_MARGIN_S: Final = 60.0
_SLICE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """The save of `step` could not be written yet, and is tried again."""

    step: int
    reason: str


Outcome = Saved | SaveFailed | Delayed


class EveryStep(Protocol):
    """Who takes a snapshot of all that a rank has after every step. buffers_needed: without which it could not go on. saves_wait:
    for room, so that nothing else may take it."""

    saves_wait: bool

    @property
    def copier(self) -> Copier: ...

    @property
    def buffers_needed(self) -> int: ...

    def fit(self, parts: Sequence[Part]) -> None:
        """Takes memory for snapshots of these parts, or begins to."""

    def has_memory(self) -> bool:
        """Whether that was taken by now, on every rank. A collective of all ranks. Raises StoreUnavailable, on every rank, when one
        has too little."""

    def settle(self) -> float:
        """Waits until the newest snapshot is whole; for how many seconds."""


class Pipeline:
    """Of one rank and one generation of its gang. A collective of all ranks, as are `save` and `finish`.

    Raises SetupError, on every rank, when one of them has too little host memory, naming the bytes needed and free.
    """

    def __init__(
        self,
        place: Place,
        policy: SavePolicy,
        identity: Identity,
        live: LiveState,
        buffers: int = BUFFERS,
        patience_s: float = PATIENCE_S,
        idle_s: float = IDLE_S,
        clock_s: Callable[[], float] = time.monotonic,
        every_step: EveryStep | None = None,
        waiting: Callable[[], None] = lambda: None,
        slot: int | None = None,
    ) -> None:
        """every_step: somebody else takes a snapshot of all that this rank has after every step; saves are made of those. waiting:
        called again and again, on every rank, in waits that may last as long as a store is away; what it raises ends them. slot:
        see Persist."""
        self.policy = policy
        self.identity = identity
        self.stalled_s = 0.0  # of the training thread, since `take_stalled_s`
        self._live = live
        self._patience_s = patience_s
        self._waiting = waiting
        self._slot = slot
        self._clock_s = clock_s
        self._rank = dist.get_rank()
        self._outcomes: deque[Outcome] = deque()
        self._fenced = ""
        self._put_off = False
        self._newest = 0
        self._nonce = decided_by_rank_zero(lambda: secrets.token_hex(4))
        self._every_step = every_step
        self._copier = every_step.copier if every_step is not None else Copier(place, identity.device, idle_s)
        parts = [part for part, _ in self._parts()]
        if every_step is not None:
            every_step.fit(parts)
        else:
            memory, _ = Fitting(self._copier, parts, buffers).finish()
            memory.forget_after(-1)  # of a former life of this place

    def is_due(self, step: int, total_steps: int) -> bool:
        """Whether to call `save`: also when an earlier one was put off."""
        return self._put_off or self.policy.due(step, total_steps)

    def save(
        self, step: int, extra: Mapping[str, Scalar], metrics: Callable[[], Mapping[str, float]] = dict, must: bool = False
    ) -> bool:
        """Begins to save the state after `step`; False when it was put off, since some rank has no room yet.

        metrics: what the manifest shall say was measured; asked for, on every rank, only if the save begins. must: wait for room as
        long as for a store that is away: for the last save of a run.

        Raises CheckpointError once a newer attempt or generation holds the checkpoints.
        """
        started_s = self._clock_s()
        self.stalled_s += self._copier.wait()
        self._hear(0.0)
        if must:
            taking_s = TAKING_S if self._memory is None else 0.0
            self._wait_together(lambda: not self._has_room(), self._has_memory, taking_s)
        elif not self._put_off:
            self._wait_for_room(ROOM_WAIT_S)
        agreed = self._all_have_room()
        self._put_off = not agreed
        if self._every_step is not None:
            self._every_step.saves_wait = self._put_off
        if agreed:
            self._begin(step, extra, metrics())
        self.stalled_s += self._clock_s() - started_s
        return agreed

    def before_change(self) -> None:
        """Called before weights or moments change, such as by the optimizer's step."""
        self.stalled_s += self._copier.before_change()

    @property
    def is_every_step(self) -> bool:
        """Whether a snapshot is taken after every step."""
        return self._every_step is not None

    def before_agreement(self) -> None:
        """Called before ranks agree on a step that changes the state. Where snapshots are taken after every step each waits for its
        own here, so that after the change every rank has the one before it whole."""
        if self._every_step is not None:
            self.stalled_s += self._every_step.settle()

    def news(self) -> list[Outcome]:
        """What has become of saves since the last time. Waits for nothing. `Saved` is said to rank 0 only."""
        self._hear(0.0)
        told = list(self._outcomes)
        self._outcomes.clear()
        return told

    def take_stalled_s(self) -> float:
        stalled_s, self.stalled_s = self.stalled_s, 0.0
        return stalled_s

    def finish(self) -> Saved | SaveFailed | None:
        """Waits for all that was begun: what became of the newest save, the same on every rank; None when there was none.

        Raises CheckpointError once a newer attempt or generation holds the checkpoints.
        """
        self._copier.wait()
        self._wait_together(lambda: self._memory is not None and bool(self._memory.saving))
        ended = {outcome.step: outcome for outcome in self._outcomes if not isinstance(outcome, Delayed)}
        return decided_by_rank_zero(lambda: self._last(ended))

    def close(self) -> None:
        """Ends the keeper too, and gives the memory back; where snapshots are taken after every step that is theirs to do."""
        if self._every_step is None:
            self._copier.close()

    def leave(self) -> None:
        """Ends nothing: the keeper goes on writing, and waits for this rank's next generation or for its successor."""
        if self._every_step is None:
            self._copier.leave()

    def _last(self, ended: Mapping[int, Saved | SaveFailed]) -> Saved | SaveFailed | None:
        self._check_fence()
        if not self._newest:
            return None
        return ended.get(self._newest) or SaveFailed(step=self._newest, reason="its keeper does not say what became of it")

    def _parts(self) -> list[tuple[Part, torch.Tensor]]:
        found = self._live.own() if self._every_step is None else self._live.held()
        return [*found, *rng_parts(self._rank, self.identity.device)]

    def _own(self) -> tuple[int, ...] | None:
        """Numbers of the parts that this rank writes, of those that its snapshots hold."""
        if self._every_step is None:
            return None
        own = {part.key for part, _ in (*self._live.parts(), *rng_parts(self._rank, self.identity.device))}
        assert self._memory is not None
        return tuple(number for number, part in enumerate(self._memory.layout.parts) if part.key in own)

    def _begin(self, step: int, extra: Mapping[str, Scalar], metrics: Mapping[str, float]) -> None:
        key = SaveKey(
            step=step, save=f"{self._nonce}.{step}", attempt=self.identity.attempt, generation=self.identity.generation
        )  # fmt: skip
        self._newest = step
        content = Content(
            origin=self.identity.origin, dtype=self.identity.dtype, extra=extra, metrics=metrics,
            tensors=self.identity.tensors or self._live.specs(),
        )  # fmt: skip
        asked = Persist(
            root=str(self.policy.root), key=key, rank=self._rank, segment=None, content=content if self._rank == 0 else None,
            keep=self.policy.keep, patience_s=self._patience_s, own=self._own(),
            slot=self._slot,
        )  # fmt: skip
        self._copier.ride(asked)
        if self._every_step is None:
            self._copier.take(step, self.identity.generation, self._parts())

    def _has_room(self) -> bool:
        """Snapshots of every step go on whatever becomes of the one that is written."""
        if self._memory is None:
            return False
        return self._memory.has_room() if self._every_step is None else self._memory.can_save(self._every_step.buffers_needed)

    @property
    def _memory(self) -> Memory | None:
        """None while it is being taken."""
        return self._copier.memory

    def _has_memory(self) -> bool:
        return self._every_step is None or self._every_step.has_memory()

    def _wait_together(
        self, is_missing: Callable[[], bool], progress: Callable[[], object] = lambda: None, longer_s: float = 0.0
    ) -> None:
        """Until nothing is missing on any rank, or for as long as a store that is away is tried and `longer_s`. A collective of all
        ranks: one that waited in a collective for another would count as one that hangs, and its time there would be over first."""
        until_s = self._clock_s() + self._patience_s + _MARGIN_S + longer_s
        while True:
            progress()
            self._hear(0.0)
            if not self._any(is_missing() and self._clock_s() < until_s):
                return
            self._waiting()
            self._repair()
            self._hear(_SLICE_S)

    def _any(self, mine: bool) -> bool:
        answer = torch.tensor(int(mine), dtype=torch.int32)
        dist.all_reduce(answer, dist.ReduceOp.MAX)
        return bool(answer.item())

    def _wait_for_room(self, wait_s: float) -> None:
        until_s = self._clock_s() + wait_s
        while not self._has_room() and self._clock_s() < until_s:
            self._repair()
            self._hear(min(_SLICE_S, max(until_s - self._clock_s(), 0.0)))

    def _repair(self) -> None:
        """A keeper that cannot be started now may be at the next save."""
        try:
            if self._memory is not None:
                self._memory.repair()
        except SetupError as error:
            self._outcomes.append(Delayed(step=self._newest, reason=reason_of(error)))

    def _all_have_room(self) -> bool:
        """2: this rank has room, 1: it has none, 0: it lost its right to write. The least of all ranks counts."""
        mine = 0 if self._fenced else 2 if self._has_room() else 1
        answer = torch.tensor(mine, dtype=torch.int32)
        dist.all_reduce(answer, dist.ReduceOp.MIN)
        if int(answer.item()) == 0:
            decided_by_rank_zero(self._check_fence)
        return int(answer.item()) == 2

    def _check_fence(self) -> None:
        if self._fenced:
            raise CheckpointError("checkpoints", None, self._fenced)

    def _hear(self, wait_s: float) -> None:
        for one in self._copier.news(wait_s):
            self._note(one)
        while self._copier.unsaved:
            step, reason = self._copier.unsaved.popleft()
            self._outcomes.append(SaveFailed(step=step, reason=reason))

    def _note(self, news: News) -> None:
        match news:
            case Committed(saved=saved):
                self._outcomes.append(saved)
            case Troubled(key=key) | GivenUp(key=key) if key.generation != self.identity.generation:
                return  # of a generation before this one, which was fenced when this one began
            case Troubled(key=key, reason=reason):
                self._outcomes.append(Delayed(step=key.step, reason=reason))
            case GivenUp(reason=reason, fenced=True):
                self._fenced = reason
            case GivenUp(key=key, reason=reason):
                self._outcomes.append(SaveFailed(step=key.step, reason=reason))
