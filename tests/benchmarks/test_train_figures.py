"""The training benchmark's worked-out numbers, held against a case by hand and against what was measured on two H200."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def parts() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def part(name: str) -> Any:
    return importlib.import_module(f"parts.{name}")


def sized(**more: Any) -> Any:
    """Of 2 blocks, 8 wide, 2 heads of which keys have 1, a feed-forward of 16, 10 words, sequences of 32."""
    given = {"name": "by hand", "dim": 8, "layers": 2, "heads": 2, "kv_heads": 1, "ffn_dim": 16, "ffn_times": None, "ffn_round": 16}
    return part("train_case").Size(**{**given, "vocab": 10, "sequence": 32, **more})


def test_flops_of_a_dense_token_by_hand() -> None:
    """A block: queries 8 x 8, keys and values 2 x (8 x 4), out 8 x 8, feed-forward 3 x (8 x 16), two norms of 8: 592. Two blocks,
    the last norm and the output: 2 x 592 + 8 + 80 = 1,272. Attention in full: 12 x 2 blocks x 8 x 32 = 6,144."""
    figures = part("train_figures")
    assert figures.flops_per_token(sized(), "full") == 6 * 1_272 + 6_144
    assert figures.flops_per_token(sized(), "causal") == 6 * 1_272 + 3_072


def test_of_experts_those_count_that_compute_a_token() -> None:
    """As above, with a router of 4 x 8 and two of four experts instead of one feed-forward: 592 + 32 + 384 = 1,008 a block."""
    figures = part("train_figures")
    assert figures.flops_per_token(sized(experts=4, per_token=2), "causal") == 6 * (2 * 1_008 + 8 + 80) + 3_072


def test_mfu_by_hand() -> None:
    """A step of 2 samples of 32 tokens in half a second is 128 tokens/s; at 10,704 FLOPs of a peak of 10,704,000 that is 12.8 %."""
    case, figures = part("train_case").Case(size=sized(), batch=2), part("train_figures")
    assert figures.tokens_per_s(case, 0.5) == 128
    assert figures.mfu(128, sized(), "causal", 10_704_000) == pytest.approx(0.128)
    assert figures.mfu(128, sized(), "causal", 0.0) == 0


@pytest.mark.parametrize("layout", [{"tp": 2}, {"cp": 2}, {"pp": 2}])
def test_ranks_that_share_a_sample_have_a_part_of_its_tokens_each(layout: dict[str, int]) -> None:
    case = part("train_case").Case(size=sized(), batch=2, layout=layout)
    assert part("train_figures").tokens_per_s(case, 0.5) == 64


@pytest.mark.parametrize(
    ("claim", "batch", "options", "gib"),
    [
        ("dense_1b", 2, {}, 29.5),
        ("dense_7b", 1, {"activation_checkpoint.mode": "full"}, 60.6),
    ],
)
def test_memory_is_near_what_torchtitan_took(claim: str, batch: int, options: dict[str, str], gib: float) -> None:
    """Of one of two H200; what the allocator does not count is a part of the estimate."""
    size = part("train_claims").CLAIMS[claim].peer[0].size
    case = part("train_case").Case(size=size, batch=batch, options=options)
    assert gib < part("train_figures").memory_gib(case, 2, "peer") < 1.25 * gib


def test_more_checkpointing_needs_less_memory_and_more_samples_need_more() -> None:
    claims, case, figures = part("train_claims"), part("train_case").Case, part("train_figures")
    tried: list[dict[str, Any]] = [{}, claims.FOURTH, claims.SECOND, {"activation_checkpointing": "full"}]
    ours = [figures.memory_gib(case(size=claims.DENSE_7B, batch=2, options=one), 2, "ours") for one in tried]
    assert ours == sorted(ours, reverse=True) and len(set(ours)) == 4
    peers = [
        figures.memory_gib(case(size=claims.DENSE_7B, batch=2, options=one), 2, "peer")
        for one in (tried[0], claims.PEER_FOURTH, claims.PEER_SECOND, claims.PEER_FULL)
    ]
    assert peers == sorted(peers, reverse=True) and len(set(peers)) == 4
    assert figures.memory_gib(case(size=claims.DENSE_7B, batch=8), 2, "ours") > 140


def test_first_cases_fit_into_an_h200_and_calls_into_ten_minutes_and_a_session() -> None:
    bench, claims, figures = importlib.import_module("train_gpu"), part("train_claims").CLAIMS, part("train_figures")
    for claim in claims.values():
        for side, cases in (("ours", claim.ours[:1]), ("peer", claim.peer[:1])):
            assert all(figures.memory_gib(case, 2, side) < 0.9 * 140 for case in cases)
    for ranks in (2, 4):
        calls = bench.planned(ranks)
        assert [name for names, _, _ in calls for name in names] == list(claims)
        assert all(needed <= given <= 580 for _, needed, given in calls)
        assert sum(given for _, _, given in calls) + bench.CHECKPOINT_S <= bench.PLAN_S


def test_every_case_is_one_that_the_trainer_takes() -> None:
    """By the rules of a job, over 2 and 4 ranks; torch is not needed for that."""
    from phalanx.core.spec import LayoutSpec
    from phalanx.fabric.layouts import RankFacts, facts_of, problems, recipe_problems

    for claim in part("train_claims").CLAIMS.values():
        for case in claim.ours:
            recipe, asked = part("train_case").recipe_of(case), LayoutSpec(**case.layout)
            for world in (2, 4):
                ranks = RankFacts(world_size=world, per_domain=world)
                assert [*recipe.problems(), *recipe_problems(asked, recipe), *problems(asked, facts_of(recipe), ranks)] == []


def test_a_model_of_another_size_is_no_peer() -> None:
    alike, case = importlib.import_module("train_gpu").are_alike, part("train_case").Case
    size = part("train_claims").DENSE_1B
    whole, stages = case(size=size, batch=1), case(size=size, batch=1, layout={"pp": 2})
    assert alike({"parameters": 1000, "case": whole}, {"parameters": 1009, "case": whole})
    assert not alike({"parameters": 1000, "case": whole}, {"parameters": 900, "case": whole})
    assert alike({"parameters": 1000, "case": stages}, {"parameters": 500, "case": stages}), "of its own stages"
    assert alike({"failed": "no room"}, {"parameters": 900, "case": whole}), "nothing to compare with"
