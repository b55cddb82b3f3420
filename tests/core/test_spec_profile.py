"""What a job may say about its traces, what is refused at submit, and how ranks are told."""

from typing import Any

import pytest

from phalanx.core import features, wire
from phalanx.core.errors import SpecError
from phalanx.core.spec import JobSpec, ProfileSpec
from phalanx.core.spec_parse import parse_spec
from phalanx.core.spec_profile import PROFILE_VARIABLE, profile_of, profile_variable

RECIPE: dict[str, Any] = {
    "name": "x", "kind": "train", "recipe": "llama", "data": {"path": "d"}, "hyperparameters": {"steps": 50},
}  # fmt: skip
SCRIPT: dict[str, Any] = {"name": "x", "kind": "train", "entrypoint": "python train.py"}


def test_without_one_nothing_is_traced_and_a_node_need_not_know_of_it() -> None:
    plain, asked = parse_spec(RECIPE), parse_spec({**RECIPE, "profile": {"first": 48}})
    assert plain.profile is None and asked.profile == ProfileSpec(first=48, count=3)
    assert features.PROFILE not in features.needed(plain) and features.PROFILE in features.needed(asked)
    assert wire.loads(JobSpec, wire.dumps(JobSpec, asked)) == asked
    assert parse_spec({**SCRIPT, "profile": {"first": 10**6}}).profile is not None, "nobody knows a script's steps"


@pytest.mark.parametrize(
    ("profile", "field", "words"),
    [
        ({"first": 0}, "profile.first", "write a step's number, from 1"),
        ({"first": 1, "count": 0}, "profile.count", "write 1 to 100 steps"),
        ({"first": 1, "count": 101}, "profile.count", "write 1 to 100 steps"),
        ({"first": 51}, "profile.first", "the run ends with step 50: write an earlier one"),
        ({"first": 48, "count": 4}, "profile.count", "the run ends with step 50: write at most 3"),
        ({"first": "48"}, "profile.first", "write a number, without quotes"),
        ({"first": True}, "profile.first", "write a number"),
        ({"fist": 1}, "profile.fist", "did you mean 'first'"),
        ({"count": 1}, "profile.first", "is required"),
        (5, "profile", "write a mapping of its fields"),
    ],
)
def test_what_cannot_be_traced_is_refused_by_its_field(profile: object, field: str, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({**RECIPE, "profile": profile})
    assert refused.value.field == field and words in refused.value.sentence()


def test_a_job_without_steps_has_none_to_trace() -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({**SCRIPT, "kind": "batch", "profile": {"first": 3}})
    assert (refused.value.field, refused.value.value) == ("profile", "first: 3, count: 3")


def test_ranks_are_told_and_nothing_where_nothing_was_asked() -> None:
    asked = ProfileSpec(first=7, count=2)
    assert profile_of(profile_variable(asked)) == asked
    assert profile_variable(None) == {} and profile_of({}) is None
    with pytest.raises(ValueError, match="write 1 to 100 steps"):
        profile_of({PROFILE_VARIABLE: '{"first": 1, "count": 1000}'})
