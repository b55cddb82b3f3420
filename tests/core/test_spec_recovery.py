"""What a job may say about recovery inside its gang, and one clear error for what it may not."""

from typing import Any

import pytest

from phalanx.core import features, wire
from phalanx.core.errors import SpecError
from phalanx.core.spec import JobSpec, Recovery
from phalanx.core.spec_parse import parse_spec
from phalanx.core.spec_recovery import gang_sizes

RECIPE: dict[str, Any] = {"name": "x", "kind": "train", "recipe": "llama", "data": {"path": "d"}}
ON: dict[str, Any] = {"in_gang": True}


def test_it_is_off_unless_asked_for_and_then_needs_an_agent_that_can() -> None:
    plain, asked = parse_spec(RECIPE), parse_spec({**RECIPE, "recovery": {**ON, "spares": 2, "hang_timeout": "90s"}})
    assert plain.recovery == Recovery(in_gang=False, spares=1, hang_timeout="")
    assert features.RECOVERY not in features.needed(plain)
    assert features.RECOVERY in features.needed(asked)
    assert (asked.recovery.spares, asked.recovery.hang_ms, plain.recovery.hang_ms) == (2, 90_000, 600_000)
    assert wire.loads(JobSpec, wire.dumps(JobSpec, asked)) == asked


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"recovery": {"in_gang": "yes"}}, "recovery.in_gang", "true or false"),
        ({"recovery": {"spare": 1}}, "recovery.spare", "did you mean 'spares'"),
        ({"recovery": {"spares": 2}}, "recovery.spares", "write recovery.in_gang: true with it"),
        ({"recovery": {"hang_timeout": "2m"}}, "recovery.hang_timeout", "write recovery.in_gang: true with it"),
        ({"recovery": {**ON, "spares": -1}}, "recovery.spares", "0 to 8"),
        ({"recovery": {**ON, "spares": 9}}, "recovery.spares", "0 to 8"),
        ({"recovery": {**ON, "hang_timeout": "soon"}}, "recovery.hang_timeout", "a duration such as"),
        ({"recovery": {**ON, "hang_timeout": 30}}, "recovery.hang_timeout", "with its unit: 30s"),
        ({"recovery": {**ON, "hang_timeout": "1s"}}, "recovery.hang_timeout", "5s to 24h, longer than the longest step"),
        ({"recovery": {**ON, "hang_timeout": "2d"}}, "recovery.hang_timeout", "5s to 24h"),
        ({"recovery": ON, "max_duration": "5m"}, "recovery.hang_timeout", "less than max_duration (5m)"),
        ({"recovery": {"min_ranks": 1}}, "recovery.min_ranks", "write recovery.in_gang: true with it"),
        ({"recovery": {**ON, "min_ranks": "few"}}, "recovery.min_ranks", "whole number"),
        ({"recovery": {**ON, "min_ranks": -1}, "resources": {"gpus": 4}}, "recovery.min_ranks", "1 to all ranks (4)"),
        ({"recovery": {**ON, "min_ranks": 5}, "resources": {"gpus": 4}}, "recovery.min_ranks", "1 to all ranks (4)"),
        (
            {"recovery": {**ON, "min_ranks": 3}, "resources": {"gpus": 4}, "hyperparameters": {"accumulate": 2}},
            "recovery.min_ranks",
            "one of 1, 2, 4: the numbers of ranks that share a step's 8 microbatches evenly",
        ),
        ({"recovery": {"replicas": 1}}, "recovery.replicas", "write recovery.in_gang: true with it"),
        ({"recovery": {**ON, "replicas": "yes"}}, "recovery.replicas", "whole number"),
        ({"recovery": {**ON, "replicas": 2}, "resources": {"gpus": 4}}, "recovery.replicas", "write 1 for one"),
        ({"recovery": {**ON, "replicas": 1}}, "recovery.replicas", "a gang of one rank has nobody"),
        (
            {"recovery": ON, "hyperparameters": {"offload": "nvme"}},
            "hyperparameters.offload",
            "write cpu or none: to keep each step",
        ),
        ({"recovery": ON, "environment": {"image": "img"}}, "recovery.in_gang", "in a container"),
        ({"recovery": ON, "kind": "batch", "recipe": "", "entrypoint": "a"}, "recovery.in_gang", "kind: train"),
    ],
)
def test_what_cannot_work_is_refused_by_name(changed: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({**RECIPE, **changed})
    assert caught.value.field == field
    assert words in str(caught.value)


def test_the_sizes_that_a_gang_may_have_share_the_microbatches_of_a_step_evenly() -> None:
    def sizes(world_size: int, least: int, **more: Any) -> tuple[int, ...]:
        asked = {"recovery": {**ON, "min_ranks": least}, "resources": {"gpus": world_size}, **more}
        return gang_sizes(parse_spec({**RECIPE, **asked}), world_size)

    assert sizes(8, 0) == ()
    assert sizes(8, 1) == (1, 2, 4)
    assert sizes(8, 4) == (4,)
    assert sizes(8, 8) == ()
    assert sizes(8, 2, hyperparameters={"accumulate": 3}) == (2, 3, 4, 6)
    assert sizes(4, 2, recipe="", entrypoint="python train.py") == (2,), "of a script as if each rank made one"
    asked = parse_spec({**RECIPE, "recovery": {**ON, "min_ranks": 1}})
    assert features.SHRINK in features.needed(asked)
