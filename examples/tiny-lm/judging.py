"""Whether the demo kept its promises. Pure: from what the platform recorded to a summary and the promises that do not hold."""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from killing import REPLAYED_MIN, Kill

from phalanx.core.records import StepRecord
from phalanx.core.views import JobView, LedgerView, ModelView

RATIO_MAX: Final = 0.7
"""Held-out loss at the end over the one before the first update."""

Recorded = tuple[str, StepRecord]
"""An attempt and a step that one of its ranks recorded."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Steps that were done again, and whether every reduced loss was the same float."""

    steps: int
    identical: bool


def replayed(recorded: Iterable[Recorded]) -> Replay:
    """Compares every step that more than one attempt recorded, on every rank."""
    losses: dict[tuple[int, int], dict[str, str]] = {}
    for attempt, record in recorded:
        losses.setdefault((record.rank, record.step), {})[attempt] = record.loss_hex
    again = {key: by_attempt for key, by_attempt in losses.items() if len(by_attempt) > 1}
    identical = all(len(set(by_attempt.values())) == 1 for by_attempt in again.values())
    return Replay(len({step for _, step in again}), identical)


def summary_of(job: JobView, kill: Kill | None, replay: Replay, model: ModelView, ledger: LedgerView) -> dict[str, Any]:
    """What .demo/summary.json says, but for `ok` and the time."""
    return {
        "restarts": job.restarts,
        "kill_step": kill.step if kill else None,
        "replayed_steps": replay.steps,
        "replayed_losses_identical": replay.identical,
        "val_loss_first": model.metrics.get("val_loss_first"),
        "val_loss_final": model.metrics.get("val_loss_final"),
        "weights_digest": model.weights_digest,
        "model": job.model,
        "ledger_balanced": ledger.balanced and ledger.capacity > 0 and sum(ledger.categories.values()) == ledger.capacity,
    }


def broken(summary: Mapping[str, Any], kill: Kill | None, every: int, job: JobView, recorded: Sequence[Recorded]) -> list[str]:
    """Which promises do not hold, in words; empty when the demo is ok. `every`: steps between saves."""
    first, final = summary["val_loss_first"], summary["val_loss_final"]
    learned = first is not None and final is not None and final <= RATIO_MAX * first
    promises = [
        (job.outcome == "succeeded", f"the job {job.outcome}: {job.detail}"),
        (summary["restarts"] == (1 if kill else 0), f"restarts = {summary['restarts']}"),
        (summary["replayed_losses_identical"], "a step done again gave another loss"),
        (learned, f"held-out loss went from {first} to {final} only"),
        (summary["ledger_balanced"], "the ledger does not sum to capacity"),
    ]
    found = [words for holds, words in promises if not holds]
    if kill is None:
        return found + ([f"replayed_steps = {summary['replayed_steps']}"] if summary["replayed_steps"] else [])
    return found + not_as_announced(summary, kill, every, job, recorded)


def not_as_announced(summary: Mapping[str, Any], kill: Kill, every: int, job: JobView, recorded: Sequence[Recorded]) -> list[str]:
    """A rank that falls elsewhere, or a resume from elsewhere, is not the story that was told."""
    if len(job.attempts) != 2:
        return [f"{len(job.attempts)} attempts instead of 2"]
    killed, resumed = job.attempts
    first = next((exited for exited in killed.exits if exited.first), None)
    last = max((record.step for attempt, record in recorded if attempt == killed.attempt), default=0)
    saved = kill.step // every * every
    promises = [
        (first is not None and (first.rank, first.code) == (kill.rank, -signal.SIGKILL), f"the first to fall was {first}"),
        (last == kill.step, f"the killed attempt ended after step {last}, not {kill.step}"),
        (resumed.resumed_step == saved, f"resumed after step {resumed.resumed_step}, not {saved}"),
        (summary["replayed_steps"] == kill.step - saved >= REPLAYED_MIN, f"replayed_steps = {summary['replayed_steps']}"),
    ]
    return [words for holds, words in promises if not holds]
