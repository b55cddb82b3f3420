"""The run: from where it stands to the last step. One record a step, after that step's save and before the next step starts."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from phalanx.core.errors import UserError
from phalanx.core.records import StepRecord
from phalanx.core.vit_recipe import VitRecipe
from phalanx.job.train.collector import collected_at_steps
from phalanx.job.train.measure import measure, measure_all
from phalanx.job.train.mend import mend
from phalanx.job.train.mfu import mfu
from phalanx.job.train.recorded import recording
from phalanx.job.train.saves import Saves
from phalanx.job.train.setup import Start, Training
from phalanx.job.train.sizes import step_flops_per_token
from phalanx.job.train.step import StepFacts, train_step
from phalanx.job.train.traces.timeline import CHECKPOINT
from phalanx.job.train.traces.traced import Traced, traced

_log: Final = logging.getLogger(__name__)
LINES_A_RUN: Final = 20
WAIT_S_MIN: Final = 0.001
"""Of a batch: less has no cause worth a name, and is no millisecond of the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The end of a run. val_loss_*: NaN in one that measures none. `checkpoint`: digest of the last manifest. `failed_saves`:
    checkpoints that a full disk cost. scores: all that was measured at the end, by name."""

    step: int
    val_loss_first: float
    val_loss_final: float
    checkpoint: str
    failed_saves: int
    scores: Mapping[str, float] = field(default_factory=dict)


def run(training: Training, start: Start, saves: Saves) -> Trained:
    """A collective of all ranks. Raises UserError on divergence, StoreUnavailable when the last checkpoint cannot be written."""
    first = _steps(training, start, saves) if start.step < training.recipe.steps else start.val_loss_first
    assert first is not None, "a run that has made its steps knows where it began"
    if start.from_memory and start.step == training.recipe.steps:
        _save_again(training, saves, start, first)
    scores = measure_all(training, "val_loss_final", training.recipe.steps)
    final = scores.get("val_loss_final", math.nan)
    if training.held_out.num_batches and not math.isfinite(final):
        raise UserError("val_loss_final", final, "the weights are broken; lower lr or clip, or set on_spike to rollback")
    saves.finish()
    return Trained(
        step=training.recipe.steps, val_loss_first=first, val_loss_final=final, checkpoint=saves.newest or start.checkpoint,
        failed_saves=saves.failed, scores=scores,
    )  # fmt: skip


def _steps(training: Training, start: Start, saves: Saves) -> float:
    """All that are left. The held-out loss before the run's first one."""
    first = start.val_loss_first
    try:
        training.feed.start(start.step + 1)
        if first is None:
            first = measure(training, "val_loss_first", start.step)
        with recording(training, start), collected_at_steps() as collect, traced(training, start.step) as trace:
            for step in range(start.step + 1, training.recipe.steps + 1):
                trace.at(step)
                _one_step(training, saves, trace, step, first, start.checkpoint)
                collect(step)
    finally:
        training.feed.close()
    return first


def _one_step(training: Training, saves: Saves, trace: Traced, step: int, val_loss_first: float, checkpoint: str) -> None:
    """checkpoint: digest of the manifest from which the run went on."""
    started_ms, started_s = training.unix_ms(), training.clock_s()
    training.audit.compute(training, step, training.shared_batch)
    training.local_time.start()

    def accepts(step: int, loss: float, grad_norm: float) -> bool:
        training.audit.wake(training, step)
        return training.guard.accepts(step, loss, grad_norm)

    facts = train_step(
        training.model, training.optimizer, training.train_batch, training.recipe, step, training.clock_s,
        trace.moved, accepts, saves.before_agreement, saves.settles,
    )  # fmt: skip
    training.local_time.stop()
    if facts.updated:
        training.expert_places.stepped(step)
    error = None if facts.updated else mend(training, saves, step, facts)
    cause = training.feed.take_cause()
    facts, waited_s = _without_wait(facts, saves.take_waited_s())
    trained_s = training.clock_s()
    if error is not None:
        training.session.step(
            _record(training, step, facts, cause, started_ms, trained_s - started_s, waited_s, 0.0)
        )  # shows where
        raise error
    trace.phase(CHECKPOINT)
    if facts.updated or step == training.recipe.steps:
        saves.after(step, facts.loss, val_loss_first)
    training.watch.completed(training, step, val_loss_first, saves.newest or checkpoint)
    trace.phase("")
    training.audit.rest(training, step)
    ended_s = training.clock_s()
    record = _record(training, step, facts, cause, started_ms, trained_s - started_s, waited_s, ended_s - trained_s)
    training.session.step(record)
    trace.measured(step, record.mfu)
    if facts.updated:
        training.expert_loads.stepped(step)
    training.watch.recorded(training, step)
    tell(record, training.rank.rank)
    saves.tell()


def _save_again(training: Training, saves: Saves, start: Start, val_loss_first: float) -> None:
    """No step is left, and the save after the last one was the generation's before this, which commits no more."""
    recent = training.guard.curve.recent
    saves.after(start.step, recent[-1] if recent else val_loss_first, val_loss_first)
    training.watch.completed(training, start.step, val_loss_first, saves.newest or start.checkpoint)


def _without_wait(facts: StepFacts, waited_s: float) -> tuple[StepFacts, float]:
    """The wait for a copy is inside what was measured as the ranks' wait for each other, or as the optimizer's time; it is the
    checkpoint's."""
    of_comm_s = min(waited_s, facts.comm_s)
    of_optimizer_s = min(waited_s - of_comm_s, facts.optimizer_s)
    facts = replace(facts, comm_s=facts.comm_s - of_comm_s, optimizer_s=facts.optimizer_s - of_optimizer_s)
    return facts, of_comm_s + of_optimizer_s


def tell(record: StepRecord, rank: int) -> None:
    """For `phalanx logs -f`: about twenty lines a run, of the rank that is the first now, whatever its place in the whole gang."""
    if rank != 0:
        return
    if record.step % max(1, record.total_steps // LINES_A_RUN) == 0 or record.step == record.total_steps:
        waited = f"  waited {record.data_wait_ms} ms for data ({record.data_wait_cause})" if record.data_wait_cause else ""
        speed = f"{record.images_per_s:,.0f} images/s" if record.images else f"{record.tokens_per_s:,.0f} tokens/s"
        numbers = f"loss {record.loss:.4f}  lr {record.lr:.3g}  {speed}{waited}"
        _log.info("step %d/%d  %s", record.step, record.total_steps, numbers)


def _record(
    training: Training, step: int, facts: StepFacts, cause: str, started_ms: int, step_s: float, waited_s: float, save_s: float
) -> StepRecord:
    """Times are cut, not rounded, so that the phases never add up to more than the step. waited_s: of step_s, for a copy."""
    recipe, rank = training.recipe, training.rank
    flops = step_flops_per_token(training.shape, recipe)
    tokens = training.batch.samples * recipe.sequence
    tokens_per_s = tokens / max(step_s, 1e-9)
    return StepRecord(
        rank=rank.slot,
        step=step,
        total_steps=recipe.steps,
        loss=facts.loss,
        loss_hex=facts.loss.hex(),
        grad_norm=facts.grad_norm,
        lr=facts.lr,
        tokens=tokens,
        images=training.batch.samples if isinstance(recipe, VitRecipe) else 0,
        tokens_per_s=tokens_per_s,
        mfu=mfu(tokens_per_s, flops, training.peak_flops_total),
        started_ms=started_ms,
        ended_ms=started_ms + int((step_s + save_s) * 1000),
        data_wait_ms=int(facts.data_wait_s * 1000),
        data_wait_cause=cause if facts.data_wait_s >= WAIT_S_MIN else "",
        compute_ms=int(facts.compute_s * 1000),
        comm_ms=int(facts.comm_s * 1000),
        optimizer_ms=int(facts.optimizer_s * 1000),
        checkpoint_ms=int((waited_s + save_s) * 1000),
        local_us=training.local_time.last_us,
    )
