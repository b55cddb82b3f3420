"""A part of a Llama that is run as one, with the model's own forward and the model's own names.

A stage gets what the one before it gave, and the samples themselves: positions, documents and targets are found in them as without
a pipeline, by the model and the loss. The last one gives the loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from phalanx.core.moe import layer_feed_parameters
from phalanx.fabric.pipeline.balance import LayerCosts
from phalanx.job.checkpoint.rows import rows_of, set_rows
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.train.balance import Mixtures
from phalanx.job.train.loss import token_loss

Loss = Callable[[Any, Tensor], Tensor]
"""Of a model and samples; `token_loss` is one."""
_IDLE: Final = "its layers are on other ranks"


class Received(nn.Module):
    """Stands where the embedding would: gives what came from the stage before."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        given, self.given = self.given, None
        assert given is not None, _IDLE
        return given


class HandedOn(nn.Module):
    """Stands where norm and output would: the next stage has them."""

    def forward(self, hidden: Tensor, *others: Any) -> Tensor:
        return hidden


class Stage(Llama):
    """Some neighbouring layers, with the embedding where the first one is among them, with norm and output where the last one is.

    Built on the meta device. Parameters keep the names that they have in the whole model. Where that model's output is its
    embedding, the last stage has a copy of it as its output (`tied`), and whole_shape says so, which shape does not.
    """

    def __init__(self, shape: LlamaShape, layers: range) -> None:
        with torch.device("meta"):
            super().__init__(replace(shape, tied=False))
        self.whole_shape = shape
        every, self.blocks = self.blocks, nn.ModuleList()
        for index in layers:
            self.blocks.add_module(str(index), every[index])
        self.is_first, self.is_last = layers.start == 0, layers.stop == shape.layers
        if not self.is_first:
            self.add_module("embedding", Received())
        if not self.is_last:
            self.add_module("norm", HandedOn())
            self.add_module("output", HandedOn())

    def forward(self, given: Tensor, samples: Tensor, loss: Loss = token_loss) -> Tensor:  # type: ignore[override]  # a stage's own
        """given: hidden states; of the first stage nothing that is looked at. Hidden states, or the loss of the samples."""
        if isinstance(self.embedding, Received):
            self.embedding.given = given
        if self.is_last:
            return loss(_Model(self), samples).clone()  # a view, of what tensor parallelism cuts, is nothing for FSDP to hook
        return _Model(self)(*inputs_of(samples))


class _Model:
    """A stage as a loss knows a model: called with ids, and with all that is noted on it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __call__(self, *inputs: Any, **named: Any) -> Tensor:
        return Llama.forward(self._stage, *inputs, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


def inputs_of(samples: Tensor) -> tuple[Tensor, ...]:
    """What a model is given of samples: ids, and of packed ones their documents."""
    if samples.dim() == 3:
        return samples[:, 0, :-1], samples[:, 1, :-1]
    return (samples[:, :-1],)


class Passes(Protocol):
    """What a pipeline does with samples (b, *row), which all of its ranks give alike. Collectives of them."""

    def gradients(self, microbatches: Tensor) -> Tensor:
        """Adds the mean gradient over the microbatches to what the stages have; the sum of their losses, on every rank."""
        ...

    def sample_losses(self, samples: Tensor) -> Tensor:
        """Of each sample, on every rank."""
        ...


class RankPart(nn.Module):
    """All that a rank has of the model, under the whole model's names: for the optimiser, clipping and checkpoints. A copy of a
    tied embedding is none of it. Never run: its pipeline is, by `passes`."""

    passes: Passes

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.shape, self.context = stages[0].whole_shape, stages[0].context
        self.frozen_stay_out = stages[0].frozen_stay_out
        self.blocks = nn.ModuleList()
        set_rows(self, {name: rows for stage in stages for name, rows in rows_of(stage).items()})
        for stage in stages:
            for name, part in stage.named_children():
                if name == "blocks":
                    for index, block in part.named_children():
                        self.blocks.add_module(index, block)
                elif not isinstance(part, Received | HandedOn) and not (name == "output" and self.shape.tied):
                    self.add_module(name, part)
        self.mixtures = self._mixtures()

    def _mixtures(self) -> Mixtures | None:
        """Which these are among those of the whole model; None of a dense one."""
        moe = self.shape.moe
        if moe is None:
            return None
        own = [int(index) - moe.dense_layers for index, _ in self.blocks.named_children()]
        total = self.shape.layers - moe.dense_layers
        return Mixtures(tuple(number for number in own if number >= 0), total, moe.experts)


def llama_costs(shape: LlamaShape, sequence: int) -> LayerCosts:
    """Of a forward pass, in floating-point operations a token; the backward pass is twice as dear everywhere. As `flops_per_token`
    counts, with attention in full, and of experts those that a token takes. The embedding only moves a row: it counts as one
    operation a number."""
    attention = 2 * shape.dim * (2 * shape.q_dim + 2 * shape.kv_dim) + 4 * shape.q_dim * sequence
    layers = tuple(attention + 2 * layer_feed_parameters(shape, layer, active=True) for layer in range(shape.layers))
    return LayerCosts(layers, embedding=shape.dim, output=2 * shape.vocab * shape.dim)
