"""The run's side of its checkpoints: when one is begun, and what is said of it once it is durable, late or lost."""

import hashlib
import logging
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.job.checkpoint.commit import Saved, SaveFailed
from phalanx.job.checkpoint.keeper.place import IDLE_S, Place
from phalanx.job.checkpoint.live import LiveState
from phalanx.job.checkpoint.pipeline import Delayed, Pipeline
from phalanx.job.sdk.session import Session
from phalanx.job.train.measure import measure
from phalanx.job.train.often import Rhythm
from phalanx.job.train.resumed import digest_numbers, state_numbers
from phalanx.job.train.setup import Training
from phalanx.job.train.snapshots import Snapshots

_log: Final = logging.getLogger(__name__)
TROUBLE_EVERY_S: Final = 600.0
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
        self._told_s: dict[bool, float] = {}
        self._rhythm = Rhythm(training.session.checkpoint_mtbf_s, training.clock_s) if training.session.checkpoint_mtbf_s else None

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
            if training.policy.keep.metric != "val_loss":  # costs a pass over the held-out samples
                return {"loss": loss}
            return {"loss": loss, "val_loss": measure(training, "val_loss", step)}

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
                case Saved():
                    self._tell_saved(outcome)
                case Delayed(step=step, reason=reason):
                    _log.warning("checkpoint of step %d not saved yet: %s; it is tried again, and training goes on", step, reason)
                    self._tell_trouble(step, reason, lost=False)
                case SaveFailed(step=step, reason=reason):
                    self.failed += 1
                    self._tell_trouble(step, reason, lost=True)
                    _log.warning("checkpoint of step %d not saved: %s; going on from the one before", step, reason)

    def _tell_trouble(self, step: int, reason: str, lost: bool) -> None:
        """As an event of the job: of each kind one in a while, by one rank of each node, and of what is lost for all by the first
        rank that lives."""
        session, now_s = self._training.session, self._training.clock_s()
        speaks = self._training.rank.rank == 0 if lost else session.local_rank == 0
        if speaks and now_s >= self._told_s.get(lost, -math.inf) + TROUBLE_EVERY_S:
            self._told_s[lost] = now_s
            session.trouble(step=step, reason=reason, lost=lost)

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

    def _tell_saved(self, saved: Saved) -> None:
        """On rank 0, which alone hears of it; not always in the order of steps."""
        if saved.step > self._newest_step:
            self._newest_step, self.newest = saved.step, saved.digest
        self._told_s.clear()  # the next trouble is news again
        self._training.session.checkpoint(step=saved.step, path=saved.path, digest=saved.digest, size_bytes=saved.size_bytes)
        if self._rhythm is not None:
            self._rhythm.durable(saved.step)
        _log.info("checkpoint of step %d saved", saved.step)


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
    pipeline = Pipeline(
        keeper_place(training.session), training.policy, training.identity, live,
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
