"""A script's checkpoints: found and loaded once, then saved in the background, and what became of them told to the job."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.spec import Scalar
from phalanx.job.checkpoint.commit import Saved, SaveFailed
from phalanx.job.checkpoint.keeper.place import IDLE_S
from phalanx.job.checkpoint.manifest import Origin
from phalanx.job.checkpoint.pipeline import Pipeline
from phalanx.job.checkpoint.restore import ANY_DATA, Found, find, load_tensors
from phalanx.job.checkpoint.save import Identity, SavePolicy
from phalanx.job.checkpoint.whole import Checkpoint
from phalanx.job.sdk.session import Session
from phalanx.job.train.device import Rank
from phalanx.job.train.library.generators import Generators, read_own, set_own
from phalanx.job.train.library.kept import Kept, KeptState
from phalanx.job.train.often import Rhythm
from phalanx.job.train.saves import ALONE_IDLE_S, keeper_place
from phalanx.job.train.setup import checkpoints_of, claim, keep_of, patience_of
from phalanx.job.train.told import SavesTold

_log: Final = logging.getLogger(__name__)
_POLL_S: Final = 0.02
_NO_LAST: Final = -1
"""Which step is the last is known to the run, not here."""


class Checkpoints:
    """Of one run. Each method that does not say otherwise is a collective of all ranks. saved: the newest step of which a save
    was begun. waited_s: for how long the script stood still for saves, until it is taken."""

    def __init__(
        self, session: Session, rank: Rank, kept: Kept, config: Mapping[str, Any], layout: Mapping[str, int],
        clock_s: Callable[[], float], waiting: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """waiting: called again and again in what may last as long as a store is away."""
        kept.numbers()  # what cannot be saved is refused before hours are spent
        self.kept = kept
        self.saved = 0
        self._waiting = waiting
        self._session, self._rank, self._clock_s = session, rank, clock_s
        origin = Origin(config=config_hash(config), data=ANY_DATA, world_size=rank.world_size, layout=layout)
        self._identity = Identity(
            origin=origin, dtype=_dtype(kept.model), device=rank.device, attempt=session.attempt, generation=rank.generation
        )  # fmt: skip
        self._policy = SavePolicy(root=checkpoints_of(session), every=session.checkpoint_every, keep=keep_of(session))
        self._rhythm = Rhythm(session.checkpoint_mtbf_s, clock_s) if session.checkpoint_mtbf_s else None
        self._pipeline: Pipeline | None = None
        self._told = SavesTold(session, rank.rank, clock_s, self._rhythm)
        self._hooks = [one.register_step_pre_hook(lambda *_: self._before_change()) for one in kept.optimizers]
        self.num_changes = 0  # of the state, by an optimizer
        self._under_way: set[int] = set()  # steps of saves

    def restore(self) -> int:
        """After which step the run goes on; 0 where there is no checkpoint. Raises CheckpointError, as `restore.load`."""
        claim(self._session, self._rank)
        origin, patience = self._identity.origin, patience_of(self._session)
        found = find(self._policy.root, origin, patience)
        if found is None:
            return 0
        self.kept.told(found)  # before gigabytes are read
        tensors = self.kept.tensors()
        own: list[Generators] = []

        def also(checkpoint: Checkpoint) -> None:
            own[:] = [read_own(checkpoint, self._rank.rank, self._rank.world_size)]

        found = load_tensors(found, origin, tensors, self._rank.device, patience, also=also)
        self.kept.restore(found, tensors)
        set_own(own[0])
        self._tell_resumed(found)
        self.saved, self.num_changes = found.manifest.step, 0
        return found.manifest.step

    def is_due(self, step: int) -> bool:
        """Asked after every step. No collective."""
        if self._rhythm is not None:
            return self._rhythm.is_due(step) or self._is_put_off(step)
        return self._is_put_off(step) or self._policy.due(step, _NO_LAST)

    def save(self, step: int, metrics: Mapping[str, float], must: bool) -> bool:
        """Begins to save the state after `step`; False when that was put off, since earlier ones are still being written. must: it
        waits for room instead."""
        if self._pipeline is None:
            self._pipeline = self._made()
        before_s = self._pipeline.stalled_s
        begun = self._pipeline.save(step, self.kept.numbers(), lambda: metrics, must)
        if begun:
            self.saved = step
            self._under_way.add(step)
            if self._rhythm is not None:
                self._rhythm.begun(step, self._pipeline.stalled_s - before_s)
            if not self.kept.optimizers:
                self._pipeline.before_change()  # nobody says when the state is changed next
        else:
            _log.warning("checkpoint of step %d put off: earlier ones are still being written", step)
        return begun

    def stepped(self) -> float:
        """Once a step: for how long the script stood still for saves in it. Says what has become of them. No collective."""
        waited_s = self._pipeline.take_stalled_s() if self._pipeline is not None else 0.0
        if self._rhythm is not None:
            self._rhythm.stepped(waited_s)
        self._tell()
        return waited_s

    def finish(self) -> None:
        """Waits for all that was begun. Raises StoreUnavailable when the newest was not saved."""
        if self._pipeline is None:
            return
        last = self._pipeline.finish()
        self._tell()
        if isinstance(last, SaveFailed):
            raise StoreUnavailable(f"the last checkpoint (step {last.step}) could not be written: {last.reason}")

    def close(self, wait_s: float = 0.0) -> None:
        """What was begun the keeper writes to the end, for which a rank that is alone can wait. No collective."""
        for hook in self._hooks:
            hook.remove()
        until_s = self._clock_s() + wait_s
        while self._under_way and self._rank.world_size == 1 and self._clock_s() < until_s:
            self._tell()
            time.sleep(_POLL_S)
        if self._pipeline is not None:
            self._pipeline.close()

    def _made(self) -> Pipeline:
        """Now that the moments are there. A collective of all ranks. Raises SetupError where memory is short."""
        return Pipeline(
            keeper_place(self._session), self._policy, self._identity, KeptState(self.kept, self._rank.rank),
            patience_s=self._session.checkpoint_patience_s, clock_s=self._clock_s,
            idle_s=IDLE_S if self._session.keepers_dir else ALONE_IDLE_S, slot=self._rank.slot,
            waiting=self._waiting,
        )  # fmt: skip

    def _is_put_off(self, step: int) -> bool:
        return self._pipeline is not None and self._pipeline.is_due(step, _NO_LAST)

    def _before_change(self) -> None:
        self.num_changes += 1
        if self._pipeline is not None:
            self._pipeline.before_change()

    def _tell_resumed(self, found: Found) -> None:
        for line in found.skipped:
            _log.warning("checkpoint refused: %s", line)
        _log.info("resumed after step %d from %s", found.manifest.step, found.name)
        if self._rank.rank == 0:
            step, size_bytes = found.manifest.step, found.manifest.size_bytes
            self._session.checkpoint(step=step, path=found.path, digest=found.digest, size_bytes=size_bytes)
            self._session.resumed(step=step, checkpoint=found.name, skipped=found.skipped)

    def _tell(self) -> None:
        for outcome in self._pipeline.news() if self._pipeline is not None else []:
            if isinstance(outcome, Saved | SaveFailed):
                self._under_way.discard(outcome.step)
            self._told.tell(outcome)


def config_hash(config: Mapping[str, Any] | Mapping[str, Scalar]) -> str:
    """Of what makes two runs different ones. Raises UserError for what is no JSON."""
    try:
        text = json.dumps(dict(config), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise UserError("config", None, f"give a mapping of numbers, texts and lists of them ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _dtype(model: torch.nn.Module) -> str:
    first = next(model.parameters(), None)
    return str(first.dtype).removeprefix("torch.") if first is not None else "none"
