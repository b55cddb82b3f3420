"""A model version's lineage names what its job ran in."""

import pytest

from phalanx.core.ids import AttemptId, JobId
from phalanx.core.records import ModelSaved
from phalanx.core.spec import Environment, JobSpec
from phalanx.record.tracking.lineage import KEYS, lineage_of


def lineage(environment: Environment, told: dict[str, str]) -> dict[str, str]:
    spec = JobSpec(name="x", entrypoint="true", workdir="/w", environment=environment)
    saved = ModelSaved(rank=0, step=4, at_ms=1, path="/m", weights_digest="d" * 64, metrics={}, lineage=told)
    return lineage_of(spec, "c0de", "c0f1g", JobId("x-1"), [AttemptId("x-1.1")], saved)


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        (Environment(lock="uv.lock"), "environment.lock"),
        (Environment(image="registry.example/x:1"), "environment.image"),
        (Environment(python="/opt/bin/python"), "environment.python"),
    ],
)
def test_what_the_job_asked_to_run_in_is_named(environment: Environment, key: str) -> None:
    asked = environment.lock or environment.image or environment.python
    silent = lineage(environment, {})
    assert (silent["environment"], silent[key]) == (asked, asked)
    told = lineage(environment, {"environment": "python 3.12"})
    assert (told["environment"], told[key]) == ("python 3.12", asked)
    assert set(told) == {*KEYS, key}


def test_the_rank_adds_the_locks_content_and_cannot_change_an_image() -> None:
    content = f"uv.lock sha256:{'a' * 64}, environment 0123"
    assert lineage(Environment(lock="uv.lock"), {"environment.lock": content})["environment.lock"] == content
    assert lineage(Environment(image="x:1"), {"environment.image": "y:2"})["environment.image"] == "x:1"


def test_the_platforms_own_python_adds_nothing() -> None:
    assert set(lineage(Environment(), {"environment.lock": ""})) == set(KEYS)
