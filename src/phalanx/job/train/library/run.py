"""`with phalanx.run() as run:`: what a script gets, each part of use without the others. See docs/library.md."""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.errors import UserError
from phalanx.job.checkpoint.state import Optimizers
from phalanx.job.data.manifest import Split
from phalanx.job.sdk import Session, attach
from phalanx.job.sdk.gang import attach as attach_gang
from phalanx.job.sdk.journal import Bell, Journal
from phalanx.job.train.device import Rank
from phalanx.job.train.library.checkpoints import Checkpoints, config_hash
from phalanx.job.train.library.group import joined, mesh_of
from phalanx.job.train.library.kept import Kept, Stateful
from phalanx.job.train.library.member import Member
from phalanx.job.train.library.notice import Notice
from phalanx.job.train.library.reading import RunLoader, Watched, prepared
from phalanx.job.train.library.steps import Steps, Value, step_of
from phalanx.job.train.traces.profile import Profile
from phalanx.job.train.traces.requested import Requested

_log: Final = logging.getLogger(__name__)
FOLDER: Final = "phalanx-run"
_LAST_SAVE_S: Final = 10.0
"""After an error: who starts the script again at once finds what was being saved."""
T = TypeVar("T")
_open: "Run | None" = None


class Run:
    """From `run`. Methods that all ranks call together say so; the others anyone may call."""

    def __init__(
        self, session: Session, rank: Rank, mesh: Mapping[str, int] | None, config: Mapping[str, Any], steps: int,
        member: Member | None = None,
    ) -> None:  # fmt: skip
        self.session = session
        self._rank, self._sizes, self._config, self._total = rank, mesh, dict(config), steps
        self._steps = Steps(session, rank.slot, steps, time.monotonic)
        self._profile = Profile(Path(session.artifacts_dir), rank.slot, rank.device)
        self._asked, self._requested = session.profile, Requested(session, rank.slot, self._profile)
        self._notice, self._member = Notice(), member
        self._loaders: dict[str, RunLoader] = {}
        self._checkpoints: Checkpoints | None = None
        self._reached = 0  # by `maybe_save` or `save`
        self._changes_then = 0
        self._has_told = member is None or member.place.generation == 1

    @property
    def rank(self) -> int:
        return self._rank.rank

    @property
    def local_rank(self) -> int:
        return self.session.local_rank

    @property
    def world_size(self) -> int:
        return self._rank.world_size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and evaluates for all."""
        return self._rank.rank == 0

    @property
    def device(self) -> torch.device:
        return self._rank.device

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """Of the job; what the script gave as `config` outside Phalanx, and beyond them."""
        return {**self._config, **self.session.hyperparameters}

    @cached_property
    def mesh(self) -> DeviceMesh:
        """Over all ranks, by the names given to `run`; one axis, `dp`, without. Its first use is a collective of all ranks."""
        return mesh_of(self._rank, self._sizes)

    def restore(self, model: nn.Module, optimizer: Optimizers = (), **others: Stateful) -> int:
        """Says what belongs to this run's checkpoints and loads the newest whole one: after which step to go on, at first 0.

        model: plain, DDP, or sharded (FSDP2, DTensor); on another number of ranks it is cut anew. optimizer: one, a list, or none.
        others: whatever has a `state_dict`, the same on all ranks: schedulers, scalers, averages, loaders of others. Random
        generators of torch, NumPy and Python, and the loaders of `loader`, belong to it without being named.

        A collective of all ranks. Raises UserError for what cannot be saved, CheckpointError for a checkpoint of another script or
        configuration, or when all are damaged.
        """
        if self._checkpoints is not None:
            raise UserError("restore", None, "was called before; name all that belongs together in one call")
        kept = Kept(model, optimizer, others)
        for name, loader in self._loaders.items():
            kept.add_loader(name, loader)
        layout = dict(self._sizes or {"dp": self.world_size})
        if -1 in layout.values():
            layout = dict(zip(layout, self.mesh.shape, strict=True))
        made = Checkpoints(self.session, self._rank, kept, self.hyperparameters, layout, time.monotonic, self.alive)
        step = made.restore()
        self._checkpoints, self._reached, self._changes_then = made, step, 0
        self.begin(step)
        return step

    def loader(
        self, path: str | os.PathLike[str] | None = None, *, sequence: int, batch: int, split: Split = "train", seed: int = 0,
        steps: int | None = None, epoch_steps: int | None = None, name: str = "data", **options: Any,
    ) -> RunLoader:  # fmt: skip
        """Batches [rows, sequence + 1] of prepared data, on this rank's device, in an order that is a function of seed and step.

        path: a folder or store that `phalanx data prepare` filled; the job's `data` when None. batch: rows of all ranks together in
        each step. steps: of the whole run, at which it ends; epoch_steps: of one iteration. options: of a DataLoader, such as
        num_workers; threads read ahead without any. Where it stands is in the checkpoints.

        Raises DataError for data that does not fit, UserError for a name that is taken.
        """
        if name in self._loaders:
            raise UserError("name", name, "is another loader's; give each its own")
        total = steps if steps is not None else self._total or None
        read, vocab_size = prepared(self.session, self._rank, path, sequence, batch, split, seed, total, epoch_steps, options)
        made = RunLoader(read, vocab_size, self.device, self._waited)
        self._loaders[name] = made
        if self._checkpoints is not None:
            self._checkpoints.kept.add_loader(name, made)
        return made

    def begin(self, step: int) -> None:
        """The next step begins now, after `step`: for scripts that go on from checkpoints of their own. `restore` does it too."""
        step = step_of(step, 0, "write how many steps are done, 0 or more")
        self._steps.begin(step)
        self._trace(step + 1)
        self._move(step)

    def batches(self, loader: Iterable[T]) -> Watched[T]:
        """The same batches from any loader, with the time that steps wait for them in records and traces."""
        return Watched(loader, self._waited)

    def log(self, step: int, *, tokens: int = 0, **values: Value) -> None:
        """Says that `step`, counted from 1, is done: its numbers are for the job's page and curves.
        Once a step, on every rank, after its update. A tensor on a GPU is read once it has arrived: this waits only for a device
        that is sixteen steps behind, and then for the oldest of them.

        loss: as it shall be shown, so the mean over ranks or this rank's. grad_norm, lr, mfu: shown too. tokens: of a step's whole
        batch. Any other name is a curve of its own, as rank 0 says it. Raises UserError for what is no number.
        """
        if not self._has_told:
            self._has_told = True
            if self._member is not None and self.is_first:
                self._member.tell(self.session, self._steps.newest)
        stalled_s = self._checkpoints.stepped() if self._checkpoints is not None else 0.0
        self._steps.log(step, stalled_s, tokens, values)
        self._trace(step + 1)
        self._move(step)

    def maybe_save(self, step: int, **metrics: float) -> bool:
        """Saves in the background where it is due: every `checkpoint.every` steps of the job, outside Phalanx of `run`. Whether one
        was begun. metrics: for `checkpoint.best_metric`. After the update and once a step.

        A collective of all ranks. Raises CheckpointError when a newer attempt of the job has taken over.
        """
        made = self._at(step)
        if not (made.is_due(step) or (self._total and step == self._total)):
            return False
        return self._save(made, step, metrics, must=step == self._total)

    def save(self, step: int, **metrics: float) -> None:
        """Saves the state after `step` in any case, also in the background. A collective of all ranks; raises as `maybe_save`."""
        made = self._at(step)
        if made.saved != step:
            self._save(made, step, metrics, must=True)

    def should_stop(self) -> bool:
        """Whether this job shall leave its devices soon (drain, preemption, pause): break out of the loop; the last step is saved
        at the end of the run, and another attempt goes on from it. The same answer on every rank, at most one question late.

        A collective of all ranks in which nobody waits; ask once a step. After the first question SIGTERM ends the process no more.
        """
        return self._notice.is_agreed()

    def profile(self, first: int, count: int = 3) -> None:
        """Traces steps first, first + 1, ... of this rank into the job's artifacts, with a summary. Steps are told apart by `log`.
        Where the job's file asks for traces, those are made and these are not. Raises UserError for steps that have begun
        already."""
        if self.session.profile is not None:
            _log.warning("steps %d to %d are not traced: the job asks for others", first, first + count - 1)
            return
        if self._requested.is_asked(first, count):
            _log.warning(
                "steps %d to %d are not traced for the script: some of them are for `phalanx profile`", first, first + count - 1
            )
            return
        self._profile.ask(first, count, self._steps.newest + 1)

    def _trace(self, next_step: int) -> None:
        self._ask_for_job(next_step)
        self._requested.at(next_step)
        self._profile.at(next_step)

    def _ask_for_job(self, next_step: int) -> None:
        """The steps that the job's file asks for, or what is left of them. Once."""
        asked, self._asked = self._asked, None
        if asked is not None and asked.first + asked.count > next_step:
            first = max(asked.first, next_step)
            self._profile.ask(first, asked.first + asked.count - first, next_step)

    def alive(self) -> None:
        """This rank goes on, in something long between two steps, such as an evaluation. See `recovery.hang_timeout`."""
        self._move(self._steps.newest)

    def finish(self) -> None:
        """At the end of the with-block: the last step is saved if it was not, and all saves are waited for. A collective of all
        ranks."""
        self._notice.finish()
        made = self._checkpoints
        if made is not None:
            if self._is_last_unsaved(made):
                self._save(made, self._reached, {}, must=True)
            made.finish()

    def close(self, failed: bool = False) -> None:
        """After the group was left, so that no other rank waits for this one. failed: after an error, when the device may never be
        done: only numbers that are here are written, and what goes wrong is logged and does not take the error's place."""
        self._notice.close()
        for part in (self._close_checkpoints, lambda: self._close_traces(failed), lambda: self._steps.flush(wait=not failed)):
            try:
                part()
            except Exception as error:
                if not failed:
                    raise
                _log.warning("after the error: %s: %s", type(error).__name__, error)
        if self.session.lost_records:
            _log.warning("%d records were lost: the record file could not be written", self.session.lost_records)

    def _close_traces(self, failed: bool) -> None:
        if failed:
            self._requested.drop()
        self._profile.close(failed)
        self._requested.tell()

    def _close_checkpoints(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close(_LAST_SAVE_S)

    def _at(self, step: int) -> Checkpoints:
        made = self._checkpoints
        if made is None:
            raise UserError("save", step, "call run.restore(model, optimizer) first: it says what is saved, and goes on from it")
        fix = f"steps count up from 1, and {self._reached} was reached; save after the update of a step"
        step = step_of(step, max(1, self._reached), fix)
        self._reached, self._changes_then = step, made.num_changes
        self._move(step)
        return made

    def _save(self, made: Checkpoints, step: int, metrics: Mapping[str, float], must: bool) -> bool:
        changes = made.num_changes
        begun = made.save(step, {name: float(value) for name, value in metrics.items()}, must)
        self._changes_then += made.num_changes - changes  # what torch does to moments that are not there yet is no step
        return begun

    def _is_last_unsaved(self, made: Checkpoints) -> bool:
        """And whether the state is still that of the step: an optimizer that went on since has made it another one's."""
        if self._reached == 0 or made.saved == self._reached or not made.kept.optimizers:
            return False
        if made.num_changes != self._changes_then:
            _log.warning("the state at the end is not saved: updates were made after step %d without a save", self._reached)
            return False
        return True

    def _waited(self, seconds: float) -> None:
        self._steps.waited(seconds)
        self._move(self._steps.newest)

    def _move(self, step: int) -> None:
        if self._member is not None:
            self._member.moved(step)


@contextmanager
def run(
    *, mesh: Mapping[str, int] | None = None, steps: int = 0, config: Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] = FOLDER, every: int = 100, keep_last: int = 2, deterministic: bool = False,
) -> Iterator[Run]:  # fmt: skip
    """One training run of this process's script. A collective of all ranks, at both ends.

    mesh: sizes of `run.mesh` by name, -1 for what is left. steps: of the whole run, for the job's page; the last is always saved; 0
    is not known. config: what makes a run another one: its checkpoints are refused by a run with another. deterministic: the
    switches that make two runs give the same bits, one thread a rank on a CPU among them.

    folder, every, keep_last: outside Phalanx where checkpoints, traces and records go, how often is saved, and how many stay; under
    Phalanx the job says so.

    Raises UserError for a second run in this process, and for an environment or a mesh that makes no sense.
    """
    global _open
    if _open is not None:
        raise UserError("phalanx.run()", None, "one run at a time in a process; leave the first before another is entered")
    if mesh is not None and not mesh:
        raise UserError("mesh", dict(mesh), "name its axes and their sizes, such as {'dp': -1, 'tp': 2}, or leave it out")
    config_hash(config or {})
    coordinated = attach_gang()
    member = Member(coordinated) if coordinated is not None else None
    session = _placed(attach(), Path(folder), every, keep_last)
    place = member.place if member is not None else None
    link = member.gang.store() if member is not None else None
    timeout_ms = member.timeout_ms if member is not None else 0
    with ExitStack() as after, joined(deterministic, place, link, timeout_ms) as rank:
        made = Run(session, rank, mesh, config or {}, steps, member)
        if mesh is not None:
            _ = made.mesh  # a size that does not fit is refused now
        after.push(lambda kind, *_: made.close(failed=kind is not None))
        _open = made
        try:
            yield made
            made.finish()
            if member is not None:
                member.rests()
        finally:
            _open = None


def _placed(session: Session, folder: Path, every: int, keep_last: int) -> Session:
    """Outside Phalanx all that it would keep goes into a folder."""
    if session.attempt or session.journal is not None:
        return session
    folder = folder.resolve()
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    return replace(
        session,
        job_dir=str(folder),
        artifacts_dir=str(folder / "artifacts"),
        checkpoint_every=int(os.environ.get("PHALANX_CHECKPOINT_EVERY") or every),
        checkpoint_keep_last=keep_last,
        journal=Journal(folder / f"rank-{session.rank}.records", Bell("", session.rank, time.monotonic)),
    )
