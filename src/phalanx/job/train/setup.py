"""Puts a rank's parts together: data, mesh, model, optimiser, and the checkpoint that the job left, if any."""

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, cast

import torch
from torch import Tensor

from phalanx.core import wire
from phalanx.core.errors import CheckpointError, SetupError, StoreUnavailable
from phalanx.core.recipe import LlamaRecipe
from phalanx.job.checkpoint.digest import state_digest
from phalanx.job.checkpoint.fence import Holder
from phalanx.job.checkpoint.folder import Folder, folder_at
from phalanx.job.checkpoint.manifest import Origin, check_fence
from phalanx.job.checkpoint.restore import ANY_DATA, Found, Patience, find, load
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.save import Identity, SavePolicy
from phalanx.job.checkpoint.state import training_state
from phalanx.job.checkpoint.together import decided_by_rank_zero
from phalanx.job.data.cursor import EXTRA, Cursor
from phalanx.job.data.draws import DataOrder
from phalanx.job.data.sound import BadData
from phalanx.job.data.sources import Sources
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.sdk.session import Session
from phalanx.job.train.agree import check_all_agree, on_bad_blocks
from phalanx.job.train.audit import Audit, tell
from phalanx.job.train.batches import (
    Batch,
    HeldOut,
    batch_of_run,
    first_batch,
    order_of_run,
    shared_batches,
    train_batches,
)
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import Feed
from phalanx.job.train.guard import Guard
from phalanx.job.train.local_time import LocalTimer
from phalanx.job.train.mfu import peak_flops
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import layout_of, make_mesh, sharded_llama
from phalanx.job.train.planted import planted
from phalanx.job.train.precision import Dtype, choose_dtype
from phalanx.job.train.set_aside import tell_set_aside
from phalanx.job.train.watch import Watch

_log: Final = logging.getLogger(__name__)

STATE: Final = "state"
CURSOR: Final = EXTRA


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """All that a run needs. `train_batch(step)` gives this rank's samples, `shared_batch(step)` rank 0's first ones. feed: what
    `train_batch` reads from."""

    session: Session
    recipe: LlamaRecipe
    rank: Rank
    data: Sources
    model: Llama
    optimizer: torch.optim.Optimizer
    feed: Feed
    train_batch: Callable[[int], Tensor]
    batch: Batch
    held_out: HeldOut
    policy: SavePolicy
    identity: Identity
    peak_flops_total: float
    clock_s: Callable[[], float]
    unix_ms: Callable[[], int]
    guard: Guard
    local_time: LocalTimer
    shared_batch: Callable[[int], Tensor]
    audit: Audit
    watch: Watch = field(default_factory=Watch)

    @property
    def order(self) -> DataOrder:
        """In which the next step is read."""
        return self.feed.order

    @property
    def shape(self) -> LlamaShape:
        return self.model.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where the run begins: after `step` updates. `val_loss_first` is None when it still has to be measured. from_memory: what is
    durable may be older."""

    step: int
    val_loss_first: float | None
    checkpoint: str
    from_memory: bool = False


def set_up(
    session: Session,
    recipe: LlamaRecipe,
    data: Sources,
    rank: Rank,
    clock_s: Callable[[], float],
    unix_ms: Callable[[], int],
    watch: Watch | None = None,
) -> tuple[Training, Start]:
    """A collective of all ranks.

    Raises CheckpointError when the job's checkpoints cannot be continued, DataError or SpecError when the ranks differ.
    """
    check_all_agree(session, recipe, data.agreed)
    claim(session, rank)
    found = find(checkpoints_of(session), of_any_data(origin_of(recipe, data, rank)), patience_of(session))
    dtype = dtype_of_run(found, recipe, rank, clock_s)
    batch = batch_of(found, recipe, rank)
    training = assemble(session, recipe, data, rank, dtype, batch, clock_s, unix_ms, watch, fresh=found is None)
    return training, _resume(training, found)


def assemble(
    session: Session,
    recipe: LlamaRecipe,
    data: Sources,
    rank: Rank,
    dtype: Dtype,
    batch: Batch,
    clock_s: Callable[[], float],
    unix_ms: Callable[[], int],
    watch: Watch | None = None,
    fresh: bool = True,
) -> Training:
    """A new model with its optimiser over the mesh of the gang that is, and all that belongs to them. fresh: with initial weights,
    else with none, for who loads them. A collective of all ranks."""
    shape = LlamaShape(vocab=data.vocab_size, dim=recipe.dim, layers=recipe.layers, heads=recipe.heads, ffn_dim=recipe.ffn_dim)
    model = sharded_llama(shape, recipe, rank, make_mesh(rank), dtype, fresh)
    optimizer = make_adamw(model, recipe)
    local_time = LocalTimer(model.blocks, rank.device)
    order = order_of_run(data, recipe, batch)
    asked = data.asked
    told = partial(tell_set_aside, session) if rank.rank == 0 else None
    bad_data = BadData(policy=asked.on_bad_data, share_max=asked.bad_data_max, agree=on_bad_blocks, told=told)
    feed = Feed(data, order, recipe.sequence, rank, bad_data, recipe.steps)
    return Training(
        session=session,
        recipe=recipe,
        rank=rank,
        data=data,
        model=model,
        optimizer=optimizer,
        feed=feed,
        train_batch=planted(session, model.blocks[0], train_batches(feed, recipe, batch)),
        batch=batch,
        held_out=HeldOut(data, recipe, rank, batch),
        policy=SavePolicy(root=checkpoints_of(session), every=session.checkpoint_every, keep=keep_of(session)),
        identity=Identity(
            origin=origin_of(recipe, data, rank),
            dtype=dtype,
            device=rank.device,
            attempt=session.attempt,
            generation=rank.generation,
        ),
        peak_flops_total=peak_flops(rank.device_name) * rank.world_size,
        clock_s=clock_s,
        unix_ms=unix_ms,
        guard=Guard(recipe),
        local_time=local_time,
        shared_batch=shared_batches(feed, recipe),
        audit=Audit(recipe.recompute_every, rank),
        watch=watch or Watch(),
    )


def checkpoints_of(session: Session) -> Folder:
    return folder_at(session.checkpoints_at)


def origin_of(recipe: LlamaRecipe, data: Sources, rank: Rank) -> Origin:
    return Origin(config=config_hash(recipe), data=data.manifest_hash, world_size=rank.world_size, layout=layout_of(rank))


def of_any_data(origin: Origin) -> Origin:
    """To find what this run may continue: whether its data may go on is said by the data cursor, since a source that is read from a
    later step on changes the hash over all of them, and nothing of what was read."""
    return replace(origin, data=ANY_DATA)


def claim(session: Session, rank: Rank) -> None:
    """From here on older attempts and generations of the job commit no more. A collective of all ranks.

    Raises SetupError where checkpoints can never be written: nobody trains for hours to hear that.
    """
    holder = Holder(attempt=session.attempt, generation=rank.generation)
    decided_by_rank_zero(lambda: _claim(checkpoints_of(session), holder))


def claim_beside(session: Session, rank: Rank) -> None:
    """As `claim`, and nobody waits for it: a gang that goes on from memory reads no checkpoint, its store may be away, and every
    commit looks at the fence itself. No collective."""
    if rank.rank != 0:
        return
    holder = Holder(attempt=session.attempt, generation=rank.generation)

    def work() -> None:
        try:
            _claim(checkpoints_of(session), holder)
        except (CheckpointError, SetupError, OSError) as error:  # the next save says it to every rank
            _log.warning("the job's checkpoints could not be claimed: %s", error)

    threading.Thread(target=work, name="claim", daemon=True).start()


def dtype_of_run(found: Found | None, recipe: LlamaRecipe, rank: Rank, clock_s: Callable[[], float]) -> Dtype:
    """The checkpoint's where there is one: another machine's probe may answer otherwise, and the losses would differ."""
    if found is not None:
        return cast(Dtype, found.manifest.dtype)
    return decided_by_rank_zero(lambda: choose_dtype(recipe.dtype, rank.device, clock_s))


def batch_of(found: Found | None, recipe: LlamaRecipe, rank: Rank) -> Batch:
    """Raises SpecError for a world size that cannot keep the run's global batch, CheckpointError when that is not said."""
    if found is None:
        return first_batch(recipe, rank.world_size, rank.whole_size)
    samples = found.manifest.extra.get("global_batch")
    if not isinstance(samples, int) or samples < 1 or samples % (recipe.batch_per_rank * recipe.accumulate):
        raise CheckpointError(f"checkpoint {found.name}", dict(found.manifest.extra), "lacks the run's own numbers")
    return batch_of_run(samples, recipe, rank.world_size)


def keep_of(session: Session) -> Keep:
    return Keep(
        last=session.checkpoint_keep_last, best=session.checkpoint_keep_best, metric=session.checkpoint_best_metric,
        mode=session.checkpoint_best_mode, every=session.checkpoint_keep_every,
    )  # fmt: skip


def patience_of(session: Session) -> Patience:
    """With the place of the job's checkpoints. The first rank of each node says as an event of the job that it waits, and all in
    their logs."""
    wait_s = session.checkpoint_patience_s

    def said(reason: str) -> None:
        _log.warning("the job's checkpoints cannot be read yet: %s; asked again for %g s", reason, wait_s)
        if session.local_rank == 0:
            session.waits_for_checkpoints(reason=reason, wait_s=wait_s)

    return Patience(wait_s, said)


def _claim(root: Folder, holder: Holder) -> None:
    """A place that cannot be written now fails the saves, not the start. Raises SetupError for one that somebody has to change."""
    try:
        check_fence(root, holder)
    except StoreUnavailable as error:
        _log.warning("the job's checkpoints could not be claimed: %s", error)


def config_hash(recipe: LlamaRecipe) -> str:
    """SHA-256 of the recipe's configuration, every field written out."""
    return hashlib.sha256(wire.dumps(LlamaRecipe, recipe).encode()).hexdigest()


def state_numbers(training: Training, step: int, val_loss_first: float) -> dict[str, str | int | float | bool]:
    """What a checkpoint carries besides tensors. `samples`: global samples consumed by `step` updates, as the data cursor has them,
    which also knows of what data and in which order."""
    size, first = training.batch.samples, val_loss_first.hex()
    cursor = Cursor.after(step, training.order, training.data.manifests).to_json()
    return {"samples": step * size, "global_batch": size, "val_loss_first": first, CURSOR: cursor, **training.guard.numbers()}


def digest_numbers(training: Training, step: int) -> dict[str, str]:
    """What it carries besides `state_numbers`: a digest of all of its tensors, the same in every layout. Says where replicas of a
    part differ. A collective of all ranks that reads the whole state."""
    digest = state_digest(training_state(training.model, training.optimizer), training.rank.device)
    for name, odd in list(digest.odd.items())[:1]:
        tell(training, step, "state", name, odd)
    return {STATE: digest.text}


def check_cursor(extra: Mapping[str, object], step: int, order: DataOrder, data: Sources) -> str:
    """The data cursor of what was saved after `step`. Checkpoints of older versions have none: they are of one data set and the
    full shuffle, and the hashes of that and of their configuration, with the number of samples, said the same.

    Raises DataError for one of other data or of another order, CheckpointError for one of another step: weights and data are one.
    """
    if CURSOR not in extra:
        if not data.asked.is_read_plainly:
            raise CheckpointError(
                "data cursor", "(missing)", "the checkpoint is of a run over one folder; give data its path alone"
            )
        return Cursor.after(step, order, data.manifests).to_json()
    saved = str(extra[CURSOR])
    if (reached := Cursor.from_json(saved).next_step(order, data.manifests)) != step:
        raise CheckpointError(
            "data cursor", f"after step {reached}", f"weights and data cursor differ: the weights are of step {step}"
        )
    return saved


def resume_data(training: Training, saved: Mapping[str, object]) -> None:
    """Goes on without the damaged blocks that the run had set aside when this was saved. Raises DataError for no cursor, or one of
    another order."""
    if CURSOR in saved:
        training.feed.resume(Cursor.from_json(str(saved[CURSOR])))


def _check_data(training: Training, found: Found) -> str:
    """Goes on in the data of a checkpoint, whose cursor it gives. Raises as `check_cursor` and `resume_data` do."""
    extra, was = found.manifest.extra, found.manifest.origin.data
    if CURSOR not in extra and was != training.identity.origin.data:
        fix = f"the checkpoint was made with other data: that of this run has the hash {training.identity.origin.data}; use that"
        raise CheckpointError(f"data of checkpoint {found.name}", was, fix)
    resume_data(training, extra)
    return check_cursor(extra, found.manifest.step, training.order, training.data)


def _resume(training: Training, found: Found | None) -> Start:
    if found is None:
        return Start(step=0, val_loss_first=None, checkpoint="")
    patience = patience_of(training.session)
    _check_data(training, found)  # before gigabytes are read
    found = load(found, of_any_data(training.identity.origin), training.model, training.optimizer, training.rank.device, patience)
    step, extra = found.manifest.step, {CURSOR: _check_data(training, found), **found.manifest.extra}
    try:
        first = float.fromhex(str(extra["val_loss_first"]))
        training.guard.restore(extra)
        wanted = {**state_numbers(training, step, first), **digest_numbers(training, step)}
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"checkpoint {found.name}", dict(extra), "lacks the run's own numbers") from error
    if found.manifest.dtype != training.identity.dtype:
        fix = f"was made in {found.manifest.dtype} and newer ones, which are damaged, in {training.identity.dtype}; move those away"
        raise CheckpointError(f"checkpoint {found.name}", "dtype", fix)
    if extra.get(STATE) != wanted[STATE]:
        fix = (
            f"is the digest of what was saved, and what is in place now has {wanted[STATE]}: loading has changed weights or moments"
        )
        raise CheckpointError(f"checkpoint {found.name}", extra.get(STATE), fix)
    if dict(extra) != wanted:
        raise CheckpointError(f"checkpoint {found.name}", dict(extra), f"weights and data cursor differ; step {step} has {wanted}")
    for line in found.skipped:
        _log.warning("checkpoint refused: %s", line)
    _log.info("resumed after step %d from %s (%s)", step, found.name, found.manifest.dtype)
    if training.rank.rank == 0:
        size_bytes = found.manifest.size_bytes  # its maker may have died before it could say so
        training.session.checkpoint(step=step, path=found.path, digest=found.digest, size_bytes=size_bytes)
        training.session.resumed(step=step, checkpoint=found.name, skipped=found.skipped)
    return Start(step=step, val_loss_first=first, checkpoint=found.digest)
