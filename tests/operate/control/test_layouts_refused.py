"""A layout that cannot work is refused at submit and at plan, and ranks are told of one that can."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.errors import SpecError
from phalanx.core.policy import Policy
from phalanx.core.spec import JobSpec, LayoutSpec, Placing, Resources
from phalanx.core.spec_layout import LAYOUT_VARIABLE, layout_of
from phalanx.core.training_data import DataSource
from phalanx.operate.control.layouts import refuse_unfitting
from phalanx.operate.control.refused import refuse_unmeetable
from phalanx.operate.control.wanted import launch
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import Bench
from tests.operate.control.test_wanted import JOB, TERMS, A, world


def spec(layout: LayoutSpec, **changed: Any) -> JobSpec:
    return JobSpec(
        name="lm", kind="train", recipe="llama", data=DataSource(path="d"), layout=layout, resources=Resources(gpus="2"), **changed
    )


def test_submit_and_plan_refuse_what_cannot_work_with_what_can(bench: Bench) -> None:
    wrong = spec(LayoutSpec(replicate=3))
    with pytest.raises(SpecError) as refused:
        bench.control.submit(wrong, "", "", "ada")
    assert (refused.value.field, refused.value.value) == ("layout.replicate", 3)
    assert refused.value.fix == "write one of 1, 2: it divides the 2 data-parallel ranks"
    with pytest.raises(SpecError, match=r"layout\.replicate"):  # what `plan` asks
        refuse_unmeetable(World(policy=Policy()), wrong, 0)
    refuse_unfitting(spec(LayoutSpec(replicate=2)))
    on_given = {"init": "/model", "lora_rank": 4}
    with pytest.raises(SpecError, match=r"layout\.tp: 2: write 1: 8-bit products need .* have 24 of the feed-forward"):
        refuse_unfitting(spec(LayoutSpec(tp=2), hyperparameters={"dtype": "fp8", "ffn_dim": 48}))
    refuse_unfitting(spec(LayoutSpec(tp=2), hyperparameters={"dtype": "fp8", "ffn_dim": 64}))
    refuse_unfitting(spec(LayoutSpec(tp=2), hyperparameters={"fused_loss": True}))
    replicated = {"experts": 4, "place_experts_every": 5, "expert_replicas": 1}
    with pytest.raises(SpecError, match=r"hyperparameters\.expert_replicas: 1: write 0, or a layout\.ep above 1"):
        refuse_unfitting(spec(LayoutSpec(), hyperparameters=replicated))
    again = {"activation_checkpointing": "full", "compile": True}
    with pytest.raises(SpecError, match=r"layout\.cp: 2: write 1: blocks that are computed again"):
        refuse_unfitting(spec(LayoutSpec(cp=2), hyperparameters=again))
    with pytest.raises(SpecError, match=r"layout\.cp: 2: write 1, or activation_checkpointing: full"):
        refuse_unfitting(spec(LayoutSpec(cp=2), hyperparameters={"activation_checkpointing": "selective"}))
    refuse_unfitting(spec(LayoutSpec(cp=2), hyperparameters={"activation_checkpointing": "full"}))
    with pytest.raises(SpecError, match=r"layout\.ep: 2: write 1: blocks that send tokens"):
        refuse_unfitting(spec(LayoutSpec(ep=2), hyperparameters={"compile": True, "experts": 4}))
    with pytest.raises(SpecError, match=r"^hyperparameters\.accumulate: 1: write 2 or more with schedule 1f1b over 2 ranks"):
        refuse_unfitting(spec(LayoutSpec(pp=2), hyperparameters={"init": "/model"}))
    refuse_unfitting(spec(LayoutSpec(pp=2), hyperparameters={"tied": True, "accumulate": 2}))
    refuse_unfitting(spec(LayoutSpec(pp=2, schedule="dualpipev"), hyperparameters={"accumulate": 4}))
    refuse_unfitting(spec(LayoutSpec(tp=2), hyperparameters={"init": "/model"}))
    for layout in (LayoutSpec(replicate=2), LayoutSpec(tp=2), LayoutSpec(cp=2)):
        refuse_unfitting(spec(layout, hyperparameters=on_given))
        refuse_unfitting(spec(layout, hyperparameters={"experts": 4}))
    refuse_unfitting(spec(LayoutSpec(pp=2), hyperparameters={**on_given, "accumulate": 2}))
    refuse_unfitting(spec(LayoutSpec(pp=2), hyperparameters={"experts": 4, "accumulate": 2}))
    refuse_unfitting(spec(LayoutSpec(tp=2, ep=2), hyperparameters={"experts": 4}))
    on_twelve = replace(spec(LayoutSpec(ep=2), hyperparameters={"experts": 4, "dim": 128, "expert_ffn_dim": 32}), num_nodes=6)
    with pytest.raises(SpecError, match=r"layout\.ep: 2: write 1: with 2 each expert is cut over 6 ranks"):
        refuse_unfitting(on_twelve)


IN_A_DOMAIN = (Placing(group=2), Placing(within="domain"))
ON_A_NODE = (Placing(), Placing(group=2, group_within="rack"), Placing(within="rack"))


@pytest.mark.parametrize("placing", [*IN_A_DOMAIN, *ON_A_NODE])
def test_ranks_of_a_domain_are_those_of_a_node_unless_more_are_asked_to_lie_in_one(placing: Placing) -> None:
    asked = spec(LayoutSpec(tp=4), num_nodes=2, placing=placing)
    if placing in IN_A_DOMAIN:
        refuse_unfitting(asked)
        return
    with pytest.raises(SpecError, match=r"write one of 1, 2: its ranks lie in one NVLink domain, or node, of 2"):
        refuse_unfitting(asked)


def test_the_recipe_s_own_numbers_count() -> None:
    asked = spec(LayoutSpec(tp=2), hyperparameters={"ffn_dim": 351})
    with pytest.raises(SpecError, match="write 1: its ranks share the feed-forward's width of 351 evenly"):
        refuse_unfitting(asked)


def test_ranks_are_told_of_their_layout() -> None:
    def env(asked: JobSpec) -> Mapping[str, str]:
        there = world(spec=asked)
        job = there.jobs[JOB]
        return launch(there, job, there.attempts[job.attempts[-1]], A, TERMS).env

    assert layout_of(env(spec(LayoutSpec(zero=1)))) == LayoutSpec(zero=1)
    assert LAYOUT_VARIABLE not in env(spec(LayoutSpec()))
