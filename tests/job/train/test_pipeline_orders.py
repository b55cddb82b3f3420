"""The orders that `fabric.pipeline` writes down are those that torch's own schedules run, in every size; and how a model is cut."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore

from phalanx.core.errors import SpecError
from phalanx.core.lora import Lora
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import ScheduleName
from phalanx.fabric.layouts import Layout
from phalanx.fabric.pipeline.actions import Action, Kind, Order, orders
from phalanx.fabric.pipeline.balance import LayerCosts
from phalanx.fabric.pipeline.layout import SCHEDULES, PipelineLayout, fewest_stages
from phalanx.job.checkpoint.owners import specs_of
from phalanx.job.checkpoint.state import training_state
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.models.lora import adapt
from phalanx.job.models.moe.mixture import reset_buffers
from phalanx.job.train.balance import balance, loads_of_all, routers
from phalanx.job.train.device import Rank
from phalanx.job.train.loss import token_loss
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import make_mesh
from phalanx.job.train.pipeline import build
from phalanx.job.train.pipeline.build import laid_llama
from phalanx.job.train.pipeline.pipeline import TORCH_NAMES, Pipeline, pipeline_parallel
from phalanx.job.train.pipeline.prepare import sharded_stage
from phalanx.job.train.pipeline.stage import RankPart, Stage, llama_costs
from phalanx.job.train.pipeline.whole import tensors_of, whole_tensors
from phalanx.job.train.sizes import flops_per_token

COMPUTES = {str(kind) for kind in Kind}


@contextmanager
def ranks_of(number: int) -> Iterator[None]:
    """A group of so many, of which only this one is a process."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
    try:
        yield
    finally:
        dist.destroy_process_group()


def orders_of_torch(layout: PipelineLayout) -> tuple[Order, ...]:
    kind: Any = get_schedule_class(TORCH_NAMES[layout.schedule])
    row = torch.empty(1, device="meta")
    stages = [
        PipelineStage(nn.Identity(), stage, layout.num_stages, torch.device("cpu"), input_args=row, output_args=row)
        for stage in layout.stages_of(0)
    ]
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, layout.num_microbatches)
    return tuple(of_torch(schedule.pipeline_order[rank]) for rank in range(layout.num_ranks))


def of_torch(actions: list[Any]) -> Order:
    units = []
    for action in actions:
        parts = () if action is None else action.sub_actions or (action,)
        computes = [one for one in parts if one.computation_type.value in COMPUTES]
        if computes:
            units.append(tuple(Action(Kind(one.computation_type.value), one.stage_index, one.microbatch_index) for one in computes))
    return tuple(units)


def told(layout: PipelineLayout, every: tuple[Order, ...]) -> tuple[Order, ...]:
    """torch runs 1F1B without a list; the one that it shows begins with the second microbatch on the last rank. What it runs is
    compared in `test_pipeline_gang.py`."""
    return every[:-1] if layout.schedule == "1f1b" else every


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_torch_runs_what_is_written_down(num_ranks: int) -> None:
    sizes = [
        PipelineLayout(schedule=schedule, num_ranks=num_ranks, num_microbatches=number, stages_per_rank=stages)
        for schedule in SCHEDULES
        for stages in (1, 2, 3)
        for number in (*range(1, 2 * num_ranks + 2), 4 * num_ranks)
    ]
    possible = [layout for layout in sizes if not layout.problems()]
    assert {layout.schedule for layout in possible} == set(SCHEDULES)
    with ranks_of(num_ranks):
        differ = [layout for layout in possible if told(layout, orders_of_torch(layout)) != told(layout, orders(layout))]
    assert differ == []


def test_torch_refuses_the_microbatches_that_are_refused_here() -> None:
    """And those alone: but a `zbv` or `gpipe` of any number."""
    with ranks_of(3):
        for schedule in ("1f1b", "interleaved", "zb1p", "dualpipev"):
            for number in range(1, 14):
                stages = 1 if schedule == "1f1b" else 2
                layout = PipelineLayout(schedule=schedule, num_ranks=3, num_microbatches=number, stages_per_rank=stages)
                if layout.problems():
                    with pytest.raises(ValueError, match="microbatches"):
                        orders_of_torch(layout)
                else:
                    orders_of_torch(layout)


SHAPE = LlamaShape(vocab=11, dim=8, layers=5, heads=2, ffn_dim=6)


def cut(layout: PipelineLayout, costs: LayerCosts | None = None) -> Pipeline:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("pp",))
    return pipeline_parallel(SHAPE, layout, mesh, torch.device("cpu"), "fp32", lambda stage: None, costs)


def test_what_cannot_be_cut_is_refused_with_what_to_write() -> None:
    one = PipelineLayout(schedule="1f1b", num_ranks=2, num_microbatches=2)
    folded = PipelineLayout(schedule="zbv", num_ranks=2, num_microbatches=4, stages_per_rank=2)

    with ranks_of(2):
        for layout, field, fix, costs in (
            (replace(one, num_ranks=3, num_microbatches=3), "num_ranks", "the mesh has 2", None),
            (replace(one, num_microbatches=1), "num_microbatches", "write 2 or more", None),
            (replace(folded, schedule="interleaved", stages_per_rank=3), "stages_per_rank", "write 2 or less", None),
            (one, "costs", "the model has 5 layers", LayerCosts((1,) * 4)),
        ):
            with pytest.raises(SpecError) as refused:
                cut(layout, costs)
            assert (refused.value.field, fix in refused.value.fix) == (field, True), refused.value
        mesh = init_device_mesh("cpu", (2,))
        for recipe, layout, field, fix in (
            (LlamaRecipe(compile=True), folded, "schedule", "write one of gpipe, 1f1b, bfs, interleaved"),
            (LlamaRecipe(fused_loss=True), folded, "schedule", "cannot be done with fused_loss: true"),
            (LlamaRecipe(activation_checkpointing="selective"), folded, "schedule", "or activation_checkpointing: full"),
            (LlamaRecipe(reshard_after_forward=True), one, "reshard_after_forward", "write auto or false"),
        ):
            with pytest.raises(SpecError) as refused:
                sharded_stage(recipe, layout, mesh, torch.device("cpu"), "fp32")
            assert (refused.value.field, fix in refused.value.fix) == (field, True), refused.value
        sharded_stage(LlamaRecipe(compile=True), one, mesh, torch.device("cpu"), "fp32")
        with pytest.raises(SpecError, match="the schedule is of 2; give as many"):
            cut(one).gradients(torch.zeros(3, 1, 5, dtype=torch.int64))


def test_blocks_of_a_stage_ask_for_the_weights_of_those_that_follow_there() -> None:
    layout = PipelineLayout(schedule="1f1b", num_ranks=2, num_microbatches=2)
    with ranks_of(2):
        mesh, recipe = init_device_mesh("cpu", (2,)), LlamaRecipe(prefetch_blocks=1)
        stage = Stage(SHAPE, range(2, 5))
        sharded_stage(recipe, layout, mesh, torch.device("cpu"), "fp32")(stage)
        states = [cast(FSDPModule, block)._get_fsdp_state() for block in stage.blocks]
        assert [state._states_to_forward_prefetch for state in states] == [states[1:2], states[2:], []]


def test_a_gang_that_makes_too_few_microbatches_of_a_step_is_told_so_by_its_ranks() -> None:
    """At submit it was right: other ranks of data go on with the same samples."""
    with ranks_of(2):
        rank = Rank(rank=0, world_size=2, device=torch.device("cpu"), device_name="cpu", layout=Layout(pp=2))
        with pytest.raises(
            SpecError, match=r"layout.schedule: '1f1b': this gang makes 1 microbatch of a step's samples; write 2 or more"
        ):
            laid_llama(SHAPE, LlamaRecipe(accumulate=2), rank, make_mesh(rank), "fp32", 1)


@pytest.mark.parametrize(("schedule", "compiled"), [("1f1b", True), ("interleaved", True), ("zb1p", False), ("zbv", False)])
def test_compiling_by_itself_gives_way_to_a_schedule_that_parts_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch, schedule: ScheduleName, compiled: bool
) -> None:
    """Where all ranks could compile, as on CUDA: to be asked for and refused is another thing."""
    monkeypatch.setattr(build, "compiled_by_all", lambda asked, device: True)
    asked = build.compiled_or_not(LlamaRecipe(), Layout(pp=2, schedule=schedule), torch.device("cpu"))
    assert asked.compile is compiled
    stages = PipelineLayout(schedule=schedule, num_ranks=2, num_microbatches=4, stages_per_rank=fewest_stages(schedule))
    with ranks_of(2):
        sharded_stage(asked, stages, init_device_mesh("cpu", (2,)), torch.device("cpu"), "fp32")


def test_stages_have_the_model_s_parts_under_its_names_and_its_forward() -> None:
    """One after another they are the whole model; a checkpoint of any of them knows all of it."""
    whole = Llama(SHAPE)
    stages = [Stage(SHAPE, layers) for layers in (range(2), range(2, 3), range(3, 5))]
    for stage in stages:
        stage.to_empty(device="cpu")
        stage.load_state_dict(whole.state_dict(), strict=False)
    ids = torch.arange(12).view(2, 6) % SHAPE.vocab
    segments = torch.tensor([[0, 0, 1, 1, 1, -1], [0, 1, 1, 2, 2, 2]])
    for samples in (ids, torch.stack([ids, segments], dim=1)):
        given = samples
        for stage in stages:
            given = stage(given, samples)
        assert torch.equal(given, token_loss(whole, samples))
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in whole.named_parameters())
    part = RankPart([stages[0], stages[2]])
    assert [name for name, _ in stages[1].named_parameters()] == [n for n in names if n not in dict(part.named_parameters())]
    everything = specs_of(training_state(whole, make_adamw(whole, LlamaRecipe())))
    assert whole_tensors(SHAPE, training_state(part, make_adamw(part, LlamaRecipe()))) == everything


def test_a_run_s_tensors_are_those_that_it_trains() -> None:
    """Of adapters beside frozen weights these alone, those of other ranks' stages too."""
    lora = Lora(rank=2, alpha=4.0, targets=("q_proj", "down_proj"))
    whole, stage = Llama(SHAPE), Stage(SHAPE, range(1, 3))
    for model in (whole, stage):
        adapt(model, lora)
    stage.to_empty(device="cpu")
    part = RankPart([stage])
    found = tensors_of(part, make_adamw(part, LlamaRecipe()), lora)
    assert found == specs_of(training_state(whole, make_adamw(whole, LlamaRecipe())))
    assert len(found) == SHAPE.layers * 2 * 2 * 4


def test_loads_of_a_stage_s_mixtures_stand_at_their_place_among_all_and_its_biases_follow_them() -> None:
    """A rank without a mixture takes part too."""
    shape = replace(SHAPE, experts=4, dense_layers=1)
    stages = [Stage(shape, layers) for layers in (range(1), range(1, 2), range(3, 5))]
    parts = [RankPart([stages[0]]), RankPart([stages[1], stages[2]])]
    for part in parts:
        part.to_empty(device="cpu")
        reset_buffers(part)
        for number, router in enumerate(routers(part)):
            router.load.copy_(torch.tensor([4, 0, 2, 2]) * (number + 1))
    with ranks_of(2):  # of which the other one has nothing to add
        for part in parts:
            balance(part, rate=0.5)
    first, second = (loads_of_all(part) for part in parts)
    assert first is not None and not first.any() and first.shape == (4, 4)
    assert second is not None and second.tolist() == [[4, 0, 2, 2], [0] * 4, [8, 0, 4, 4], [12, 0, 6, 6]]
    assert [router.bias.tolist() for router in routers(parts[1])] == [[-0.5, 0.5, 0.0, 0.0]] * 3


def test_what_a_rank_trains_of_a_tied_model_has_its_embedding_once() -> None:
    """The copy that the last stage multiplies by is no weight of the model."""
    shape = replace(SHAPE, tied=True)
    first, last = Stage(shape, range(2)), Stage(shape, range(2, 5))
    for part, names in ((RankPart([first, last]), {"embedding.weight", "norm.weight"}), (RankPart([last]), {"norm.weight"})):
        assert {name for name, _ in part.named_parameters() if not name.startswith("blocks.")} == names
        assert part.shape == shape
    part = RankPart([first.to_empty(device="cpu")])
    whole = Llama(shape)
    assert tensors_of(part, make_adamw(part, LlamaRecipe()), None) == specs_of(
        training_state(whole, make_adamw(whole, LlamaRecipe()))
    )


def test_costs_of_a_llama_count_its_operations() -> None:
    costs = llama_costs(SHAPE, sequence=16)
    assert 3 * (sum(costs.layers) + costs.output) == flops_per_token(SHAPE, 16) - 6 * (2 * SHAPE.layers + 1) * SHAPE.dim  # no norms
    mixed = llama_costs(replace(SHAPE, experts=4, expert_ffn_dim=6, shared_experts=1, dense_layers=2), sequence=16).layers
    assert mixed[:2] == costs.layers[:2] and len(set(mixed[2:])) == 1
    assert mixed[2] - mixed[1] == 2 * SHAPE.dim * (4 + 3 * (2 + 1) * 6 - 3 * SHAPE.ffn_dim), (
        "a token takes two of four and the shared one"
    )
