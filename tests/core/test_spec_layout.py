"""What a job may say about its layout, what is refused by its words alone, and how ranks are told."""

from typing import Any

import pytest

from phalanx.core import features, wire
from phalanx.core.errors import SpecError
from phalanx.core.spec import JobSpec, LayoutSpec
from phalanx.core.spec_layout import LAYOUT_VARIABLE, layout_of, layout_variable
from phalanx.core.spec_parse import parse_spec

RECIPE: dict[str, Any] = {"name": "x", "kind": "train", "recipe": "llama", "data": {"path": "d"}, "resources": {"gpus": "8"}}
SCRIPT: dict[str, Any] = {"name": "x", "kind": "train", "entrypoint": "python train.py"}


def test_without_one_all_ranks_share_all_and_a_node_need_not_know_of_layouts() -> None:
    plain, asked = parse_spec(RECIPE), parse_spec({**RECIPE, "layout": {"zero": 1, "replicate": 2}})
    assert plain.layout == LayoutSpec(pp=1, cp=1, tp=1, ep=1, zero=3, replicate=1)
    assert features.LAYOUT not in features.needed(plain) and features.LAYOUT in features.needed(asked)
    assert (asked.layout.zero, asked.layout.replicate) == (1, 2)
    assert wire.loads(JobSpec, wire.dumps(JobSpec, asked)) == asked


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"layout": {"zero": 4}}, "layout.zero", "write 0, 1, 2 or 3"),
        ({"layout": {"zero": "3"}}, "layout.zero", "write 0, 1, 2 or 3"),
        ({"layout": {"replicas": 2}}, "layout.replicas", "did you mean 'replicate'"),
        ({"layout": {"replicate": 0}}, "layout.replicate", "write a whole number above 0"),
        ({"layout": {"replicate": -1}}, "layout.replicate", "write a whole number above 0"),
        ({"layout": {"replicate": "2"}}, "layout.replicate", "write a number, without quotes"),
        ({"layout": 2}, "layout", "write a mapping of its fields"),
        (
            {"layout": {"replicate": 2}, "recovery": {"in_gang": True}},
            "layout.replicate",
            "leave recovery.in_gang out: with replicate a gang that loses a rank starts again as a whole",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_field(changed: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({**RECIPE, **changed})
    assert refused.value.field == field and words in refused.value.fix


def test_a_script_lays_its_model_out_by_itself() -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({**SCRIPT, "layout": {"zero": 0}})
    assert (refused.value.field, refused.value.value) == ("layout", "zero: 0")
    assert "leave it out" in refused.value.fix


def test_a_way_to_share_sequences_is_refused_where_none_is_shared() -> None:
    with pytest.raises(SpecError, match="write cp too, or leave it out") as refused:
        parse_spec({**RECIPE, "layout": {"context": "ulysses"}})
    assert refused.value.field == "layout.context"
    assert parse_spec({**RECIPE, "layout": {"context": "ulysses", "cp": 2}}).layout.cp == 2


@pytest.mark.parametrize(
    ("layout", "field", "words"),
    [
        ({"schedule": "zbv"}, "schedule", "write pp too, or leave it out: with pp 1 there is no pipeline"),
        ({"stages_per_rank": 2}, "stages_per_rank", "write pp too, or leave it out"),
        ({"pp": 2, "stages_per_rank": -1}, "stages_per_rank", "write a whole number above 0, or leave it out"),
        ({"pp": 2, "schedule": "1f1c"}, "schedule", "gpipe"),
    ],
)
def test_a_pipeline_that_cannot_be_meant_is_refused(layout: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({**RECIPE, "layout": layout})
    assert refused.value.field == f"layout.{field}" and words in refused.value.fix


def test_axes_share_the_ranks_of_a_sample() -> None:
    spec = parse_spec({**RECIPE, "layout": {"pp": 2, "tp": 2, "cp": 2, "schedule": "interleaved"}})
    assert (spec.num_ranks, spec.num_data_ranks, spec.layout.ranks_per_sample) == (8, 1, 8)
    assert features.PIPELINE in features.needed(spec)
    assert features.PIPELINE not in features.needed(parse_spec({**RECIPE, "layout": {"tp": 2}}))


def test_ranks_are_told_and_nothing_where_nothing_was_asked() -> None:
    asked = LayoutSpec(zero=2, replicate=2)
    assert layout_of(layout_variable(asked)) == asked
    assert layout_variable(LayoutSpec()) == {} and layout_of({}) == LayoutSpec()


@pytest.mark.parametrize("text", ["{", '{"zero": 7}', '{"rows": 2}', '{"replicate": 0}', '{"replicate": "x"}'])
def test_what_is_no_layout_is_refused_by_ranks_too(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        layout_of({LAYOUT_VARIABLE: text})
