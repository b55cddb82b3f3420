"""What people set and ask for that concerns sharing: the policy, arrays, dependencies, deadlines, shares of devices."""

from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from phalanx.core.devices import Device, NodeSlice, Placement
from phalanx.core.errors import Conflict, SpecError
from phalanx.core.events import JobSubmitted, PolicySet
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Cells, NodeRule, Policy, Queue
from phalanx.core.spec import Array, JobSpec, Resources
from phalanx.decide.scheduler import Plan, Start
from phalanx.operate.control.store import Store
from phalanx.operate.control.wanted import Terms, launch
from tests.operate.control.control_bench import Bench, a_spec

A = NodeId("a")
LEFT = Policy(queues={"left": Queue(quota={"cpu": 2})})


def test_the_default_policy_holds_until_somebody_sets_one_and_that_survives_a_restart(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    assert bench.world.policy == Policy()
    bench.control.set_policy(LEFT, "ada")
    bench.control.set_policy(LEFT, "ada")
    assert bench.log(PolicySet) == [PolicySet(LEFT, "ada")]
    bench.restart()
    assert bench.world.policy == LEFT
    assert bench.control.observe().policy == LEFT


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Policy(queues={"left": Queue(quota={"cpu": 3})}), "queues.left.quota.cpu"),
        (Policy(queues={"left": Queue(quota={"H100": 1})}), "queues.left.quota.H100"),
        (Policy(queues={"left": Queue(cells=Cells(type="cpu", count=2))}), "queues.left.cells.count"),
    ],
)
def test_a_promise_that_the_fleet_cannot_keep_is_refused(bench: Bench, policy: Policy, field: str) -> None:
    bench.add("a")
    bench.tick()
    with pytest.raises(SpecError) as refused:
        bench.control.set_policy(policy, "ada")
    assert refused.value.field == field
    assert bench.log(PolicySet) == []


def test_a_rule_for_nobody_is_doubtful_and_labels_of_the_new_policy_make_cells(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    racks = (NodeRule(match="a*", labels={"rack": "1"}), NodeRule(match="z*"))
    policy = Policy(nodes=racks, queues={"left": Queue(cells=Cells(type="cpu", count=1, tier="rack"))})
    assert list(bench.control.set_policy(policy, "ada")) == ["nodes.1.match: 'z*' matches none of the known nodes"]
    with pytest.raises(SpecError, match="rack"):
        bench.control.check_policy(replace(policy, nodes=()))


def test_an_array_is_accepted_whole_and_answered_by_its_first_job(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    spec = replace(a_spec(gpus="1"), array=Array(count=3, parallel=1))
    assert bench.control.submit(spec, "", "key", "ada") == "tiny-1"
    assert bench.control.submit(spec, "", "key", "ada") == "tiny-1"
    bodies = [body for body in bench.log() if isinstance(body, JobSubmitted)]
    assert [(body.job, body.array, body.array_index) for body in bodies] == [(f"tiny-{n + 1}", "tiny-1", n) for n in range(3)]
    assert bench.control.submit(a_spec(), "", "", "ada") == "tiny-4"
    with pytest.raises(Conflict, match="another job"):
        bench.control.submit(replace(spec, array=Array(count=4)), "", "key", "ada")
    job = JobId("tiny-3")
    bench.tick(decide=lambda _: Plan((Start(job, Placement((NodeSlice(A, (0,)),))),)))
    started = bench.agents["a"].launches[AttemptId("tiny-3.1")]
    assert started.env == {"SEED": "1", "PHALANX_ARRAY_INDEX": "2"}


def test_a_large_array_is_one_transaction(bench: Bench) -> None:
    bench.control.submit(replace(a_spec(), array=Array(count=2_000)), "", "", "ada")
    assert len(bench.world.open_jobs) == 2_000
    assert bench.world.sequence == 2_000


def test_a_job_waits_only_for_jobs_that_are_known(bench: Bench) -> None:
    with pytest.raises(SpecError, match="no such job") as refused:
        bench.submit(replace(a_spec(), after=("tiny-1",)))
    assert refused.value.field == "after"
    first = bench.submit()
    second = bench.submit(replace(a_spec(), after=(first,)))
    assert [job.unmet for job in bench.control.observe().pending] == [(), (first,)]
    bench.control.cancel(first, "ada")
    assert [(job.facts.job, job.failed) for job in bench.control.observe().pending] == [(second, (first,))]


def test_a_deadline_lies_ahead(bench: Bench) -> None:
    bench.submit(replace(a_spec(), deadline="2030-01-01T09:00Z"))
    with pytest.raises(SpecError, match="is past"):
        bench.submit(replace(a_spec(), deadline="2023-01-01T09:00Z"))
    with pytest.raises(SpecError, match="is past"):
        bench.submit(replace(a_spec(), deadline="0s"))


def test_shares_of_a_device_are_held_together_and_not_beyond_it(bench: Bench) -> None:
    bench.add("a", count=1)
    bench.tick()
    jobs = [bench.submit(replace(a_spec(), resources=Resources(gpus="0.5"))) for _ in range(3)]
    half = Placement((NodeSlice(A, (0,), 500),))
    bench.tick(decide=lambda _: Plan(tuple(Start(job, half) for job in jobs)))
    assert [bench.state(job) for job in jobs] == ["starting", "starting", "pending"]
    [seen] = bench.control.observe().nodes
    assert (seen.free, seen.shares) == ((), ())
    bench.agents["a"].end(AttemptId(f"{jobs[0]}.1"))
    bench.tick(decide=lambda _: Plan((Start(jobs[2], half),)))
    assert [bench.state(job) for job in jobs] == ["finished", "starting", "starting"]


def test_memory_bounds_of_shares_are_held_against_the_device(bench: Bench) -> None:
    agent = bench.add("a", count=1, greet=False)
    agent.shape = replace(agent.shape, devices=(Device(0, "L4", "L4", 24 * 2**30),))
    agent.hello()
    bench.tick()
    jobs = [bench.submit(replace(a_spec(), resources=Resources(gpus="0.25", gpu_memory="16GiB"))) for _ in range(2)]
    part = Placement((NodeSlice(A, (0,), 250, 16 * 2**30),))
    bench.tick(decide=lambda _: Plan(tuple(Start(job, part) for job in jobs)))
    assert [bench.state(job) for job in jobs] == ["starting", "pending"]
    terms = Terms(epoch=1, jobs_folder=Path("/j"), grace_ms=1)
    env = launch(bench.world, bench.job(jobs[0]), bench.attempt(jobs[0]), A, terms).env
    assert {name: value for name, value in env.items() if name != "SEED"} == {
        "PHALANX_GPU_MEMORY_BYTES": str(16 * 2**30),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=16384M",
    }


def test_a_home_of_the_revision_before_is_opened_with_all_it_has(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "phalanx.operate.control:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        record = (
            '{"id":"old-1","sequence":1,"spec":{"name":"old","entrypoint":"true"},"code":"","config":"c","by":"ada",'
            '"submitted_ms":5,"state":{"attempt":0,"not_before_ms":0,"name":"pending"}}'
        )
        row = "INSERT INTO jobs (id, sequence, state, record) VALUES ('old-1', 1, 'pending', :record)"
        connection.execute(text(row), {"record": record})
    engine.dispose()
    store = Store(path)
    world = store.load()
    assert world.open_jobs[JobId("old-1")].spec == JobSpec(name="old", entrypoint="true")
    assert (world.policy, world.usage) == (Policy(), {})
    store.close()
