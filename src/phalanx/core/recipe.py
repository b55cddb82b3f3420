"""Configuration of the built-in training recipes. Here, not in `job`, so that a bad hyperparameter is refused at submit."""

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import ConfigDict

from phalanx.core.health import SpikeAction

SPIKE_STEPS: Final = 1_000
"""Steps in which `spike_budget` may be spent once: long runs meet more bad batches than short ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaRecipe:
    """Recipe `llama`: pre-train a Llama-style decoder on token shards. The defaults are the demo's 1.85M-parameter model.

    dim: width of the residual stream; a multiple of `heads`.
    layers: decoder blocks.
    heads: attention heads.
    ffn_dim: inner width of the SwiGLU feed-forward.
    sequence: tokens per sample.
    batch_per_rank: samples per rank in one microbatch.
    accumulate: microbatches per optimiser step.
    steps: optimiser steps in the whole run.
    lr: peak learning rate, reached after `warmup_steps`, then cosine down to `lr * min_lr_ratio`.
    warmup_steps: steps of linear warm-up.
    min_lr_ratio: share of `lr` left at the last step.
    beta1: AdamW's first moment decay.
    beta2: AdamW's second moment decay.
    weight_decay: AdamW's decoupled decay.
    clip: largest global gradient norm.
    init_std: standard deviation of the initial weights.
    seed: of weights and data order.
    dtype: arithmetic of the forward pass; `auto` asks a matrix-product probe at start-up.
    eval_batches: held-out batches (each one microbatch a rank) scored before the first update and after the last; 0 for none, as
        for data of which nothing is held out.
    on_spike: what is done about a loss that is no number or far above those before it. `skip` makes no update in that step;
        `rollback` also puts the weights of the last checkpoint back, and the data since it is not trained on; `stop` ends the run.
    spike_budget: times it may be done in 1,000 steps; beyond, a loss that is no number ends the run and any other is trained on.
    recompute_every: steps between two looks for silent corruption, each of which costs about one microbatch; 0 for none.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    dim: int = 128
    layers: int = 4
    heads: int = 4
    ffn_dim: int = 352
    sequence: int = 64
    batch_per_rank: int = 8
    accumulate: int = 1
    steps: int = 400
    lr: float = 3e-3
    warmup_steps: int = 40
    min_lr_ratio: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0
    init_std: float = 0.05
    seed: int = 0
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    eval_batches: int = 16
    on_spike: SpikeAction = "skip"
    spike_budget: int = 8
    recompute_every: int = 1000

    def problems(self) -> list[tuple[str, object, str]]:
        """(field, value, what to change) for each value that cannot work; empty when all can."""
        positive = ("dim", "layers", "heads", "ffn_dim", "sequence", "batch_per_rank", "accumulate", "steps")
        found = [(name, getattr(self, name), "write a whole number above 0") for name in positive if getattr(self, name) < 1]
        found += [
            (name, getattr(self, name), "write a number above 0")
            for name in ("lr", "clip", "init_std")
            if not getattr(self, name) > 0
        ]
        found += [
            (name, getattr(self, name), "write a number from 0 up to, but not, 1")
            for name in ("beta1", "beta2")
            if not 0 <= getattr(self, name) < 1
        ]
        if not 0 <= self.min_lr_ratio <= 1:
            found.append(("min_lr_ratio", self.min_lr_ratio, "write a number from 0 to 1"))
        if not self.weight_decay >= 0:
            found.append(("weight_decay", self.weight_decay, "write 0 or more"))
        if self.warmup_steps < 0:
            found.append(("warmup_steps", self.warmup_steps, "write 0 or more"))
        if not 0 <= self.spike_budget <= SPIKE_STEPS:
            found.append(("spike_budget", self.spike_budget, f"write a whole number from 0 to {SPIKE_STEPS}"))
        found += [
            (name, getattr(self, name), "write 0 or more")
            for name in ("recompute_every", "eval_batches")
            if getattr(self, name) < 0
        ]
        if self.heads > 0 and self.dim % (2 * self.heads):
            found.append(("dim", self.dim, f"write a multiple of 2 x heads ({2 * self.heads})"))
        return found


RECIPE_METRICS = ("val_loss", "loss")
"""What every recipe can measure at a save: the held-out loss, and the loss of the step."""

RECIPES = {"llama": LlamaRecipe}
"""Recipe name, as written in a job spec, to its configuration."""
