"""Where a job saves: its file says it, else the policy at its submission, else it is the job's folder."""

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core import features
from phalanx.core.errors import Conflict, SpecError
from phalanx.core.events import JobSubmitted, NodeUp
from phalanx.core.policy import Policy
from phalanx.core.spec import CheckpointPolicy, JobSpec
from phalanx.operate.agent.abilities import abilities
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.saving_places import checkpoints_at, with_store
from phalanx.operate.control.views import job_view
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import Bench, a_spec, shape
from tests.operate.control.test_wanted import JOB

JOBS = Path("/home/jobs")


def spec_with(store: str) -> JobSpec:
    return replace(a_spec(), checkpoint=CheckpointPolicy(store=store))


@pytest.mark.parametrize(
    ("asked", "policy", "wanted"),
    [
        ("", "", ""),
        ("s3://bkt/a/", "", "s3://bkt/a"),
        ("", "gs://bkt/team", "gs://bkt/team"),
        ("s3a://bkt/a", "gs://bkt/team", "s3://bkt/a"),
        ("folder", "gs://bkt/team", "folder"),
        ("file:///mnt/a", "", "/mnt/a"),
        ("abfs://box@account.dfs.core.windows.net/a", "", "abfs://box@account.dfs.core.windows.net/a"),
    ],
)
def test_the_file_goes_before_the_policy(asked: str, policy: str, wanted: str) -> None:
    assert with_store(Policy(checkpoint_store=policy), spec_with(asked)).checkpoint.store == wanted


@pytest.mark.parametrize("store", ["s3://B_d/a", "s3://bkt/../a", "az://box_/a", "abfs://box@nowhere!/a"])
def test_what_names_no_place_is_refused_by_its_field(store: str) -> None:
    with pytest.raises(SpecError, match=r"checkpoint\.store"):
        with_store(Policy(), spec_with(store))


def test_each_job_has_a_place_of_its_own_in_a_store_and_its_folder_without_one() -> None:
    for store, wanted in (
        ("", f"/home/jobs/{JOB}/checkpoints"),
        ("folder", f"/home/jobs/{JOB}/checkpoints"),
        ("s3://bkt/a", f"s3://bkt/a/{JOB}-1234"),
        ("/mnt/a", f"/mnt/a/{JOB}-1234"),
    ):
        draft = Draft(World())
        draft.add(NodeUp(shape("a"), "x"), 0)
        draft.add(JobSubmitted(JOB, spec_with(store), "c0de", "c", "ada"), 1234)
        job = draft.world.jobs[JOB]
        assert checkpoints_at(job, JOBS) == wanted
        assert job_view(draft.world, job, {}, jobs_folder=JOBS).checkpoints_at == wanted


def test_a_policy_s_place_at_which_no_job_could_save_is_refused_with_the_policy(bench: Bench) -> None:
    bench.add("a")
    for store in ("s3://b/p", "s3://B_d/a", "az://box_/a"):
        with pytest.raises(SpecError, match=r"^checkpoint_store"):
            bench.control.set_policy(Policy(checkpoint_store=store), "ada")
    bench.control.set_policy(Policy(checkpoint_store="s3://bkt/p"), "ada")


def test_a_key_stays_one_though_the_policy_s_place_changes_in_between(bench: Bench) -> None:
    bench.add("a", features=(features.CHECKPOINT_STORE,))
    job = bench.submit(a_spec(), key="k")
    bench.control.set_policy(Policy(checkpoint_store="s3://bkt/p"), "ada")
    assert bench.submit(a_spec(), key="k") == job
    named = bench.submit(spec_with("s3a://bkt/a"), key="named")
    bench.control.set_policy(Policy(), "ada")
    assert bench.submit(spec_with("s3a://bkt/a"), key="named") == named
    with pytest.raises(Conflict):
        bench.submit(spec_with("s3://bkt/other"), key="named")


def test_a_node_whose_ranks_would_save_elsewhere_is_given_no_job_with_a_place(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    with pytest.raises(SpecError, match=r"checkpoint\.store"):
        bench.submit(spec_with("s3://bkt/a"))
    assert features.needed(spec_with("folder")) == features.needed(spec_with("")) == frozenset()
    bench.submit(spec_with("folder"))
    bench.add("b", features=abilities())
    bench.tick()
    bench.submit(spec_with("s3://bkt/a"))
