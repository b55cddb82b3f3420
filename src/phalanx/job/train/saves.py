"""The run's side of its checkpoints: when one is begun, and what is said of it once it is durable, late or lost."""

import hashlib
import logging
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.job.checkpoint.commit import Saved, SaveFailed
from phalanx.job.checkpoint.keeper.place import IDLE_S, Place
from phalanx.job.checkpoint.live import LiveState
from phalanx.job.checkpoint.pipeline import Pipeline
from phalanx.job.sdk.session import Session
from phalanx.job.train.measure import measure_all
from phalanx.job.train.offload import scratch_of
from phalanx.job.train.often import Rhythm
from phalanx.job.train.resumed import digest_numbers, state_numbers
from phalanx.job.train.setup import Training
from phalanx.job.train.snapshots import Snapshots
from phalanx.job.train.told import SavesTold

_log: Final = logging.getLogger(__name__)
ALONE_IDLE_S: Final = 10.0
"""Outside Phalanx nobody takes a dead rank's place, and nobody sweeps up after it."""


class Saves:
    """From `saving`. newest: digest of the newest manifest that was committed, on rank 0. failed: saves that were given up."""

    def __init__(self, training: Training, pipeline: Pipeline) -> None:
        self.newest = ""
        self.failed = 0
        self._training = training
        self._pipeline = pipeline
        self._newest_step = 0
        self._is_put_off = False
        self._rhythm = Rhythm(training.session.checkpoint_mtbf_s, training.clock_s) if training.session.checkpoint_mtbf_s else None
        self._told = SavesTold(training.session, training.rank.rank, training.clock_s, self._rhythm)

    @property
    def settles(self) -> bool:
        """Whether `before_agreement` may wait for a copy."""
        return self._pipeline.is_every_step

    def before_agreement(self) -> None:
        """Called once a step, before ranks agree on its update."""
        self._pipeline.before_agreement()

    def take_waited_s(self) -> float:
        """How long the step waited for a copy since the last time; called once a step."""
        waited_s = self._pipeline.take_stalled_s()
        if self._rhythm is not None:
            self._rhythm.stepped(waited_s)
        return waited_s

    def after(self, step: int, loss: float, val_loss_first: float) -> None:
        """Begins a save when one is due. A collective of all ranks. Raises CheckpointError when this attempt was replaced."""
        training, last = self._training, step == self._training.recipe.steps
        if not self._is_due(step):
            return

        extra = state_numbers(training, step, val_loss_first)

        def metrics() -> Mapping[str, float]:
            extra.update(digest_numbers(training, step))  # here, since a save that is put off need not read the state
            if training.policy.keep.metric in ("", "loss"):  # else it costs a pass over the held-out samples
                return {"loss": loss}
            return {"loss": loss, "val_loss": math.nan, **measure_all(training, "val_loss", step)}

        begun = self._pipeline.save(step, extra, metrics, last)
        stalled_s = self._pipeline.take_stalled_s()  # the caller has its own clock for this
        if begun and self._rhythm is not None:
            self._rhythm.begun(step, stalled_s)
        if not begun and not self._is_put_off:
            _log.warning("checkpoint of step %d put off: earlier ones are still being written", step)
        self._is_put_off = not begun

    def _is_due(self, step: int) -> bool:
        if self._rhythm is None:
            return self._pipeline.is_due(step, self._training.recipe.steps)
        return self._is_put_off or step == self._training.recipe.steps or self._rhythm.is_due(step)

    def tell(self) -> None:
        """Says what has become of saves since the last time. Waits for nothing."""
        for outcome in self._pipeline.news():
            match outcome:
                case Saved(step=step, digest=digest) if step > self._newest_step:  # not always in the order of steps
                    self._newest_step, self.newest = step, digest  # on rank 0, which alone hears of it
                case SaveFailed():
                    self.failed += 1
            self._told.tell(outcome)

    def settle(self) -> None:
        """Waits for all that was begun, before weights are put back in the middle of a run. A collective of all ranks."""
        self._pipeline.finish()
        self.tell()
        self._pipeline.before_change()

    def finish(self) -> None:
        """Waits for all that was begun. A collective of all ranks. Raises StoreUnavailable when the newest was not saved."""
        last = self._pipeline.finish()
        self.tell()
        if isinstance(last, SaveFailed):
            raise StoreUnavailable(f"the last checkpoint (step {last.step}) could not be written: {last.reason}")


@contextmanager
def saving(training: Training, snapshots: Snapshots | None = None) -> Iterator[Saves]:
    """A collective of all ranks. Raises SetupError, on every rank, when one has too little memory for its snapshots.

    snapshots: those that `training.watch` takes after every step, in a gang that recovers inside; saves are made of them. What was
    begun is written to the end by the keepers even when the run ends early.
    """
    if snapshots is not None:
        live = snapshots.live(training.model, training.optimizer)
    else:
        live = LiveState(training.model, training.optimizer, training.identity.mesh)
    place = replace(keeper_place(training.session), scratch=scratch_of(training.session, training.recipe))
    pipeline = Pipeline(
        place, training.policy, training.identity, live,
        patience_s=training.session.checkpoint_patience_s,
        idle_s=IDLE_S if training.session.keepers_dir else ALONE_IDLE_S, clock_s=training.clock_s,
        every_step=snapshots, waiting=training.watch.waiting, slot=training.rank.slot,
    )  # fmt: skip
    hook = training.optimizer.register_step_pre_hook(lambda *_: pipeline.before_change())
    end = pipeline.leave if training.rank.generation else pipeline.close
    try:
        yield Saves(training, pipeline)
        end = pipeline.close
    finally:
        hook.remove()
        end()


def keeper_place(session: Session) -> Place:
    """In the attempt's folder; outside Phalanx in a private one below the system's temporary folder, one for each job folder.

    Raises SetupError when a stranger owns that.
    """
    if session.keepers_dir:
        return Place(folder=Path(session.keepers_dir), slot=session.local_rank, attempt=session.attempt)
    whose = hashlib.sha256(f"{Path(session.job_dir).resolve()} {session.attempt}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"phalanx-keepers-{os.getuid()}-{whose}"
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise SetupError("keepers", str(folder), "remove it: it is not a folder of this user")
    folder.chmod(0o700)
    return Place(folder=folder, slot=session.local_rank, attempt=session.attempt)
