"""The run: from where it stands to the last step. One record a step, after that step's save and before the next step starts."""

import logging
from dataclasses import dataclass
from typing import Final

from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.records import StepRecord
from phalanx.job.checkpoint.commit import Saved, SaveFailed
from phalanx.job.checkpoint.save import save
from phalanx.job.checkpoint.state import training_state
from phalanx.job.train.evaluate import held_out_loss
from phalanx.job.train.mfu import mfu
from phalanx.job.train.setup import Start, Training, state_numbers
from phalanx.job.train.sizes import flops_per_token
from phalanx.job.train.step import StepFacts, train_step

_log: Final = logging.getLogger(__name__)
LINES_A_RUN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The end of a run. `checkpoint`: digest of the last manifest. `failed_saves`: checkpoints that a full disk cost."""

    step: int
    val_loss_first: float
    val_loss_final: float
    checkpoint: str
    failed_saves: int


def run(training: Training, start: Start) -> Trained:
    """A collective of all ranks. Raises UserError on divergence, StoreUnavailable when the last checkpoint cannot be written."""
    first = start.val_loss_first
    if first is None:
        first = _measure(training, "val_loss_first", start.step)
    checkpoint, failed_saves = start.checkpoint, 0
    for step in range(start.step + 1, training.recipe.steps + 1):
        match _one_step(training, step, first):
            case Saved(digest=digest):
                checkpoint = digest
            case SaveFailed(reason=reason):
                failed_saves += 1
                _log.warning("checkpoint of step %d not saved: %s; going on from the one before", step, reason)
            case None:
                pass
    final = _measure(training, "val_loss_final", training.recipe.steps)
    return Trained(
        step=training.recipe.steps, val_loss_first=first, val_loss_final=final, checkpoint=checkpoint, failed_saves=failed_saves
    )


def _one_step(training: Training, step: int, val_loss_first: float) -> Saved | SaveFailed | None:
    started_ms, started_s = training.unix_ms(), training.clock_s()
    facts = train_step(training.model, training.optimizer, training.train_batch, training.recipe, step, training.clock_s)
    trained_s = training.clock_s()
    if facts.diverged:
        training.session.step(_record(training, step, facts, started_ms, trained_s - started_s, 0.0))  # the curve shows where
        fix = f"training diverged at step {step} (gradient norm {facts.grad_norm}); lower lr or clip, or warm up longer"
        raise UserError("loss", facts.loss, fix)
    saved = _maybe_save(training, step, facts.loss, val_loss_first)
    ended_s = training.clock_s()
    record = _record(training, step, facts, started_ms, trained_s - started_s, ended_s - trained_s)
    training.session.step(record)
    tell(record, saved)
    return saved


def tell(record: StepRecord, saved: Saved | SaveFailed | None) -> None:
    """For `phalanx logs -f`: about twenty lines a run and one a checkpoint, of the first rank only."""
    if record.rank != 0:
        return
    if record.step % max(1, record.total_steps // LINES_A_RUN) == 0 or record.step == record.total_steps:
        numbers = f"loss {record.loss:.4f}  lr {record.lr:.3g}  {record.tokens_per_s:,.0f} tokens/s"
        _log.info("step %d/%d  %s", record.step, record.total_steps, numbers)
    if isinstance(saved, Saved):
        _log.info("checkpoint of step %d saved", record.step)


def _maybe_save(training: Training, step: int, loss: float, val_loss_first: float) -> Saved | SaveFailed | None:
    if not training.policy.due(step, training.recipe.steps):
        return None
    metrics = {"loss": loss}
    if training.policy.keep.metric == "val_loss":  # costs a pass over the held-out samples, so only when it decides what is kept
        metrics["val_loss"] = _measure(training, "val_loss", step)
    state, extra = training_state(training.model, training.optimizer), state_numbers(training, step, val_loss_first)
    saved = save(training.policy, training.identity, step, state, extra, metrics)
    match saved:
        case Saved(path=path, digest=digest, size_bytes=size_bytes) if training.rank.rank == 0:
            training.session.checkpoint(step=step, path=path, digest=digest, size_bytes=size_bytes)
        case SaveFailed(reason=reason) if step == training.recipe.steps:
            raise StoreUnavailable(f"the last checkpoint (step {step}) could not be written: {reason}")
    return saved


def _record(training: Training, step: int, facts: StepFacts, started_ms: int, step_s: float, checkpoint_s: float) -> StepRecord:
    """Times are cut, not rounded, so that the phases never add up to more than the step."""
    recipe, rank = training.recipe, training.rank
    tokens = training.batch.samples * recipe.sequence
    tokens_per_s = tokens / max(step_s, 1e-9)
    return StepRecord(
        rank=rank.rank,
        step=step,
        total_steps=recipe.steps,
        loss=facts.loss,
        loss_hex=facts.loss.hex(),
        grad_norm=facts.grad_norm,
        lr=facts.lr,
        tokens=tokens,
        tokens_per_s=tokens_per_s,
        mfu=mfu(tokens_per_s, flops_per_token(training.shape, recipe.sequence), training.peak_flops_total),
        started_ms=started_ms,
        ended_ms=started_ms + int((step_s + checkpoint_s) * 1000),
        data_wait_ms=int(facts.data_wait_s * 1000),
        compute_ms=int(facts.compute_s * 1000),
        comm_ms=int(facts.comm_s * 1000),
        optimizer_ms=int(facts.optimizer_s * 1000),
        checkpoint_ms=int(checkpoint_s * 1000),
    )


def _measure(training: Training, name: str, step: int) -> float:
    value = held_out_loss(training.model, training.held_out_batch, training.num_held_out)
    if training.rank.rank == 0:
        training.session.metric(step=step, name=name, value=value)
    _log.info("%s %.4f", name, value)
    return value
