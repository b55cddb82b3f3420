"""What a generation goes on from: the newest state that the gang has in memory, made to fit however many ranks there are now."""

import contextlib
import functools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import nn

from phalanx.core.errors import NotFound, PhalanxError
from phalanx.job.checkpoint.from_memory import load
from phalanx.job.checkpoint.replicas import Kept, find, newest, node_of
from phalanx.job.checkpoint.rng import set_rng
from phalanx.job.checkpoint.state import set_training_state, training_state
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.train.device import Rank
from phalanx.job.train.snapshots import Note, Snapshots

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class State:
    """From `newest_state`. note: what else belongs to it. other: by rank of the gang that made it, where its part lies; empty where
    each rank's place has just what it needs."""

    step: int
    note: Note
    other: Sequence[Kept]
    _snapshots: Snapshots
    _rank: Rank

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
        """Puts it into a new model and optimizer; later snapshots are of a history that did not happen. False, on every rank, where
        one could not get its part, and why is in its log: then nothing of it may be used. A collective of all ranks."""
        error = ""
        try:
            if self.other:
                self._cut_anew(model, optimizer)
            else:
                self._snapshots.restore(model, optimizer, self._rank, self.step)
        except PhalanxError as failed:
            error = failed.sentence()
            _log.warning("the state after step %d cannot be had from memory: %s", self.step, error)
        return not any(told_by_all(error))  # and nobody takes its memory anew while another still reads there

    def stays_elsewhere(self) -> None:
        """Where it lies in other places than this gang's own it stays there, and nobody need wait for memory before training."""
        if self.other:
            self._snapshots.fits_beside()

    def _cut_anew(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        rank, snapshots = self._rank, self._snapshots
        sources = [functools.partial(snapshots.read, one) for one in self.other]
        state = training_state(model, optimizer)
        generators = load(sources, self.step, self.other[0].generation, state, rank.rank)
        set_training_state(model, optimizer, state)
        own = generators if len(sources) == rank.world_size else {}
        set_rng(own, f"memory {self.step} of {len(sources)}", rank.rank, rank.world_size, rank.device)
        snapshots.forget_after(self.step)


def newest_state(snapshots: Snapshots, rank: Rank) -> State | None:
    """Of all places that the gang ever had; None when none is whole. A collective of all ranks."""
    kept = snapshots.gathered()
    at = newest(kept)
    if at is None:
        return None
    if at.world_size == rank.world_size and snapshots.recall() == at.step:
        return State(at.step, snapshots.note(at.step), (), snapshots, rank)
    other = [one for one in (find(kept, at, other, snapshots.place) for other in range(at.world_size)) if one is not None]
    note = _note(snapshots, other)
    return State(at.step, note, other, snapshots, rank) if note is not None else None


def _note(snapshots: Snapshots, kept: Sequence[Kept]) -> Note | None:
    """Every rank of that gang has said the same; who has one on its node tells the others."""
    mine = None
    for one in kept:
        if mine is None and one.node == node_of(snapshots.place):
            with contextlib.suppress(NotFound), contextlib.closing(snapshots.read(one)) as sealed:
                mine = sealed.seal_of(one.step, one.generation).note
    text = next((told for told in told_by_all(mine) if told is not None), None)
    return cast(Note, json.loads(text)) if text is not None else None
