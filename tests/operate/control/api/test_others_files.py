"""Places that a spec names: those of the own team's jobs, and none of another's nor of the home."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phalanx.core.errors import SpecError
from phalanx.core.people import BUILT_IN, Person
from phalanx.core.policy import Policy
from phalanx.core.spec import CheckpointPolicy, JobSpec
from phalanx.core.training_data import DataSource, MixtureSource
from phalanx.operate.control.api import others_files
from tests.operate.control.control_bench import Bench, a_spec

BEA = Person(user="bea", token="t", roles={"blue": "member"})
STORE = "s3://bucket/runs"


@pytest.fixture
def services(bench: Bench) -> Any:
    """A red and a blue job, each in its folder and in a store."""
    bench.add("a")
    for team in ("red", "blue"):
        for name, store in ((f"{team}-here", ""), (f"{team}-there", STORE)):
            bench.control.submit(replace(a_spec(), name=name, team=team, checkpoint=CheckpointPolicy(store=store)), "", "", team)
    (bench.home / "link").symlink_to(bench.home / "jobs")
    return SimpleNamespace(home=bench.home, control=SimpleNamespace(world=bench.world))


def spec_with(field: str, place: str) -> JobSpec:
    spec = replace(a_spec(), team="blue")
    match field:
        case "checkpoint.store":
            return replace(spec, checkpoint=CheckpointPolicy(store=place))
        case "data.path":
            return replace(spec, data=DataSource(path=place))
        case "data.sources.x.path":
            return replace(spec, data=DataSource(sources={"x": MixtureSource(path=place)}))
        case _:
            return replace(spec, hyperparameters={"init": place})


FIELDS = ("hyperparameters.init", "data.path", "data.sources.x.path")


def places(services: Any, team: str) -> list[str]:
    jobs = {name: job for name, job in services.control.world.jobs.items() if job.spec.team == team}
    there = next(job for name, job in jobs.items() if "there" in name)
    here = next(name for name in jobs if "here" in name)
    kept = f"{STORE}/{there.id}-{there.submitted_ms}"
    return [
        f"{services.home}/jobs/{here}",
        f"{services.home}/jobs/{here}/models/1",
        f"{services.home}/link/{here}",
        kept,
        f"{kept}/step-5",
    ]


@pytest.mark.parametrize("field", FIELDS)
def test_only_the_own_teams_places_are_reached(services: Any, field: str) -> None:
    for place in (*places(services, "blue"), "s3://other/x", "/somewhere/else", f"file://{places(services, 'blue')[0]}"):
        others_files.refuse(services, BEA, spec_with(field, place))
    home = services.home
    closed = (*places(services, "red"), str(home), f"{home}/token", f"{home}/jobs", f"{home}/blobs/x", STORE, f"{STORE}/none-1-5/x")
    for place in (*closed, f"file://{home}/token", f"{home}/jobs/none-9", f"{places(services, 'blue')[0]}/../red-here-1", "../x"):
        with pytest.raises(SpecError) as refused:
            others_files.refuse(services, BEA, spec_with(field, place))
        assert refused.value.field == field, place
    for place in closed:
        others_files.refuse(services, BUILT_IN, spec_with(field, place))


def test_jobs_save_beside_each_other_and_not_in_each_other(services: Any) -> None:
    others_files.refuse(services, BEA, spec_with("checkpoint.store", STORE))
    others_files.refuse(services, BEA, spec_with("checkpoint.store", "s3://new/one"))
    for place in (*places(services, "red"), f"{services.home}/blobs"):
        with pytest.raises(SpecError):
            others_files.refuse(services, BEA, spec_with("checkpoint.store", place))


def test_the_policys_store_is_nobodys_to_read_whole(bench: Bench) -> None:
    world = SimpleNamespace(policy=Policy(checkpoint_store="/mnt/runs"), jobs={})
    services = cast(Any, SimpleNamespace(home=bench.home, control=SimpleNamespace(world=world)))
    with pytest.raises(SpecError, match="none of your team's jobs"):
        others_files.refuse(services, BEA, spec_with("hyperparameters.init", "/mnt/runs/none-1-5/step-5"))
