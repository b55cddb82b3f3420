"""What is wrong with the hyperparameters that every recipe has: its updates, their number, bad losses. Pure."""

from typing import Final, Protocol

from phalanx.core.health import SpikeAction

SPIKE_STEPS: Final = 1_000
"""Steps in which `spike_budget` may be spent once: long runs meet more bad batches than short ones."""

Problem = tuple[str, object, str]
"""(field, value, what to change)."""


class RunFields(Protocol):
    """As `LlamaRecipe` describes them."""

    @property
    def batch_per_rank(self) -> int: ...
    @property
    def accumulate(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def min_lr_ratio(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip(self) -> float: ...
    @property
    def init_std(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def eval_batches(self) -> int: ...
    @property
    def on_spike(self) -> SpikeAction: ...
    @property
    def spike_budget(self) -> int: ...
    @property
    def recompute_every(self) -> int: ...
    @property
    def deterministic(self) -> bool: ...


def run_problems(recipe: RunFields, positive: tuple[str, ...]) -> list[Problem]:
    """For each value that cannot work. positive: whole numbers that have to be above 0."""
    found: list[Problem] = [
        (name, getattr(recipe, name), "write a whole number above 0") for name in positive if getattr(recipe, name) < 1
    ]
    found += [
        (name, getattr(recipe, name), "write a number above 0")
        for name in ("lr", "clip", "init_std")
        if not getattr(recipe, name) > 0
    ]
    found += [
        (name, getattr(recipe, name), "write a number from 0 up to, but not, 1")
        for name in ("beta1", "beta2")
        if not 0 <= getattr(recipe, name) < 1
    ]
    if not 0 <= recipe.min_lr_ratio <= 1:
        found.append(("min_lr_ratio", recipe.min_lr_ratio, "write a number from 0 to 1"))
    if not recipe.weight_decay >= 0:
        found.append(("weight_decay", recipe.weight_decay, "write 0 or more"))
    if recipe.warmup_steps < 0:
        found.append(("warmup_steps", recipe.warmup_steps, "write 0 or more"))
    if not 0 <= recipe.spike_budget <= SPIKE_STEPS:
        found.append(("spike_budget", recipe.spike_budget, f"write a whole number from 0 to {SPIKE_STEPS}"))
    found += [
        (name, getattr(recipe, name), "write 0 or more")
        for name in ("recompute_every", "eval_batches")
        if getattr(recipe, name) < 0
    ]
    return found


def determinism_problem(recipe: RunFields) -> list[Problem]:
    """Of a look for silent corruption in a run whose steps are not the same bits each time."""
    if recipe.deterministic or recipe.recompute_every <= 0:
        return []
    fix = "write 0: a microbatch is computed twice to the same bits only if deterministic"
    return [("recompute_every", recipe.recompute_every, fix)]
