"""A recipe in a gang that recovers inside: set up like any other in the first generation, and from memory in every later one."""

import gc
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from phalanx.core.errors import CheckpointError
from phalanx.core.recipe import AnyRecipe
from phalanx.job.checkpoint.keeper.place import Place as KeeperPlace
from phalanx.job.checkpoint.replicas import Moment
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.sdk.gang import Gang, Place
from phalanx.job.sdk.session import Session
from phalanx.job.train.batches import batch_of_run
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import RunData
from phalanx.job.train.finish import finish
from phalanx.job.train.initial import agreed_digest
from phalanx.job.train.loop import Trained, run
from phalanx.job.train.parallel import placed
from phalanx.job.train.precision import Dtype
from phalanx.job.train.reform import Over, in_generations, rest_if_asked
from phalanx.job.train.regrown import State, newest_state
from phalanx.job.train.resumed import INIT, resume_data, state_numbers
from phalanx.job.train.saves import keeper_place, saving
from phalanx.job.train.setup import Start, Training, assemble, claim_beside, set_up
from phalanx.job.train.snapshots import Snapshots
from phalanx.job.train.traces.traced import finish_traces
from phalanx.job.train.watch import Watch

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """What this generation recovers from. step_reached: completed by somebody before it. replaced: ranks that have another process
    now -> its pid, by their numbers in the whole gang."""

    place: Place
    step_reached: int
    replaced: Mapping[int, int]


class GangWatch(Watch):
    """Of one process, through all its generations."""

    def __init__(self, gang: Gang, boot_ms: Callable[[], int]) -> None:
        self._gang = gang
        self._boot_ms = boot_ms
        self.snapshots: Snapshots | None = None
        self.step_reached = 0
        self.fault: Fault | None = None
        self._began_after = 0
        self._at = (0, 0)

    def moved(self, step: int, mark: int) -> None:
        self._at = (step, mark)
        self._gang.moved(step, mark)

    @property
    def patience_s(self) -> float:
        """For so long the other ranks can be let wait in a collective."""
        return self._gang.timeouts.collective_ms / 2000

    def waiting(self) -> None:
        """Whoever waits for a store does not hang; and it comes out in time. Raises Over."""
        if self._gang.is_over(0.0):
            raise Over("it waited for checkpoints")
        step, mark = self._at
        self.moved(step, mark + 1)

    def completed(self, training: Training, step: int, val_loss_first: float, checkpoint: str) -> None:
        self.step_reached = max(self.step_reached, step)
        numbers = {**state_numbers(training, step, val_loss_first), "dtype": training.identity.dtype, "checkpoint": checkpoint}
        assert self.snapshots is not None
        self.snapshots.take(training.model, training.optimizer, training.rank, step, numbers)

    def replaced(self) -> None:
        if self.snapshots is not None:
            self.snapshots.new_model()

    def recorded(self, training: Training, step: int) -> None:
        """After the first step that follows a fault it is known how long the gang stood still."""
        self.tell_fault(training)
        snapshots = self.snapshots
        assert snapshots is not None
        rest_if_asked(self._gang, training.rank, lambda: snapshots.holds(step))

    def tell_fault(self, training: Training) -> None:
        """Once. Whoever says the model has said before by it who is still in the gang, also where no step was left to make."""
        fault, self.fault = self.fault, None
        if fault is not None and training.rank.rank == 0:
            self._tell(training, fault)

    def _tell(self, training: Training, fault: Fault) -> None:
        rank = training.rank
        training.session.recovered(
            step=self._began_after,
            generation=fault.place.generation,
            why=fault.place.why,
            replaced=fault.replaced,
            steps_lost=max(0, fault.step_reached - self._began_after),
            recovery_ms=self._boot_ms() - fault.place.since_ms,
            absent=tuple(slot for slot in range(rank.whole_size) if slot not in rank.slots),
            planned=fault.place.planned,
        )

    def begins(self, fault: Fault | None, step: int) -> None:
        """The generation goes on after `step`."""
        self.fault, self._began_after, self.step_reached = fault, step, step


class Recipe:
    """One process's run of a recipe. `session` attaches when the process has a rank, which a spare has not at its start."""

    def __init__(self, gang: Gang, recipe: AnyRecipe, data: RunData, session: Callable[[], Session]) -> None:
        self._gang = gang
        self._recipe = recipe
        self._data = data
        self._attach = session
        self._session: Session | None = None
        self._watch = GangWatch(gang, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)

    def train(self) -> tuple[Path, Trained]:
        """Until a generation has finished the model. See `in_generations`."""
        done = in_generations(self._gang, self._generation)
        assert self._watch.snapshots is not None
        self._watch.snapshots.close()
        return done

    @property
    def lost_records(self) -> int:
        return self._session.lost_records if self._session is not None else 0

    def _generation(self, rank: Rank, place: Place) -> tuple[Path, Trained]:
        if self._session is None:
            self._session = self._attach()
            self._watch.snapshots = Snapshots(snapshot_place(self._session), replicas=self._session.replicas)
        rank = placed(rank, self._session, self._recipe)
        try:
            training, start, state = self._set_up(self._session, rank, place)
            if state is not None:
                state.stays_elsewhere()
            with saving(training, self._watch.snapshots) as saves:
                self._gang.settled()
                trained = run(training, start, saves)
            self._watch.tell_fault(training)
            made = finish(training, trained), trained
            finish_traces(training, self._watch.patience_s)
            return made
        finally:
            assert self._watch.snapshots is not None
            self._watch.snapshots.new_model()  # the dead one is held by nobody once memory is swept, before there is another

    def _set_up(self, session: Session, rank: Rank, place: Place) -> tuple[Training, Start, State | None]:
        """A collective of all ranks."""
        snapshots = self._watch.snapshots
        assert snapshots is not None
        snapshots.new_model()
        fault = self._fault(rank, place)
        begun = self._newest(session, rank, snapshots) if place.generation > 1 else None
        if begun is not None:
            training, start, state = begun
        else:
            training, start = set_up(session, self._recipe, self._data, rank, time.monotonic, _unix_ms, self._watch)
            state = None
        self._watch.begins(fault, start.step)
        return training, start, state

    def _newest(self, session: Session, rank: Rank, snapshots: Snapshots) -> tuple[Training, Start, State | None] | None:
        """From the newest state that can be had from memory; None where there is none. A collective of all ranks."""
        lost: list[Moment] = []
        while (state := newest_state(snapshots, rank, lost)) is not None:
            if (begun := self._from_memory(session, rank, state)) is not None:
                return *begun, state
            lost.append(state.at)
            snapshots.new_model()
            gc.collect()  # of a model whose state could not be had: there is no room for two
        return None

    def _from_memory(self, session: Session, rank: Rank, state: State) -> tuple[Training, Start] | None:
        """None where memory does not give what it promised."""
        note, step = state.note, state.step
        claim_beside(session, rank)
        batch = batch_of_run(int(note["global_batch"]), self._recipe, rank.data_size, rank.model_size)
        dtype = cast(Dtype, note["dtype"])
        made = (rank, dtype, batch, time.monotonic, _unix_ms, self._watch)
        init = agreed_digest(self._recipe, session.node, str(note.get(INIT, "")))
        training = assemble(session, self._recipe, self._data, *made, fresh=False, init_digest=init)
        if not state.restore(training.model, training.optimizer):
            return None
        first = float.fromhex(str(note["val_loss_first"]))
        training.guard.restore(note)
        training.expert_places.restore(note)
        resume_data(training, note)
        _check_cursor(note, state_numbers(training, step, first), step)
        _log.info("rank %d goes on after step %d from memory", rank.slot, step)
        return training, Start(step=step, val_loss_first=first, checkpoint=str(note["checkpoint"]), from_memory=True)

    def _fault(self, rank: Rank, place: Place) -> Fault | None:
        if place.generation == 1:
            return None
        told = told_by_all((self._watch.step_reached, place.pid))
        replaced = {rank.slot_of(other): pid for other, (_, pid) in enumerate(told) if pid}
        return Fault(place, max(reached for reached, _ in told), replaced)


def snapshot_place(session: Session) -> KeeperPlace:
    """Of this rank's keeper, which also writes its checkpoints."""
    return keeper_place(session)


def _check_cursor(note: Mapping[str, object], wanted: Mapping[str, object], step: int) -> None:
    """Weights and data cursor are one thing (law 5)."""
    for name, value in wanted.items():
        if note.get(name) != value:
            raise CheckpointError(
                f"{name} of the snapshot of step {step}", note.get(name), f"weights and data cursor differ: {value}"
            )


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
