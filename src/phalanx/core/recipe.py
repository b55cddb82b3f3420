"""Configuration of the built-in training recipes. Here, not in `job`, so that a bad hyperparameter is refused at submit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from pydantic import ConfigDict

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.fp8 import fp8_problems, is_fp8
from phalanx.core.health import SpikeAction
from phalanx.core.llama_shape import NORM_EPSILON, ROPE_BASE, LlamaShape
from phalanx.core.llama_sizes import SIZES, over_size
from phalanx.core.lora import ALL, Lora, lora_problems, targets_of
from phalanx.core.moe import RouterScore, expert_problems
from phalanx.core.recipe_checks import determinism_problem, run_problems
from phalanx.core.vit_recipe import GIVEN_FIELDS, IMAGES_FREE, IMAGES_NEWER, VitRecipe
from phalanx.core.vit_sizes import over_size as over_vit_size

Switch = Literal["auto", True, False]
FREE: Final = (
    "activation_checkpointing", "activation_blocks", "activation_budget", "reshard_after_forward", "prefetch_blocks", "offload",
    "offload_dir",
)  # fmt: skip
"""Fields by which a run is faster or smaller, and by which none of its losses changes: a run may go on with others."""
_BUDGET: Final = 0.5
_BLOCKS_MAX: Final = 10_000
"""Where the number of layers is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaRecipe:
    """Recipe `llama`: train a Llama-style decoder on token shards, from nothing or from given weights. The defaults are the demo's
    1.85M-parameter model.

    dim: width of the residual stream; a multiple of `heads` where `head_dim` does not say the width of a head.
    layers: decoder blocks.
    heads: attention heads.
    ffn_dim: inner width of the SwiGLU feed-forward.
    sequence: tokens per sample.
    batch_per_rank: samples per rank in one microbatch; of ranks that share their samples, of all of them together.
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
    dtype: arithmetic of the forward pass; `auto` is bf16 on CUDA and on CPUs with AMX, fp32 on others. `fp8` and `fp8_rowwise`
        are bf16 whose blocks' matrix products are of 8-bit floats, with one scale a tensor or one a row.
    eval_batches: held-out batches (each one microbatch a rank) scored before the first update and after the last; 0 for none, as
        for data of which nothing is held out.
    on_spike: what is done about a loss that is no number or far above those before it. `skip` makes no update in that step;
        `rollback` also puts the weights of the last checkpoint back, and the data since it is not trained on; `stop` ends the run.
    spike_budget: times it may be done in 1,000 steps; beyond, a loss that is no number ends the run and any other is trained on.
    recompute_every: steps between two looks for silent corruption, each of which costs about one microbatch; 0 for none.
    size: a known size, whose shape the fields of the shape go over; empty for none. It is filled in by `written_out`.
    init: folder of a model to begin with: Hugging Face's config.json and safetensors, or one that a run saved. Its shape is the
        model's; empty begins with drawn weights.
    vocab: tokens that the model knows; 0 for as many as the data's tokenizer has, never fewer.
    kv_heads: heads of keys and values; 0 for as many as `heads`, which they divide.
    head_dim: width of a head; 0 for dim / heads.
    rope_base: base of the rotary positions' frequencies.
    rope_factor: how many times longer the context became than it was trained for, as Llama 3.1 stretches it; 1 for not at all.
    rope_low: turns in the trained context below which a frequency is stretched whole.
    rope_high: turns above which it is not stretched.
    rope_trained: tokens of the context before it was stretched.
    norm_epsilon: added to the mean square in each norm.
    qkv_bias: whether q, k and v have biases, as Qwen2's.
    qk_norm: whether each head's q and k are normed, as Qwen3's.
    tied: whether the output layer is the embedding.
    lora_rank: inner width of low-rank adapters on the weights of `init`, which stay as they are; 0 trains all weights.
    lora_alpha: what adapters add is multiplied by lora_alpha / lora_rank; 0 for 2 x lora_rank.
    lora_targets: layers with an adapter, between commas, or `all-linear`.
    compile: whether each block's training pass is compiled; `auto` does on CUDA.
    fused_loss: whether the loss is computed some tokens at a time, so that all logits are never held; `auto` does where those of
        one sample are many.
    activation_checkpointing: what is computed again in the backward pass instead of kept: nothing, whole blocks, or what is cheap
        for the memory that it takes.
    activation_blocks: every how many blocks that is done.
    activation_budget: of `selective`: the share of the bytes of a block's products that may be kept.
    deterministic: whether a step gives the same bits each time; without it CUDA has faster kernels, and cuDNN's attention.
    reshard_after_forward: whether a block's gathered weights are let go of between its forward and its backward pass; `auto` does
        but over a pipeline.
    prefetch_blocks: of how many blocks ahead the weights are asked for; 0 leaves it to FSDP.
    reduce_dtype: in which gradients are summed over the ranks.
    offload: where AdamW's moments lie: beside the weights, in the host's memory (`cpu`), or in a file on a disk (`nvme`).
    offload_dir: the folder of that file on each node; empty for the attempt's own.
    experts: feed-forwards of each block, of which each token takes a few; 0 for a dense model, which the rest is not for.
    experts_per_token: of how many the answers are added up.
    expert_ffn_dim: inner width of an expert; 0 for `ffn_dim`.
    shared_experts: further ones that every token takes.
    dense_layers: the first blocks keep one feed-forward, of `ffn_dim`.
    router: how a router's answers become scores.
    router_normalise: the weights of a token's experts add up to 1.
    router_scale: factor on those weights.
    balance_rate: by how much an expert's bias changes after a step in which it got more or less than its part; 0 for never.
    balance_loss: factor on a loss that is least where the tokens of each sequence spread evenly; 0 for none.
    place_experts_every: steps between two looks at whether experts that lie over ranks (`layout.ep`) should change places; 0 for
        none.
    expert_replicas: experts of each block that a rank may compute beside its own, by the same looks: parts of the tokens of those
        that get the most.
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
    dtype: Literal["auto", "fp32", "bf16", "fp8", "fp8_rowwise"] = "auto"
    eval_batches: int = 16
    on_spike: SpikeAction = "skip"
    spike_budget: int = 8
    recompute_every: int = 1000
    # Newer fields stand below: at their defaults they are left out of `config_text`, so that older checkpoints go on.
    size: str = ""
    init: str = ""
    vocab: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    rope_base: float = ROPE_BASE
    rope_factor: float = 1.0
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_trained: int = 8192
    norm_epsilon: float = NORM_EPSILON
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    lora_rank: int = 0
    lora_alpha: float = 0.0
    lora_targets: str = ALL
    compile: Switch = "auto"
    fused_loss: Switch = "auto"
    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    activation_blocks: int = 1
    activation_budget: float = _BUDGET
    deterministic: bool = True
    reshard_after_forward: Switch = "auto"
    prefetch_blocks: int = 0
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    offload: Literal["none", "cpu", "nvme"] = "none"
    offload_dir: str = ""
    experts: int = 0
    experts_per_token: int = 2
    expert_ffn_dim: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    router: RouterScore = "sigmoid"
    router_normalise: bool = True
    router_scale: float = 1.0
    balance_rate: float = 0.001
    balance_loss: float = 0.0
    place_experts_every: int = 0
    expert_replicas: int = 0

    @property
    def lora(self) -> Lora | None:
        """The adapters that are trained; None where all weights are."""
        if not self.lora_rank:
            return None
        return Lora(rank=self.lora_rank, alpha=self.lora_alpha or 2 * self.lora_rank, targets=targets_of(self.lora_targets))

    def shape(self, vocab: int) -> LlamaShape:
        """Of the model, for data of `vocab` tokens."""
        return LlamaShape(**{name: getattr(self, name) for name in SHAPE_FIELDS} | {"vocab": self.vocab or vocab})

    def problems(self) -> list[tuple[str, object, str]]:
        """(field, value, what to change) for each value that cannot work; empty when all can."""
        found = run_problems(self, ("dim", "layers", "heads", "ffn_dim", "sequence", "batch_per_rank", "accumulate", "steps"))
        found += self._shape_problems()
        found += self._speed_problems()
        found += self._offload_problems()
        return found + list(lora_problems(self.lora_rank, self.lora_alpha, self.lora_targets, self.init))

    def _shape_problems(self) -> Iterator[tuple[str, object, str]]:
        if self.size and self.size not in SIZES:
            yield "size", self.size, f"write one of {', '.join(SIZES)}"
        yield from expert_problems(self)
        for name in ("vocab", "kv_heads", "head_dim"):
            if getattr(self, name) < 0:
                yield name, getattr(self, name), "write 0 or more"
                return
        if min(self.dim, self.heads) < 1:
            return
        if not self.head_dim and self.dim % (2 * self.heads):
            yield "dim", self.dim, f"write a multiple of 2 x heads ({2 * self.heads}), or the width of a head as head_dim"
            return
        yield from self.shape(1).problems()
        if not self.init:
            yield from fp8_problems(self.shape(1), self.dtype, is_given=False)

    def _speed_problems(self) -> Iterator[tuple[str, object, str]]:
        blocks = self.layers if self.layers > 0 and not self.init else _BLOCKS_MAX
        for name, least in (("activation_blocks", 1), ("prefetch_blocks", 0)):
            if not least <= getattr(self, name) <= blocks:
                yield name, getattr(self, name), f"write a whole number from {least} to the number of layers ({blocks})"
        if not 0 <= self.activation_budget <= 1:
            yield "activation_budget", self.activation_budget, "write a number from 0 to 1"
        yield from determinism_problem(self)
        if is_fp8(self.dtype) and self.lora_rank:
            yield "dtype", self.dtype, "write bf16: low-rank adapters have no 8-bit products"
        if self.activation_checkpointing == "selective" and self.experts:
            fix = "write full or none: what a budget keeps of experts is not known"
            yield "activation_checkpointing", self.activation_checkpointing, fix
        if self.activation_checkpointing == "none" and self.activation_blocks > 1:
            yield (
                "activation_blocks",
                self.activation_blocks,
                "write activation_checkpointing: full or selective too, or leave it out",
            )
        if self.activation_checkpointing != "selective" and self.activation_budget != _BUDGET:
            yield "activation_budget", self.activation_budget, "write activation_checkpointing: selective too, or leave it out"

    def _offload_problems(self) -> Iterator[tuple[str, object, str]]:
        if self.offload_dir and self.offload != "nvme":
            yield "offload_dir", self.offload_dir, "write offload: nvme too, or leave it out"
        if self.offload_dir and not self.offload_dir.startswith("/"):
            yield "offload_dir", self.offload_dir, "write an absolute path: it is a folder of each node"


SHAPE_FIELDS: Final = tuple(one.name for one in fields(LlamaShape))
"""Hyperparameters that the folder of `init` says; each is a field of the recipe too."""
_NAMES: Final = [one.name for one in fields(LlamaRecipe)]
_FIRST_FIELDS: Final = frozenset(_NAMES[: _NAMES.index("recompute_every") + 1])


def written_out(given: Mapping[str, Any], recipe: str = "llama") -> dict[str, Any]:
    """The hyperparameters that a job gives a recipe, with those of the size that it names. Every way to a recipe goes through here.

    Raises SpecError for a shape beside `init`.
    """
    of_images = reads_images(recipe)
    if not given.get("init"):
        return over_vit_size(given) if of_images else over_size(given)
    for name in ("size", *(GIVEN_FIELDS if of_images else SHAPE_FIELDS)):
        if name in given:
            raise SpecError(f"hyperparameters.{name}", given[name], "leave it out: the folder of init says the model's shape")
    return dict(given)


def of_given(recipe: LlamaRecipe, shape: LlamaShape) -> LlamaRecipe:
    """With the shape of the model that its `init` names. Raises SpecError for what such a model cannot have: who had not seen it
    could not tell."""
    known = replace(recipe, **{name: getattr(shape, name) for name in SHAPE_FIELDS})
    for name, value, fix in (*known.problems(), *fp8_problems(shape, known.dtype, is_given=True)):
        raise SpecError(f"hyperparameters.{name}", value, fix)
    return known


AnyRecipe = LlamaRecipe | VitRecipe
"""Of what one trainer trains."""


def config_text(recipe: AnyRecipe) -> str:
    """What a checkpoint's configuration is: every field of the first version, and newer ones that say something about losses."""
    kind = type(recipe)
    said: dict[str, Any] = wire.plain(kind, recipe)
    usual = {one.name: one.default for one in fields(kind)}
    free = {*FREE, *IMAGES_FREE}
    first = _FIRST_FIELDS if kind is LlamaRecipe else usual.keys() - {*free, *IMAGES_NEWER}
    kept = {name: value for name, value in said.items() if name in first or (value != usual[name] and name not in free)}
    return wire.dumps(dict[str, Any], kept)


RECIPE_METRICS: Final = ("val_loss", "loss")
"""What every recipe can measure at a save: the held-out loss, and the loss of the step."""

RECIPES: Final[Mapping[str, type[AnyRecipe]]] = {"llama": LlamaRecipe, "vit": VitRecipe}
"""Recipe name, as written in a job spec, to its configuration."""


def metrics_of(name: str) -> tuple[str, ...]:
    """What the recipe of that name can measure at a save."""
    return (*RECIPE_METRICS, "val_accuracy") if reads_images(name) else RECIPE_METRICS


def reads_images(name: object) -> bool:
    """Whether it is the name of a recipe of images; others, and scripts, read tokens or what they will."""
    return isinstance(name, str) and RECIPES.get(name) is VitRecipe


def name_of(recipe: AnyRecipe) -> str:
    """As a job spec writes it."""
    return next(name for name, kind in RECIPES.items() if type(recipe) is kind)
