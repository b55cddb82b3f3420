"""What a generation goes on from: the newest state that the gang has in memory, made to fit however many ranks there are now."""

import contextlib
import functools
import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import nn

from phalanx.core.errors import NotFound, PhalanxError
from phalanx.job.checkpoint.from_memory import load
from phalanx.job.checkpoint.replicas import Kept, Moment, find, lacking, moment_of, newest, node_of
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

    at: Moment
    note: Note
    other: Sequence[Kept]
    _snapshots: Snapshots
    _rank: Rank

    @property
    def step(self) -> int:
        return self.at.step

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
        generators = load(sources, self.step, self.at.generation, state, rank.rank)
        set_training_state(model, optimizer, state)
        own = generators if len(sources) == rank.world_size else {}
        set_rng(own, f"memory {self.step} of {len(sources)}", rank.rank, rank.world_size, rank.device)
        snapshots.forget_after(self.step)


def newest_state(snapshots: Snapshots, rank: Rank, without: Collection[Moment] = ()) -> State | None:
    """Of all places that the gang ever had; None when none is whole, and rank 0's log says why. without: those that turned out not
    to be had. A collective of all ranks."""
    everything = snapshots.gathered()
    kept = [one for one in everything if moment_of(one) not in without]
    while (at := newest(kept)) is not None:
        where = snapshots.recall(kept, at) if at.world_size == rank.world_size else "elsewhere"
        if where == "here":
            return State(at, snapshots.note(at.step), (), snapshots, rank)
        other = [one for one in (find(kept, at, other, snapshots.place) for other in range(at.world_size)) if one is not None]
        if where == "elsewhere" and (note := _note(snapshots, other)) is not None:
            return State(at, note, other, snapshots, rank)
        kept = [one for one in kept if moment_of(one) != at]
    if rank.rank == 0 and rank.generation > 1:
        why = lacking(everything) if not without else "what was whole could not be had"
        _log.warning("no state of the whole gang is in memory (%s): the newest complete checkpoint counts", why)
    return None


def _note(snapshots: Snapshots, kept: Sequence[Kept]) -> Note | None:
    """Every rank of that gang has said the same; who has one on its node tells the others."""
    mine = None
    for one in kept:
        if mine is None and one.node == node_of(snapshots.place):
            with contextlib.suppress(NotFound), contextlib.closing(snapshots.read(one)) as sealed:
                mine = sealed.seal_of(one.step, one.generation).note
    text = next((told for told in told_by_all(mine) if told is not None), None)
    return cast(Note, json.loads(text)) if text is not None else None
