"""Shells and notebooks in a job's spec: what they need, and one clear refusal for each thing that they do not take."""

from typing import Any

import pytest

from phalanx.core.errors import SpecError
from phalanx.core.spec import IDLE_MS
from phalanx.core.spec_parse import parse_spec


@pytest.mark.parametrize("kind", ["shell", "notebook"])
def test_a_session_needs_a_name_alone(kind: str) -> None:
    spec = parse_spec({"name": "mine", "kind": kind})
    assert (spec.session, spec.idle_timeout_ms) == (kind, IDLE_MS)


@pytest.mark.parametrize(("text", "ms"), [("2h", 7_200_000), ("0", 0), (0, 0), ("1m", 60_000)])
def test_how_long_it_may_be_idle(text: object, ms: int) -> None:
    assert parse_spec({"name": "mine", "kind": "shell", "idle_timeout": text}).idle_timeout_ms == ms


def test_other_kinds_are_never_idle() -> None:
    assert parse_spec({"name": "mine", "entrypoint": "true"}).idle_timeout_ms == 0


@pytest.mark.parametrize(
    ("change", "field", "fix"),
    [
        ({"num_nodes": 2}, "num_nodes", "one node"),
        ({"array": {"count": 2}}, "array", "by itself"),
        ({"environment": {"image": "a/b:c"}}, "environment.image", "lock or a python"),
        ({"idle_timeout": "30s"}, "idle_timeout", "1m or more"),
        ({"idle_timeout": "soon"}, "idle_timeout", "write a duration"),
        ({"idle_timeout": 30}, "idle_timeout", "m"),
        ({"kind": "notebook", "entrypoint": "python x.py"}, "entrypoint", "leave it out"),
        ({"kind": "batch", "entrypoint": "true", "idle_timeout": "1h"}, "idle_timeout", "kind: shell"),
        ({"kind": "batch"}, "entrypoint", "exactly one"),
    ],
)
def test_what_does_not_go_with_it_is_refused(change: dict[str, Any], field: str, fix: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({"name": "mine", "kind": "shell", **change})
    assert refused.value.field == field
    assert fix in refused.value.fix
