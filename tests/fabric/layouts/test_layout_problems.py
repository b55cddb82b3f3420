"""What cannot work is refused by its field, and every value that is named instead works."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import LayoutSpec, ScheduleName
from phalanx.fabric.context import KINDS
from phalanx.fabric.layouts import Layout, ModelFacts, RankFacts, facts_of, laid_out, named, problems, recipe_problems
from phalanx.fabric.pipeline.layout import SCHEDULES, SPLITS_BACKWARD

MODEL = ModelFacts(layers=4, heads=12, kv_heads=4, ffn_dim=352, sequence=64)
WHOLE = "write one of gpipe, 1f1b, bfs, interleaved, or"
EIGHT = RankFacts(world_size=8, per_domain=8)
SIZES = st.integers(min_value=1, max_value=9)
ASKED = st.builds(
    LayoutSpec, pp=SIZES, cp=SIZES, tp=SIZES, ep=SIZES, zero=st.sampled_from([0, 1, 2, 3]), replicate=SIZES,
    context=st.sampled_from(KINDS), schedule=st.sampled_from(SCHEDULES), stages_per_rank=st.integers(min_value=0, max_value=3),
)  # fmt: skip
NUMBERS = st.integers(min_value=1, max_value=96)
MODELS = st.builds(
    ModelFacts, layers=NUMBERS, heads=NUMBERS, kv_heads=NUMBERS, ffn_dim=NUMBERS, sequence=NUMBERS, experts=st.sampled_from([0, 8]),
    shared_dim=st.sampled_from([0, 24]), dim=NUMBERS, expert_ffn_dim=NUMBERS,
)  # fmt: skip
RANKS = st.builds(RankFacts, world_size=NUMBERS, per_domain=NUMBERS)


@pytest.mark.parametrize(
    ("asked", "field", "fix"),
    [
        (LayoutSpec(tp=3), "tp", "write one of 1, 2, 4: its ranks lie in one NVLink domain, or node, of 8"),
        (LayoutSpec(tp=8), "tp", "write one of 1, 2, 4: its ranks share the model's 12 heads evenly"),
        (LayoutSpec(cp=3), "cp", "write one of 1, 2, 4, 8: each rank has two parts of the sequence of 64, one from its head"),
        (
            LayoutSpec(cp=8, context="ulysses"),
            "cp",
            "write one of 1, 2, 4: with context: ulysses its ranks share 12 heads and 4 of",
        ),
        (
            LayoutSpec(cp=4, tp=2, context="ulysses"),
            "cp",
            "write one of 1, 2: with context: ulysses its ranks share 6 heads and 2 of",
        ),
        (LayoutSpec(pp=8), "pp", "write one of 1, 2, 4: each stage has one of the model's 4 layers at least"),
        (
            LayoutSpec(pp=4, schedule="zbv"),
            "pp",
            "write one of 1, 2: each of the 2 stages of a rank has one of the model's 4 layers at least",
        ),
        (LayoutSpec(ep=2), "ep", "write 1: the model has no experts"),
        (LayoutSpec(replicate=3), "replicate", "write one of 1, 2, 4, 8: it divides the 8 data-parallel ranks"),
        (LayoutSpec(zero=0, replicate=2), "replicate", "write 1: with zero: 0 every data-parallel rank holds all"),
        (LayoutSpec(tp=4, cp=4), "cp", "write one of 1, 2: it divides the job's 8 ranks together with the other axes (4)"),
        (LayoutSpec(pp=3, tp=5), "pp x tp", "write sizes whose product divides the job's 8 ranks: one of 1, 2, 4, 8"),
        (LayoutSpec(tp=0), "tp", "write a whole number above 0"),
    ],
)
def test_a_layout_that_cannot_work_is_told_what_can(asked: LayoutSpec, field: str, fix: str) -> None:
    found = problems(asked, MODEL, EIGHT)[0]
    assert found[0] == field and found[2].startswith(fix)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"heads": 2}, "share the model's 2 heads evenly"),
        ({"kv_heads": 2}, "share the model's 2 heads of keys and values evenly"),
        ({"ffn_dim": 350}, "share the feed-forward's width of 350 evenly"),
        ({"sequence": 62}, "share a sequence of 62 tokens evenly"),
        ({"experts": 8, "ffn_dim": 0, "shared_dim": 90}, "share the width of 90 of the shared experts evenly"),
    ],
)
def test_tensor_parallel_ranks_share_everything_evenly(changed: dict[str, Any], why: str) -> None:
    assert problems(LayoutSpec(tp=4), MODEL, EIGHT) == []
    ((field, value, fix),) = problems(LayoutSpec(tp=4), replace(MODEL, **changed), EIGHT)
    assert (field, value) == ("tp", 4) and fix.startswith("write one of 1, 2: ") and fix.endswith(why)


@pytest.mark.parametrize(
    ("asked", "shares"),
    [
        (LayoutSpec(), 8),
        (LayoutSpec(replicate=2), 4),
        (LayoutSpec(replicate=2, tp=2), 4),
        (LayoutSpec(cp=2, tp=2), 8),
        (LayoutSpec(cp=2, context="ulysses"), 8),
        (LayoutSpec(zero=0, tp=4), 4),
        (LayoutSpec(zero=0, cp=2), 1),
    ],
)
def test_experts_are_shared_by_ranks_that_share_the_state_those_of_rows_and_matrices_among_them(
    asked: LayoutSpec, shares: int
) -> None:
    experts = replace(MODEL, experts=16, dim=64)
    assert problems(replace(asked, ep=shares), experts, EIGHT) == []
    ((field, _, fix),) = problems(replace(asked, ep=16), experts, RankFacts(world_size=8, per_domain=8))
    fits = ", ".join(str(size) for size in (1, 2, 4, 8) if size <= shares)
    assert (
        field == "ep"
        and fix == f"write {'one of ' if shares > 1 else ''}{fits}: it is made of the {shares} ranks that share the state"
    )


@pytest.mark.parametrize(
    ("asked", "dim", "inner", "fix"),
    [
        (LayoutSpec(ep=2), 6, 10, "write one of 1, 4, 8: with 2 each expert is cut over 4 ranks, of which neither dim (6) nor"),
        (LayoutSpec(ep=2, tp=4), 6, 10, "write one of 1, 4, 8: with 2 each expert is cut over 4 ranks"),
        (LayoutSpec(ep=2, replicate=2), 7, 9, "write one of 1, 4: with 2 each expert is cut over 2 ranks"),
        (LayoutSpec(ep=2, zero=0, tp=4), 7, 9, "write one of 1, 4: with 2 each expert is cut over 2 ranks"),
    ],
)
def test_ranks_that_ep_leaves_cut_each_expert_along_a_side_that_they_divide(
    asked: LayoutSpec, dim: int, inner: int, fix: str
) -> None:
    experts = replace(MODEL, experts=16, dim=dim, expert_ffn_dim=inner)
    ((field, value, told),) = problems(asked, experts, EIGHT)
    assert (field, value) == ("ep", 2) and told.startswith(fix) and told.endswith("or change expert_ffn_dim")
    assert problems(asked, replace(experts, expert_ffn_dim=12), EIGHT) == problems(asked, replace(experts, dim=8), EIGHT) == []


def test_ranks_whose_parts_8_bit_products_cannot_take_are_refused_with_every_width_that_is_wrong() -> None:
    recipe = LlamaRecipe(dtype="fp8", dim=128, heads=8, head_dim=10, ffn_dim=128, experts=4, shared_experts=1, expert_ffn_dim=32)
    assert problems(LayoutSpec(), facts_of(recipe), EIGHT) == []
    ((field, value, fix),) = problems(LayoutSpec(tp=4), facts_of(recipe), EIGHT)
    assert (field, value) == ("tp", 4) and fix == (
        "write 1: 8-bit products need multiples of 16, and a rank would have 20 of the queries (heads x head_dim: 80), 60 of the "
        "queries, keys and values ((heads + 2 x kv_heads) x head_dim: 240), 8 of the shared experts (shared_experts x "
        "expert_ffn_dim: 32); or change all of these, or write dtype: bf16"
    )
    ((_, _, fix),) = problems(LayoutSpec(tp=4), facts_of(replace(recipe, head_dim=16)), EIGHT)
    assert fix.startswith("write one of 1, 2: ") and "a rank would have 8 of the shared experts" in fix
    assert problems(LayoutSpec(tp=4), facts_of(replace(recipe, head_dim=16, dtype="bf16")), EIGHT) == []


def test_tensor_parallelism_stays_within_a_domain() -> None:
    two_nodes = RankFacts(world_size=16, per_domain=4)
    assert problems(LayoutSpec(tp=4), replace(MODEL, heads=16, kv_heads=8, ffn_dim=256), two_nodes) == []
    ((_, _, fix),) = problems(LayoutSpec(tp=8), replace(MODEL, heads=16, kv_heads=8, ffn_dim=256), two_nodes)
    assert fix == "write one of 1, 2, 4: its ranks lie in one NVLink domain, or node, of 4"


@pytest.mark.parametrize(
    ("asked", "recipe", "field", "fix"),
    [
        ({"pp": 4}, {}, "accumulate", "write 4 or more with schedule 1f1b over 4 ranks, or layout.schedule: gpipe"),
        (
            {"schedule": "interleaved", "pp": 3},
            {"accumulate": 7},
            "accumulate",
            "write 6, 8 or another multiple of 3 with schedule interleaved, or layout.schedule: gpipe",
        ),
        ({"schedule": "zbv", "stages_per_rank": 3}, {}, "stages_per_rank", "write 2 with schedule zbv"),
        (
            {"schedule": "zbv"},
            {"compile": True},
            "schedule",
            f"{WHOLE} compile: auto: it parts the backward pass, which cannot be done with compile: true",
        ),
        ({"schedule": "zb1p"}, {"fused_loss": True}, "schedule", f"{WHOLE} fused_loss: auto"),
        ({"schedule": "zbv"}, {"dtype": "fp8"}, "schedule", f"{WHOLE} dtype: bf16"),
        ({"schedule": "zbv"}, {"activation_checkpointing": "selective"}, "schedule", f"{WHOLE} activation_checkpointing: full"),
        ({}, {"reshard_after_forward": True}, "reshard_after_forward", "write auto or false: over a pipeline"),
        ({"zero": 0}, {"prefetch_blocks": 2}, "prefetch_blocks", "write 0, or a layout.zero above 0"),
    ],
)
def test_what_a_recipe_has_that_its_pipeline_cannot_is_told_with_what_can(
    asked: dict[str, Any], recipe: dict[str, Any], field: str, fix: str
) -> None:
    given = LlamaRecipe(**{"accumulate": 2, **recipe})
    found = recipe_problems(LayoutSpec(**{"pp": 2, **asked}), given)
    assert [named(one) for one, _, _ in found] == [f"hyperparameters.{field}" if hasattr(given, field) else f"layout.{field}"]
    assert found[0][2].startswith(fix)
    assert recipe_problems(LayoutSpec(), given) == [], "without a pipeline all of it can be"


@pytest.mark.parametrize("schedule", SPLITS_BACKWARD)
def test_experts_go_with_a_schedule_that_parts_the_backward_pass(schedule: ScheduleName) -> None:
    given = LlamaRecipe(experts=8, accumulate=4)
    for asked in (LayoutSpec(), LayoutSpec(ep=2), LayoutSpec(ep=4, tp=2), LayoutSpec(ep=2, cp=2)):
        assert recipe_problems(replace(asked, pp=2, schedule=schedule), given) == []


@pytest.mark.parametrize(
    ("asked", "spare", "fix"),
    [
        ({}, 1, "write 0, or a layout.ep above 1: a rank that has all experts"),
        ({"ep": 2, "pp": 2}, 1, "write 0, or layout.pp: 1: replicas of experts are not computed over a pipeline"),
        ({"ep": 4}, 7, "write 6 or less: a rank has 2 of the 8 experts"),
    ],
)
def test_replicas_of_experts_that_no_rank_can_have_are_refused(asked: dict[str, Any], spare: int, fix: str) -> None:
    given = LlamaRecipe(experts=8, place_experts_every=9, expert_replicas=spare, accumulate=2)
    ((field, value, said),) = recipe_problems(LayoutSpec(**asked), given)
    assert (field, value) == (named(field), spare) == ("hyperparameters.expert_replicas", spare) and said.startswith(fix)
    assert recipe_problems(LayoutSpec(ep=4), replace(given, expert_replicas=6)) == []
    assert recipe_problems(LayoutSpec(), replace(given, expert_replicas=0)) == []


def test_a_recipe_says_what_its_model_is() -> None:
    recipe = LlamaRecipe(layers=3, heads=8, dim=64, ffn_dim=128, sequence=32)
    assert facts_of(recipe) == ModelFacts(layers=3, heads=8, kv_heads=8, ffn_dim=128, sequence=32)
    mixed = replace(recipe, experts=4, experts_per_token=2, expert_ffn_dim=24, shared_experts=2, dense_layers=1)
    experts = ModelFacts(
        layers=3, heads=8, kv_heads=8, ffn_dim=128, sequence=32, experts=4, shared_dim=48, dim=64, expert_ffn_dim=24
    )
    assert facts_of(mixed) == experts
    assert facts_of(replace(mixed, dense_layers=0)) == replace(experts, ffn_dim=0)


@given(ASKED, MODELS, RANKS)
def test_every_named_value_mends_its_field_and_without_problems_everything_divides(
    asked: LayoutSpec, model: ModelFacts, ranks: RankFacts
) -> None:
    found = problems(asked, model, ranks)
    for field, value, fix in found:
        named = re.match(r"write (?:one of )?([0-9, ]+)", fix)
        if hasattr(asked, field) and named:
            assert value == getattr(asked, field)
            for number in named[1].strip(" ,").split(", "):
                changed: Any = {field: int(number)}
                again = problems(replace(asked, **changed), model, ranks)
                assert field not in [name for name, _, _ in again]
    if not found:
        layout = laid_out(asked, ranks.world_size)
        assert model.heads % layout.tp == model.kv_heads % layout.tp == model.ffn_dim % layout.tp == 0
        assert model.sequence % (layout.cp * layout.tp) == 0
        assert layout.cp == 1 or _shares_rows(layout, model)
        assert layout.pp <= model.layers and ranks.per_domain % layout.tp == model.shared_dim % layout.tp == 0
        state = layout.tp * (layout.dp_shard * layout.cp if layout.zero else 1)
        assert state % layout.ep == 0 and (model.experts or layout.ep == 1)
        rest = state // layout.ep
        assert layout.ep == 1 or model.dim % rest == 0 or model.expert_ffn_dim % rest == 0


def _shares_rows(layout: Layout, model: ModelFacts) -> bool:
    if layout.context == "ring":
        return model.sequence % (2 * layout.cp) == 0
    heads, kv_heads = model.heads // layout.tp, model.kv_heads // layout.tp
    return heads % layout.cp == 0 and (kv_heads % layout.cp == 0 or layout.cp % kv_heads == 0)


@given(ASKED, RANKS)
def test_what_fits_the_ranks_alone_is_refused_exactly_where_it_cannot_be_laid_out(asked: LayoutSpec, ranks: RankFacts) -> None:
    asked = replace(asked, ep=1, replicate=asked.replicate if asked.zero else 1)
    ranks = replace(ranks, per_domain=ranks.per_domain * asked.tp)
    try:
        laid_out(asked, ranks.world_size)
        fits = True
    except ValueError:
        fits = False
    assert (problems(asked, None, ranks) == []) == fits
