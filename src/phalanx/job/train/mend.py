"""What is done about a step that was not trained on: its samples are named, and weights put back where that was asked for."""

import logging
import math
from collections.abc import Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.core.errors import UserError
from phalanx.core.health import NAMED_MAX, BadSample, LossSpike
from phalanx.job.checkpoint.restore import find, load
from phalanx.job.data.draws import Draws
from phalanx.job.train.batches import train_draws
from phalanx.job.train.parallel import let_go
from phalanx.job.train.passes import losses_of
from phalanx.job.train.resumed import of_any_data
from phalanx.job.train.saves import Saves
from phalanx.job.train.setup import Training
from phalanx.job.train.spikes import Judged
from phalanx.job.train.step import StepFacts

_log: Final = logging.getLogger(__name__)


def mend(training: Training, saves: Saves, step: int, facts: StepFacts) -> UserError | None:
    """A collective of all ranks, right after a step that made no update. What to raise once the step's record is written.

    Raises CheckpointError when every checkpoint is damaged.
    """
    judged = training.guard.judged
    assert judged is not None and judged.action != "train"
    worst = worst_samples(training, step)
    weights_of = _put_back(training, saves, step) if judged.action == "rollback" else step - 1
    spike = _told(training, step, facts, judged, worst, weights_of)
    if training.rank.rank == 0:
        training.session.spike(spike)
        _log.warning("%s", spike.sentence())
    return _error(spike, judged) if judged.action == "stop" else None


@torch.no_grad()
def worst_samples(training: Training, step: int) -> tuple[BadSample, ...]:
    """The NAMED_MAX samples of the step's global batch with the highest losses under the weights as they are. The same on every
    rank; costs one forward pass."""
    model, device = training.model, training.rank.device
    model.eval()
    mine = torch.cat([losses_of(model, samples) for samples in training.train_batch(step)])
    model.train()
    let_go(model)
    everyone = [torch.empty_like(mine, device=device) for _ in range(training.rank.world_size)]
    dist.all_gather(everyone, mine)
    everyone = [everyone[reader] for reader in training.rank.readers]
    draws = train_draws(training.order, step)
    names = training.order.names if training.data.asked.sources else ("",)
    return _highest(torch.cat(everyone).cpu(), draws, names, (step - 1) * len(draws))


def _highest(losses: Tensor, draws: Draws, names: Sequence[str], first: int) -> tuple[BadSample, ...]:
    """What is no number is higher than any. names: of the sources."""
    height = torch.nan_to_num(losses, nan=math.inf, posinf=math.inf, neginf=math.inf)
    order = torch.argsort(height, descending=True, stable=True)[:NAMED_MAX].tolist()
    return tuple(
        BadSample(
            sample=first + at, row=int(draws.sample[at]), loss=_number(float(losses[at])), source=names[int(draws.source[at])]
        )
        for at in order
    )


def _put_back(training: Training, saves: Saves, step: int) -> int:
    """The weights, moments and random generators of the newest checkpoint, once all that were begun are written, so that it does
    not depend on the disk which that is; its step. Without one the weights stay."""
    saves.settle()
    origin = of_any_data(training.identity.origin)  # the newest may have been saved before a source was added
    found = find(training.policy.root, origin)
    if found is None:
        _log.warning("no checkpoint to go back to before step %d; the step is skipped", step)
        return step - 1
    found = load(found, origin, training.model, training.optimizer, training.rank.device, tensors=training.identity.tensors)
    training.watch.replaced()
    training.guard.roll_back(found.manifest.extra)
    training.expert_places.restore(found.manifest.extra)
    return found.manifest.step


def _told(
    training: Training, step: int, facts: StepFacts, judged: Judged, worst: tuple[BadSample, ...], weights_of: int
) -> LossSpike:
    size = training.batch.samples
    action = judged.action if judged.action != "train" else "skip"
    return LossSpike(
        rank=training.rank.slot,
        step=step,
        measured=_number(facts.loss),
        norm=_number(facts.grad_norm),
        usual=judged.usual,
        limit=judged.limit,
        action="skip" if action == "rollback" and weights_of == step - 1 else action,
        weights_of=weights_of,
        samples=((step - 1) * size, step * size - 1),
        worst=worst,
        at_ms=training.unix_ms(),
    )


def _error(spike: LossSpike, judged: Judged) -> UserError:
    budget = "; spike_budget is used up" if judged.spent else ""
    lost = spike.measured is None or spike.norm is None
    fix = "lower lr or clip, or warm up longer" if lost else "look at the samples named above, or set on_spike to skip or rollback"
    what = f"training diverged at step {spike.step}" if lost else f"the loss jumped at step {spike.step}"
    norm = math.nan if spike.norm is None else spike.norm
    loss = math.nan if spike.measured is None else spike.measured
    return UserError("loss", loss, f"{what} (gradient norm {norm}){budget}; {fix}")


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
