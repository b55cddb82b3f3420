"""Blocks whose experts are on other ranks are compiled in parts: all up to the router, and what follows the experts' products."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.models.llama import Llama, initialise
from phalanx.job.models.moe.mixture import mixtures
from phalanx.job.train.activations import runs
from phalanx.job.train.compiled import parts_run_compiled, run_by

VOCAB = 31
RECIPE = LlamaRecipe(dim=32, layers=3, heads=4, kv_heads=2, ffn_dim=48, experts=4, dense_layers=1, router="softmax")


def built(recipe: LlamaRecipe) -> Llama:
    model = Llama(recipe.shape(VOCAB))
    initialise(model, "", seed=0, std=0.1)
    run_by(model.blocks, runs(model.shape, recipe), compile_them=False)
    return model


def gradients(model: Llama, ids_bs: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(ids_bs).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracer
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("again", ["none", "full"])
def test_they_compute_the_same_and_are_compiled_once_for_all_blocks_and_numbers_of_rows(again: Any) -> None:
    """By a compiler that generates no code."""
    graphs = []

    def counted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(graph)
        return aot_eager(graph, inputs)

    recipe = replace(RECIPE, activation_checkpointing=again)
    plain, ours = built(recipe), built(recipe)
    parts_run_compiled(ours.blocks, counted)
    ids_bs = torch.arange(24).view(2, 12) % VOCAB
    with torch.no_grad():
        assert ours(ids_bs).equal(plain(ids_bs)) and not graphs, "passes without gradients run as they are"
    for one, other in zip(gradients(ours, ids_bs), gradients(plain, ids_bs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert len(graphs) == 3
    mine, theirs = (next(mixtures(model)).experts for model in (ours, plain))
    for rows in (9, 40):
        gate_up_nf = torch.randn(rows, 96, requires_grad=True)
        torch.testing.assert_close(mine.gated(gate_up_nf), theirs.gated(gate_up_nf))
    assert len(graphs) == 3
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in plain.named_parameters()]
