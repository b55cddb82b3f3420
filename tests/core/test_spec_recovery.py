"""What a job may say about recovery inside its gang, and one clear error for what it may not."""

from typing import Any

import pytest

from phalanx.core import features, wire
from phalanx.core.errors import SpecError
from phalanx.core.spec import JobSpec, Recovery
from phalanx.core.spec_parse import parse_spec

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
        ({"recovery": ON, "num_nodes": 2}, "recovery.in_gang", "num_nodes: 1"),
        ({"recovery": ON, "environment": {"image": "img"}}, "recovery.in_gang", "in a container"),
        ({"recovery": ON, "kind": "batch", "recipe": "", "entrypoint": "a"}, "recovery.in_gang", "kind: train"),
    ],
)
def test_what_cannot_work_is_refused_by_name(changed: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({**RECIPE, **changed})
    assert caught.value.field == field
    assert words in str(caught.value)
