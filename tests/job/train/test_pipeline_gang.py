"""A pipeline's losses and gradients are one process's, with every schedule; its bubble is the formula's. One launch of
stage_cases.py, on 2 x 2 ranks."""

import json
from typing import Any

import pytest

from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang
from tests.job.train.stage_cases import CASES, SHAPE, STEPS

TOLERANCE = 1e-5
"""Of the largest gradient, in float32: sums are added up in another order, by ranks and by halves of the backward pass, and AdamW
makes more of it from step to step."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank."""
    folder = tmp_path_factory.mktemp("pipeline")
    ranks = start_gang(["-m", "tests.job.train.stage_cases", str(folder)], folder, 4, {})
    assert end_gang(ranks) == [0] * 4, logs(folder)
    return [json.loads((folder / f"answers-{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize("name", [*CASES, "packed"])
def test_losses_and_gradients_are_those_of_one_process(answers: list[dict[str, Any]], name: str) -> None:
    for answer in (one[name] for one in answers):
        assert len(answer["steps"]) == STEPS
        for step in answer["steps"]:
            loss, plain = step["loss"]
            assert loss == pytest.approx(plain, rel=1e-6)
            assert step["norm"][0] == pytest.approx(step["norm"][1], rel=1e-5)
            assert step["apart"] <= TOLERANCE * step["largest"], step
        assert answer["held_out_apart"] < 1e-5
    assert len({json.dumps([step["loss"][0] for step in one[name]["steps"]]) for one in answers}) == 1, "each rank knows the loss"


@pytest.mark.parametrize("name", CASES)
def test_stages_are_uneven_and_their_parameters_have_the_whole_model_s_names(answers: list[dict[str, Any]], name: str) -> None:
    layers = answers[0][name]["layers"]
    assert sum(layers) == SHAPE.layers and max(layers) > min(layers) > 0
    first, _, second, _ = (set(one[name]["names"]) for one in answers)
    assert not first & second and len(first | second) == 3 + 7 * SHAPE.layers
    assert {f"blocks.{index}.feed.up.weight" for index in range(SHAPE.layers)} <= first | second
    assert "embedding.weight" in first


def test_bf16_computes_what_the_same_ranks_do_without_a_pipeline(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        found, alone = answer["bf16"]
        assert found == pytest.approx(alone, rel=1e-5)


def test_a_checkpoint_of_one_cut_is_that_of_another_and_of_none(answers: list[dict[str, Any]]) -> None:
    """Weights and moments of a folded pipeline, loaded by 1F1B, by interleaved stages, and by four ranks without a pipeline."""
    assert [answer["differ"] for answer in answers] == [[]] * 4


@pytest.mark.parametrize("name", CASES)
def test_the_bubble_that_is_measured_is_the_formula_s(answers: list[dict[str, Any]], name: str) -> None:
    """F = I = W = 1, on two ranks. torch does not overlap the pairs of DualPipe: see docs/pipeline.md."""
    found = answers[0][name]["bubbles"]
    formula = {"zbv": 0, "zb1p": 1, "zb1p of two": 1, "dualpipev": 1}.get(name, 3)
    assert found["measured"] == found["replayed"] == formula
    assert found["formula"] == (2 if name == "dualpipev" else formula)


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_timed_pass_by_pass(answers: list[dict[str, Any]], name: str) -> None:
    """By the machine's own clock: `bubbles` has seen that each rank made the schedule's passes in its order."""
    for found in (one[name]["timed"] for one in answers):
        assert 0 < found["cost"]["forward"] < found["makespan"] and 0 <= found["measured"] < found["makespan"]
    assert answers[0][name]["timed"]["makespan"] <= answers[0][name]["timed"]["took_s"]


def test_a_trace_has_each_pass_by_its_name_in_the_schedule_s_order(answers: list[dict[str, Any]]) -> None:
    for found in (one["zb1p"]["marked"] for one in answers):
        assert found["seen"] == found["wanted"] and {name[-2] for name in found["seen"]} >= {"F", "I", "W"}
