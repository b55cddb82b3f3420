"""One optimiser step: gradients of every microbatch, their global mean, clip, update. Returns facts; records nothing itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.core.recipe import AnyRecipe
from phalanx.job.train.balance import balance, begin_step
from phalanx.job.train.clip import clip, global_norm
from phalanx.job.train.device import asked_so_far, synchronise
from phalanx.job.train.loss import sum_over_ranks
from phalanx.job.train.optimizer import lr_at, set_lr
from phalanx.job.train.passes import gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """loss: mean over the global batch. grad_norm: before clipping. Phase times are this rank's.

    updated: whether the update was made; all ranks decide alike.
    compute_s holds the collectives inside forward and backward; comm_s is the wait for the other ranks' losses and norms, which
    nothing hides.
    """

    loss: float
    grad_norm: float
    lr: float
    data_wait_s: float
    compute_s: float
    comm_s: float
    optimizer_s: float
    updated: bool


def _is_finite(step: int, loss: float, grad_norm: float) -> bool:
    return math.isfinite(loss) and math.isfinite(grad_norm)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    fetch: Callable[[int], Tensor],
    recipe: AnyRecipe,
    step: int,
    clock_s: Callable[[], float],
    moved: Callable[[int, int], None] = lambda step, mark: None,
    accepts: Callable[[int, float, float], bool] = _is_finite,
    before_agreement: Callable[[], None] = lambda: None,
    settles: bool = False,
) -> StepFacts:
    """Update `step`, counted from 1. `fetch(step)` gives this rank's samples as (accumulate, b, s + 1) on its device.
    `moved` hears of each mark that is passed: by them a rank that hangs is told from those that wait for it.

    `before_agreement` is called before ranks tell each other of their losses: after that none goes on without the others. settles:
    it may wait, which is then told apart from what the device computes.

    Makes no update unless `accepts(step, loss, gradient norm)`, which answers the same on every rank.
    """
    lr = lr_at(step, recipe)
    set_lr(optimizer, lr)
    marks: list[float] = []

    def mark() -> None:
        moved(step, len(marks))
        marks.append(clock_s())

    mark()
    microbatches = fetch(step)
    mark()
    begin_step(model, recipe.balance_loss / len(microbatches))
    mine = gradients(model, microbatches)
    computed = None if settles else asked_so_far(microbatches.device)
    if computed is None:
        synchronise(microbatches.device)
        mark()
    before_agreement()
    total, norm = sum_over_ranks(mine), global_norm(model)
    if computed is not None:
        computed.synchronize()  # now, not before: the device goes on with what was asked of it meanwhile
        mark()
    loss, grad_norm = torch.stack((total, norm.to(total.dtype))).tolist()
    loss /= len(microbatches) * dist.get_world_size()
    mark()
    updated = accepts(step, loss, grad_norm)
    if updated:
        clip(model, grad_norm, recipe.clip)
        optimizer.step()
        balance(model, recipe.balance_rate)
    optimizer.zero_grad()
    synchronise(microbatches.device)
    mark()
    data_wait_s, compute_s, comm_s, optimizer_s = (later - sooner for sooner, later in pairwise(marks))
    return StepFacts(
        loss=loss, grad_norm=grad_norm, lr=lr,
        data_wait_s=data_wait_s, compute_s=compute_s, comm_s=comm_s, optimizer_s=optimizer_s, updated=updated,
    )  # fmt: skip
