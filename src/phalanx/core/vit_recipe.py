"""Configuration of the recipe `vit`. Here, not in `job`, so that a bad hyperparameter is refused at submit."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from phalanx.core.errors import SpecError
from phalanx.core.health import SpikeAction
from phalanx.core.pixels import Normalise
from phalanx.core.recipe_checks import Problem, determinism_problem, run_problems
from phalanx.core.vit_shape import VitShape
from phalanx.core.vit_sizes import SIZES

THREADS_MAX: Final = 1_024
IMAGE_MAX: Final = 4_096
"""Pixels of a side: a sample of so many is 50 MB in memory, and several batches are read ahead."""
CLASSES_MAX: Final = 2**24
"""More than any data set has; a mistyped number would be weights without end."""
IMAGES_FREE: Final = ("decode_threads",)
"""Of this recipe alone, beside those of `recipe.FREE`: fields by which no loss changes."""
IMAGES_NEWER: Final = ("init",)
"""Fields that, at their defaults, are left out of `recipe.config_text`, so that older checkpoints go on."""
_POSITIVE: Final = ("image", "patch", "dim", "layers", "heads", "batch_per_rank", "accumulate", "steps")
_BLOCKS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VitRecipe:
    """Recipe `vit`: train a vision transformer on images of classes, from nothing or from given weights. The defaults are a
    0.8M-parameter model for images of 32 pixels. Fields that are not described here are those of `LlamaRecipe`; a sample is an
    image.

    init: the folder of a model to begin with, which says the shape but for `classes`; empty to draw the weights.
    size: a known size, whose shape the fields of the shape go over; empty for none.
    image: pixels of a side, to which each image is cut and scaled.
    patch: pixels of a side of each square that becomes a token.
    ffn_dim: inner width of the feed-forward; 0 for 4 x dim.
    classes: that the model tells apart; 0 for as many as the data names, never fewer.
    label_smoothing: share of a target that is spread over all classes, in training alone (arXiv:1512.00567).
    crop_min: least share of an image's area that a training sample is cut out of; 1 for the whole image's middle.
    flip: how often a training image is mirrored, from 0 to 1.
    normalise: what pixels from 0 to 1 become: `half` from -1 to 1, `imagenet` of mean 0 and deviation 1 over ImageNet.
    held_out: samples at the end of the data that are never trained on, and that the run is scored on.
    decode_threads: of each rank, which read, decode and cut images ahead of the step; 0 for as many as it has processors.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    # Of a model that has only whole weights and no experts, what parts of the trainer that serve every model ask.
    lora: ClassVar[None] = None
    balance_rate: ClassVar[float] = 0.0
    balance_loss: ClassVar[float] = 0.0
    place_experts_every: ClassVar[int] = 0
    expert_replicas: ClassVar[int] = 0

    size: str = ""
    image: int = 32
    patch: int = 4
    dim: int = 128
    layers: int = 4
    heads: int = 4
    ffn_dim: int = 0
    classes: int = 0
    norm_epsilon: float = 1e-6
    batch_per_rank: int = 32
    accumulate: int = 1
    steps: int = 400
    lr: float = 1e-3
    warmup_steps: int = 40
    min_lr_ratio: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.1
    clip: float = 1.0
    init_std: float = 0.02
    seed: int = 0
    label_smoothing: float = 0.0
    crop_min: float = 0.08
    flip: float = 0.5
    normalise: Normalise = "half"
    held_out: int = 0
    eval_batches: int = 16
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    on_spike: SpikeAction = "skip"
    spike_budget: int = 8
    recompute_every: int = 1000
    compile: Literal["auto", True, False] = "auto"
    deterministic: bool = True
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    activation_checkpointing: Literal["none", "full"] = "none"
    activation_blocks: int = 1
    reshard_after_forward: bool = True
    prefetch_blocks: int = 0
    decode_threads: int = 0
    init: str = ""

    @property
    def sequence(self) -> int:
        """Tokens of a sample."""
        return self.shape(1).tokens

    def shape(self, classes: int) -> VitShape:
        """Of the model, for data of so many classes."""
        known = {name: getattr(self, name) for name in SHAPE_FIELDS}
        return VitShape(**known | {"classes": self.classes or classes})

    def problems(self) -> list[Problem]:
        """(field, value, what to change) for each value that cannot work; empty when all can."""
        found = run_problems(self, _POSITIVE)
        if not found:
            found += self.shape(1).problems()
        return [*found, *self._own_problems(), *determinism_problem(self)]

    def _own_problems(self) -> Iterator[Problem]:
        if self.size and self.size not in SIZES:
            yield "size", self.size, f"write one of {', '.join(SIZES)}"
        for name in ("classes", "ffn_dim", "held_out"):
            if getattr(self, name) < 0:
                yield name, getattr(self, name), "write 0 or more"
        yield from self._image_problems()
        blocks = self.layers if self.layers > 0 and not self.init else _BLOCKS_MAX
        for name, least in (("activation_blocks", 1), ("prefetch_blocks", 0)):
            if not least <= getattr(self, name) <= blocks:
                yield name, getattr(self, name), f"write a whole number from {least} to the number of layers ({blocks})"
        if self.activation_checkpointing == "none" and self.activation_blocks > 1:
            yield "activation_blocks", self.activation_blocks, "write activation_checkpointing: full too, or leave it out"

    def _image_problems(self) -> Iterator[Problem]:
        for name, largest in (("image", IMAGE_MAX), ("classes", CLASSES_MAX)):
            if getattr(self, name) > largest:
                yield name, getattr(self, name), f"write at most {largest}"
        if not 0 <= self.label_smoothing < 1:
            yield "label_smoothing", self.label_smoothing, "write a number from 0 up to, but not, 1"
        if not 0 < self.crop_min <= 1:
            yield "crop_min", self.crop_min, "write a number above 0, up to 1"
        if not 0 <= self.flip <= 1:
            yield "flip", self.flip, "write a number from 0 to 1"
        if not 0 <= self.decode_threads <= THREADS_MAX:
            yield "decode_threads", self.decode_threads, f"write a whole number from 0 to {THREADS_MAX}"
        if self.eval_batches > 0 and self.held_out == 0:
            fix = "write how many samples at the end of the data are kept for scoring, or eval_batches: 0 for no score"
            yield "held_out", self.held_out, fix


SHAPE_FIELDS: Final = tuple(one.name for one in fields(VitShape))
"""Hyperparameters that are the model's shape."""
GIVEN_FIELDS: Final = tuple(name for name in SHAPE_FIELDS if name != "classes")
"""Those of them that the folder of `init` says: classes are the data's."""


def of_given(recipe: VitRecipe, shape: VitShape, normalise: Normalise | None) -> VitRecipe:
    """With the shape of the model that its `init` names. normalise: how that one's pixels were scaled, where somebody knows. Raises
    SpecError for other pixels, and for what such a model cannot have: who had not seen it could not tell."""
    known = replace(recipe, **{name: getattr(shape, name) for name in GIVEN_FIELDS})
    for name, value, fix in replace(known, init="").problems():  # the number of layers is known now
        raise SpecError(f"hyperparameters.{name}", value, fix)
    if normalise not in (None, recipe.normalise):
        fix = f"write {normalise}: the model in {recipe.init} was trained on pixels that were scaled so"
        raise SpecError("hyperparameters.normalise", recipe.normalise, fix)
    return known
