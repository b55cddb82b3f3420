"""Puts a rank's parts together: data, mesh, model, optimiser, and the checkpoint that the job left, if any."""

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor, nn

from phalanx.core.errors import CheckpointError, SetupError, StoreUnavailable
from phalanx.core.recipe import AnyRecipe, config_text
from phalanx.job.checkpoint.fence import Holder
from phalanx.job.checkpoint.folder import Folder, folder_at
from phalanx.job.checkpoint.manifest import Origin, check_fence
from phalanx.job.checkpoint.restore import Found, Patience, find
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.save import Identity, SavePolicy
from phalanx.job.checkpoint.together import decided_by_rank_zero
from phalanx.job.data.draws import DataOrder
from phalanx.job.data.sound import BadData
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.models.vit import Vit, VitShape
from phalanx.job.sdk.session import Session
from phalanx.job.train.agree import check_all_agree, on_bad_blocks
from phalanx.job.train.arithmetic import settle_arithmetic
from phalanx.job.train.audit import Audit
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
from phalanx.job.train.expert_loads import ExpertLoads
from phalanx.job.train.expert_places import ExpertPlaces
from phalanx.job.train.feed import Feed, RunData
from phalanx.job.train.guard import Guard
from phalanx.job.train.initial import agreed_digest
from phalanx.job.train.laid import laid_model
from phalanx.job.train.local_time import LocalTimer, local_timer
from phalanx.job.train.mfu import peak_flops
from phalanx.job.train.offload import offload_place
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import layout_of, make_mesh, placed
from phalanx.job.train.parallel.mesh import stage_mesh
from phalanx.job.train.pipeline.stage import RankPart
from phalanx.job.train.pipeline.whole import tensors_of
from phalanx.job.train.planted import planted
from phalanx.job.train.precision import Dtype, choose_dtype
from phalanx.job.train.resumed import INIT, of_any_data, resumed
from phalanx.job.train.set_aside import tell_set_aside
from phalanx.job.train.watch import Watch

if TYPE_CHECKING:
    from phalanx.job.train.traces.traced import Traced

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """All that a run needs. `train_batch(step)` gives this rank's samples, `shared_batch(step)` rank 0's first ones. feed: what
    `train_batch` reads from. model: this rank's part of it. init_digest: of the weights of the recipe's `init`. traces: that
    ended, and may still be written."""

    session: Session
    recipe: AnyRecipe
    rank: Rank
    data: RunData
    model: Llama | RankPart | Vit
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
    expert_loads: ExpertLoads
    expert_places: ExpertPlaces
    watch: Watch = field(default_factory=Watch)
    traces: list["Traced"] = field(default_factory=list)
    init_digest: str = ""

    @property
    def order(self) -> DataOrder:
        """In which the next step is read."""
        return self.feed.order

    @property
    def shape(self) -> LlamaShape | VitShape:
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
    recipe: AnyRecipe,
    data: RunData,
    rank: Rank,
    clock_s: Callable[[], float],
    unix_ms: Callable[[], int],
    watch: Watch | None = None,
) -> tuple[Training, Start]:
    """A collective of all ranks.

    Raises CheckpointError when the job's checkpoints cannot be continued, DataError or SpecError when the ranks differ, SpecError
    for a layout that does not fit them.
    """
    check_all_agree(session, recipe, data.agreed)
    rank = placed(rank, session, recipe)
    claim(session, rank)
    found = find(checkpoints_of(session), of_any_data(origin_of(recipe, data, rank)), patience_of(session))
    dtype = dtype_of_run(found, recipe, rank)
    batch = batch_of(found, recipe, rank)
    init_digest = agreed_digest(recipe, session.node, str(found.manifest.extra.get(INIT, "")) if found else "")
    made = (rank, dtype, batch, clock_s, unix_ms, watch)
    training = assemble(session, recipe, data, *made, fresh=found is None, init_digest=init_digest)
    if found is None:
        return training, Start(step=0, val_loss_first=None, checkpoint="")
    step, val_loss_first, checkpoint = resumed(training, found, patience_of(session))
    return training, Start(step=step, val_loss_first=val_loss_first, checkpoint=checkpoint)


def assemble(
    session: Session,
    recipe: AnyRecipe,
    data: RunData,
    rank: Rank,
    dtype: Dtype,
    batch: Batch,
    clock_s: Callable[[], float],
    unix_ms: Callable[[], int],
    watch: Watch | None = None,
    fresh: bool = True,
    init_digest: str = "",
) -> Training:
    """A new model with its optimiser over the mesh of the gang that is, and all that belongs to them. fresh: with initial weights,
    else with none, for who loads them. init_digest: see `Training`. A collective of all ranks."""
    settle_arithmetic(recipe.deterministic, rank.device)
    mesh = make_mesh(rank)
    model = laid_model(recipe, data, rank, mesh, dtype, batch.accumulate, fresh)
    optimizer = _optimizer(model, recipe, session, rank)
    local_time = local_timer(model.blocks, rank)
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
        train_batch=planted(session, next(iter(model.blocks)), train_batches(feed, recipe, batch)),
        batch=batch,
        held_out=HeldOut(data, recipe, rank, batch),
        policy=SavePolicy(root=checkpoints_of(session), every=session.checkpoint_every, keep=keep_of(session)),
        identity=Identity(
            origin=origin_of(recipe, data, rank),
            dtype=dtype,
            device=rank.device,
            attempt=session.attempt,
            generation=rank.generation,
            mesh=stage_mesh(mesh),
            tensors=tensors_of(model, optimizer, recipe.lora),
        ),
        peak_flops_total=peak_flops(rank.device_name) * rank.world_size,
        clock_s=clock_s,
        unix_ms=unix_ms,
        guard=Guard(recipe),
        local_time=local_time,
        shared_batch=shared_batches(feed, recipe),
        audit=Audit(recipe.recompute_every, rank),
        expert_loads=ExpertLoads(model, session, rank.rank == 0, recipe.steps),
        expert_places=ExpertPlaces(model, optimizer, recipe.place_experts_every, recipe.expert_replicas),
        watch=watch or Watch(),
        init_digest=init_digest,
    )


def _optimizer(model: nn.Module, recipe: AnyRecipe, session: Session, rank: Rank) -> torch.optim.Optimizer:
    """Raises StoreUnavailable where a gang that goes on after a fault has no room for moments elsewhere: the next attempt may."""
    try:
        return make_adamw(model, recipe, offload_place(session, recipe))
    except SetupError as error:
        if not rank.generation:
            raise
        raise StoreUnavailable(f"{error.sentence()}; the gang cannot go on with {rank.world_size} ranks") from error


def checkpoints_of(session: Session) -> Folder:
    return folder_at(session.checkpoints_at)


def origin_of(recipe: AnyRecipe, data: RunData, rank: Rank) -> Origin:
    return Origin(config=config_hash(recipe), data=data.manifest_hash, world_size=rank.world_size, layout=layout_of(rank))


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


def dtype_of_run(found: Found | None, recipe: AnyRecipe, rank: Rank) -> Dtype:
    """The checkpoint's where there is one: another machine may choose otherwise, and the losses would differ."""
    if found is not None:
        return cast(Dtype, found.manifest.dtype)
    return decided_by_rank_zero(lambda: choose_dtype(recipe.dtype, rank.device))


def batch_of(found: Found | None, recipe: AnyRecipe, rank: Rank) -> Batch:
    """Raises SpecError for a world size that cannot keep the run's global batch, CheckpointError when that is not said."""
    if found is None:
        return first_batch(recipe, rank.data_size, rank.whole_data_size)
    samples = found.manifest.extra.get("global_batch")
    if not isinstance(samples, int) or samples < 1 or samples % (recipe.batch_per_rank * recipe.accumulate):
        raise CheckpointError(f"checkpoint {found.name}", dict(found.manifest.extra), "lacks the run's own numbers")
    return batch_of_run(samples, recipe, rank.data_size, rank.model_size)


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


def config_hash(recipe: AnyRecipe) -> str:
    """SHA-256 of the recipe's configuration."""
    return hashlib.sha256(config_text(recipe).encode()).hexdigest()
