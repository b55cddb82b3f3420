"""What people set and ask for that concerns sharing: the policy, arrays, dependencies, deadlines, shares of devices."""

from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event, text

from phalanx.core.devices import Device, NodeSlice, Placement
from phalanx.core.errors import Conflict, SpecError
from phalanx.core.events import JobSubmitted, PolicySet
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Booking, Cells, NodeRule, Policy, Queue, Window
from phalanx.core.spec import Array, JobSpec, Placing, Resources
from phalanx.decide.scheduler import PendingJob, Plan, Start
from phalanx.operate.control.dry_views import plan_view
from phalanx.operate.control.queue_views import queue_views
from phalanx.operate.control.snapshots import job_facts
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


def test_a_limit_on_devices_that_the_fleet_lacks_and_a_booking_that_is_over_are_doubtful(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    over = Booking(queue="left", devices="cpu:1", start="1969-01-01T00:00Z", end="1969-01-02T00:00Z")
    policy = Policy(queues={"left": Queue(limit={"B200": 8})}, bookings={"old": over})
    assert list(bench.control.set_policy(policy, "ada")) == [
        "bookings.old.end: '1969-01-02T00:00Z': is past, so it keeps nothing; leave the booking out",
        "queues.left.limit.B200: 8: the fleet has none; it has cpu",
    ]


def test_a_job_whose_queue_window_or_region_is_gone_is_not_opened_again(bench: Bench) -> None:
    """The policy has changed since: it would wait for ever, or count for nothing."""
    whole = Policy(region="eu", queues={"lab": Queue()}, windows={"nights": (Window(),)})
    bench.control.set_policy(whole, "ada")
    job = bench.submit(replace(a_spec(), queue="lab", window="nights", placing=Placing(regions=("eu",))))
    bench.control.cancel(job, "ada")
    for field, value, policy in (
        ("queue", "lab", replace(whole, queues={"lap": Queue()})),
        ("window", "nights", replace(whole, windows={})),
        ("placing.regions", "eu", replace(whole, region="us")),
    ):
        bench.control.set_policy(policy, "ada")
        with pytest.raises(SpecError, match=f"change the policy, or submit the job again with another {field}") as caught:
            bench.control.retry(job, "ada")
        assert (caught.value.field, caught.value.value) == (field, value)
    assert bench.state(job) == "finished"
    bench.control.set_policy(whole, "ada")
    bench.control.retry(job, "ada")
    assert bench.state(job) == "pending"


def test_a_policy_says_which_open_jobs_it_leaves_behind(bench: Bench) -> None:
    bench.control.set_policy(Policy(queues={"lab": Queue()}, windows={"nights": (Window(),)}), "ada")
    first, *_ = (bench.submit(replace(a_spec(), queue="lab")) for _ in range(2))
    last = bench.submit(replace(a_spec(), window="nights"))
    done = bench.submit(replace(a_spec(), queue="lab"))
    bench.control.cancel(done, "ada")
    assert list(bench.control.set_policy(Policy(queues={"lap": Queue()}), "ada")) == [
        f"queues: 'lab': is not in the policy, but asked for by 2 open jobs, such as {first}",
        f"windows: 'nights': is not in the policy, but asked for by 1 open job, such as {last}",
    ]


@pytest.mark.parametrize("region", ["us", ""])
def test_no_policy_moves_a_job_to_a_region_that_it_does_not_name(bench: Bench, region: str) -> None:
    """Nobody asks again before it starts."""
    bench.control.set_policy(Policy(region="eu"), "ada")
    job = bench.submit(replace(a_spec(), placing=Placing(regions=("ch", "eu"))))
    with pytest.raises(SpecError, match=f"1 open job, such as {job}, must run in ch, eu; cancel first") as caught:
        bench.control.set_policy(Policy(region=region), "ada")
    assert (caught.value.field, caught.value.value, bench.world.policy) == ("region", region, Policy(region="eu"))
    bench.control.set_policy(Policy(region="ch"), "ada")
    bench.control.cancel(job, "ada")
    bench.control.set_policy(Policy(region=region), "ada")


@pytest.mark.parametrize(("region", "said"), [("us", "is in us"), ("", "does not say its region")])
def test_a_job_is_only_taken_in_a_region_that_it_names(bench: Bench, region: str, said: str) -> None:
    bench.control.set_policy(Policy(region=region), "ada")
    with pytest.raises(SpecError, match=said) as caught:
        bench.submit(replace(a_spec(), placing=Placing(regions=("eu", "ch"))))
    assert (caught.value.field, caught.value.value) == ("placing.regions", "eu, ch")
    bench.submit()


def test_a_price_of_nothing_is_a_price(bench: Bench) -> None:
    """Such as of devices that are paid for anyway: the catalogue's does not come back."""
    bench.add("a")
    bench.tick()
    facts = job_facts(JobId("mine"), a_spec(), bench.clock.now_ms(), 0)
    assert plan_view(bench.control.observe(), facts).cost_per_hour == pytest.approx(0.10)
    bench.control.set_policy(Policy(nodes=(NodeRule(match="*", price=0.0),)), "ada")
    assert plan_view(bench.control.observe(), facts).cost_per_hour == 0.0


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


def test_a_large_array_is_one_transaction_of_few_statements(bench: Bench) -> None:
    """One for each table: row by row, 10,000 jobs would hold up the tick for seconds."""
    said: list[str] = []
    event.listen(Engine, "before_cursor_execute", hear := lambda *seen: said.append(seen[2]))
    try:
        bench.control.submit(replace(a_spec(), array=Array(count=2_000)), "", "", "ada")
    finally:
        event.remove(Engine, "before_cursor_execute", hear)
    assert len(bench.world.open_jobs) == 2_000
    assert bench.world.sequence == 2_000
    assert sum(text.replace('"', "").startswith("INSERT INTO jobs ") for text in said) == 1
    assert len(said) < 10, said
    bench.restart()
    assert len(bench.world.open_jobs) == 2_000


def test_an_array_of_large_specs_is_refused(bench: Bench) -> None:
    """The log keeps the spec of each of its jobs."""
    large = replace(a_spec(), env={"BLOB": "x" * 500_000})
    bench.control.submit(replace(large, array=Array(count=10)), "", "", "ada")
    with pytest.raises(SpecError, match="shorten the spec") as refused:
        bench.control.submit(replace(large, array=Array(count=1_000)), "", "", "ada")
    assert refused.value.field == "array.count"
    assert len(bench.world.jobs) == 10


def test_a_job_waits_only_for_jobs_that_are_known(bench: Bench) -> None:
    with pytest.raises(SpecError, match="no such job") as refused:
        bench.submit(replace(a_spec(), after=("tiny-1",)))
    assert refused.value.field == "after"
    first = bench.submit()
    second = bench.submit(replace(a_spec(), after=(first,)))
    assert [job.unmet for job in bench.control.observe().pending] == [(), (first,)]
    bench.control.cancel(first, "ada")
    assert [(job.facts.job, job.failed) for job in bench.control.observe().pending] == [(second, (first,))]


def test_a_queue_or_a_window_that_the_policy_does_not_have_is_refused(bench: Bench) -> None:
    """It may be mistyped: it would count for nothing, or wait for ever."""
    bench.add("a")
    bench.tick()
    bench.submit(replace(a_spec(), queue="any"))
    with pytest.raises(SpecError, match="it has no windows"):
        bench.submit(replace(a_spec(), window="night"))
    windows = {"night": (Window(hours="20:00-06:00"),)}
    bench.control.set_policy(Policy(queues={"vision": Queue(), "speech": Queue()}, windows=windows), "ada")
    bench.submit(replace(a_spec(), window="night", queue="vision"))
    bench.submit(a_spec())
    for wrong, field, fix in (
        (replace(a_spec(), queue="visoin"), "queue", "did you mean 'vision'?"),
        (replace(a_spec(), queue="visoin", array=Array(count=2)), "queue", "did you mean 'vision'?"),
        (replace(a_spec(), queue="zzz"), "queue", "it has speech, vision"),
        (replace(a_spec(), window="nights"), "window", "did you mean 'night'?"),
    ):
        with pytest.raises(SpecError) as refused:
            bench.submit(wrong)
        assert (refused.value.field, refused.value.fix) == (field, f"is not in the policy; {fix}")
    assert len(bench.world.jobs) == 3


def test_who_comes_after_an_array_waits_for_all_of_it(bench: Bench) -> None:
    bench.add("a", count=4)
    bench.tick(decide=lambda _: Plan(()))
    first = bench.control.submit(replace(a_spec(gpus="1"), array=Array(count=3)), "", "", "ada")
    last = bench.submit(replace(a_spec(), after=(first,)))
    members = [JobId(f"tiny-{number}") for number in (1, 2, 3)]

    def seen() -> PendingJob:
        return next(job for job in bench.control.observe().pending if job.facts.job == last)

    assert (seen().unmet, seen().failed) == (tuple(members), ())
    bench.tick(decide=lambda _: Plan((Start(members[0], Placement((NodeSlice(A, (0,)),))),)))
    bench.agents["a"].run(AttemptId("tiny-1.1"))
    bench.agents["a"].end(AttemptId("tiny-1.1"))
    assert seen().unmet == (members[1], members[2]), "the first alone does not do"
    bench.control.cancel(members[1], "ada")
    assert (seen().unmet, seen().failed) == ((members[2],), (members[1],))
    bench.control.retry(members[1], "ada")
    assert (seen().unmet, seen().failed) == ((members[1], members[2]), ())
    only_one = bench.submit(replace(a_spec(), after=(members[2],)))
    found = next(job for job in bench.control.observe().pending if job.facts.job == only_one)
    assert found.unmet == (members[2],), "any other of them stands for itself"


def test_an_array_is_cancelled_whole(bench: Bench) -> None:
    bench.add("a", count=4)
    bench.tick(decide=lambda _: Plan(()))
    first = bench.control.submit(replace(a_spec(gpus="1"), array=Array(count=3)), "", "", "ada")
    other = bench.submit(a_spec())
    bench.tick(decide=lambda _: Plan((Start(JobId("tiny-2"), Placement((NodeSlice(A, (0,)),))),)))
    bench.agents["a"].run(AttemptId("tiny-2.1"))
    bench.control.cancel(first, "ada")
    bench.control.cancel(JobId("tiny-3"), "ada", array=True)
    for _ in range(2):
        bench.tick(decide=lambda _: Plan(()))
    assert [bench.state(JobId(f"tiny-{number}")) for number in (1, 2, 3)] == ["finished"] * 3
    assert bench.state(other) == "pending"
    with pytest.raises(Conflict, match="every job of its array tiny-1 has already finished"):
        bench.control.cancel(first, "ada", array=True)
    with pytest.raises(Conflict, match="of no array"):
        bench.control.cancel(other, "ada", array=True)


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
    seen = bench.control.observe()
    assert (seen.nodes[0].free, seen.nodes[0].shares) == ((), ())
    [queue] = queue_views(seen)
    assert queue.held == {"cpu": 1.0}
    bench.agents["a"].end(AttemptId(f"{jobs[0]}.1"))
    bench.tick(decide=lambda _: Plan((Start(jobs[2], half),)))
    assert [bench.state(job) for job in jobs] == ["finished", "starting", "starting"]


def test_queues_hold_and_borrow_shares_as_they_are(bench: Bench) -> None:
    bench.add("a", count=2)
    bench.tick()
    job = bench.submit(replace(a_spec(), queue="left", resources=Resources(gpus="0.3")))
    other = bench.submit(replace(a_spec(), queue="left", resources=Resources(gpus="1")))
    places = (Placement((NodeSlice(A, (0,), 300),)), Placement((NodeSlice(A, (1,)),)))
    bench.control.set_policy(Policy(queues={"left": Queue(quota={"cpu": 1}, parent="all"), "all": Queue()}), "ada")
    bench.tick(decide=lambda _: Plan((Start(job, places[0]), Start(other, places[1]))))
    above, left = queue_views(bench.control.observe())
    assert (left.held, left.borrowed) == ({"cpu": 1.3}, {"cpu": 0.3})
    assert (above.name, above.held, above.borrowed) == ("all", {"cpu": 1.3}, {})


def test_a_queue_with_cells_borrows_what_it_holds_beyond_them(bench: Bench) -> None:
    for node in ("a", "b"):
        bench.add(node, count=1)
    bench.tick()
    bench.control.set_policy(Policy(queues={"left": Queue(cells=Cells(type="cpu", count=1))}), "ada")
    at_home, away = (bench.submit(replace(a_spec(), queue="left", resources=Resources(gpus="1"))) for _ in range(2))
    places = Placement((NodeSlice(A, (0,)),)), Placement((NodeSlice(NodeId("b"), (0,)),), borrowed=True)
    bench.tick(decide=lambda _: Plan((Start(at_home, places[0]), Start(away, places[1]))))
    [left] = queue_views(bench.control.observe())
    assert (left.held, left.borrowed) == ({"cpu": 2.0}, {"cpu": 1.0})


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


def test_a_queue_without_quota_borrows_what_is_there_only_while_others_do_not_use_theirs(bench: Bench) -> None:
    bench.add("a", count=12)
    bench.tick()
    queues = {
        "left": Queue(quota={"*": 4}),
        "right": Queue(quota={"*": 4}),
        "org": Queue(),
        "own": Queue(parent="org", quota={"*": 0}),
    }
    bench.control.set_policy(Policy(queues=queues), "ada")
    jobs = [
        bench.submit(replace(a_spec(), queue=queue, resources=Resources(gpus=gpus)))
        for queue, gpus in (("default", "4"), ("default", "6"))
    ]
    bench.tick(decide=lambda _: Plan((Start(jobs[0], Placement((NodeSlice(A, tuple(range(4))),))),)))
    views = {view.name: view for view in queue_views(bench.control.observe())}
    assert views["default"].borrowed == {}, "nobody is guaranteed these four"
    bench.tick(decide=lambda _: Plan((Start(jobs[1], Placement((NodeSlice(A, tuple(range(4, 10))),))),)))
    views = {view.name: view for view in queue_views(bench.control.observe())}
    assert (views["default"].held, views["default"].borrowed) == ({"cpu": 10.0}, {"cpu": 6.0})
    assert views["org"].borrowed == views["left"].borrowed == {}


def test_what_is_held_within_the_quota_of_a_queue_above_is_not_borrowed(bench: Bench) -> None:
    bench.add("a", count=8)
    bench.tick()
    queues = {"org": Queue(quota={"cpu": 4}), "lab": Queue(parent="org"), "left": Queue(quota={"cpu": 4})}
    bench.control.set_policy(Policy(queues=queues), "ada")
    jobs = [
        bench.submit(replace(a_spec(), queue=queue, resources=Resources(gpus=gpus)))
        for queue, gpus in (("lab", "5"), ("default", "3"))
    ]
    parts = [Placement((NodeSlice(A, devices),)) for devices in ((0, 1, 2, 3, 4), (5, 6, 7))]
    bench.tick(decide=lambda _: Plan(tuple(Start(job, part) for job, part in zip(jobs, parts, strict=True))))
    views = {view.name: view.borrowed for view in queue_views(bench.control.observe())}
    assert views == {"default": {"cpu": 3.0}, "lab": {"cpu": 1.0}, "left": {}, "org": {"cpu": 1.0}}
