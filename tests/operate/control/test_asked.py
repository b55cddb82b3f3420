"""What people ask for: pause, resume, retry, drain, undrain; in every state, twice, and across restarts of the control plane."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.errors import Conflict, NotFound, SpecError, StoreUnavailable
from phalanx.core.events import AttemptPlaced, JobResumed, JobRetried, NodeDrained, NodeUndrained, StopRequested
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.reasons import NoNodes, NoRoom
from phalanx.core.records import CheckpointCommitted
from phalanx.core.spec import Environment, JobSpec
from phalanx.core.states import Finished, Paused, Pending
from phalanx.core.training_data import DataSource
from phalanx.decide.scheduler import Plan
from phalanx.operate.control.asked import REASON_CHARS_MAX
from phalanx.operate.control.tracked import lineage_of, outbox_entries
from phalanx.operate.control.views import job_view, node_views, why_view
from tests.operate.control.control_bench import Agent, Bench, DatabaseLock, a_spec, new_bench

FIRST, SECOND, THIRD = (AttemptId(f"tiny-1.{number}") for number in (1, 2, 3))
A, B = NodeId("a"), NodeId("b")
Ask = Callable[[Bench, JobId], None]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """As the server sets it up: with the real outbox."""
    bench = new_bench(tmp_path / "home", outbox_for=outbox_entries, lineage=lineage_of)
    yield bench
    bench.check()
    bench.store.close()


def pause(bench: Bench, job: JobId) -> None:
    bench.control.pause(job, "ada")


def resume(bench: Bench, job: JobId) -> None:
    bench.control.resume(job, "ada")


def retry(bench: Bench, job: JobId) -> None:
    bench.control.retry(job, "ada")


def cancel(bench: Bench, job: JobId) -> None:
    bench.control.cancel(job, "ada")


def starting(bench: Bench, **wishes: object) -> tuple[JobId, Agent]:
    agent = bench.add("a")
    job = bench.submit(a_spec(**wishes))  # type: ignore[arg-type] # the caller names a_spec's own arguments
    bench.tick()
    return job, agent


def running(bench: Bench, **wishes: object) -> tuple[JobId, Agent]:
    job, agent = starting(bench, **wishes)
    agent.run(FIRST)
    bench.tick()
    assert bench.state(job) == "running"
    return job, agent


def restarted(bench: Bench) -> None:
    """The control plane is killed and started again, and its nodes say Hello."""
    bench.restart()
    for agent in bench.agents.values():
        agent.hello()
    bench.tick()


def told_tracker(bench: Bench) -> list[tuple[str, str]]:
    rows = [row.entry for row in bench.store.pending_outbox(1_000)]
    return [(entry["kind"], entry.get("status", entry.get("detail", ""))) for entry in rows]


def in_state(bench: Bench, state: str) -> JobId:
    """A job in that state; of `stopping`, by cause; `finished`, by outcome."""
    if state == "pending":
        return bench.submit()
    if state == "starting":
        return starting(bench)[0]
    job, agent = running(bench, max_duration="1m" if state == "max_duration" else "", max_restarts=0)
    if state in ("cancel", "pause", "drain", "max_duration"):
        agent.deaf = True
    match state:
        case "cancel":
            cancel(bench, job)
        case "pause" | "paused":
            pause(bench, job)
        case "drain":
            bench.control.drain(A, "disk", "ada", now=True)
        case "max_duration":
            bench.pass_time(60_000, "a")
        case "succeeded" | "failed":
            agent.end(FIRST, 0 if state == "succeeded" else 1)
        case "cancelled":
            cancel(bench, job)
    bench.tick(2)
    return job


STATES = [
    "pending",
    "starting",
    "running",
    "cancel",
    "pause",
    "drain",
    "max_duration",
    "paused",
    "succeeded",
    "failed",
    "cancelled",
]
AFTER: dict[str, list[str]] = {
    "pause": [
        "paused",
        "stopping",
        "stopping",
        "refused",
        "stopping",
        "stopping",
        "refused",
        "paused",
        "refused",
        "refused",
        "refused",
    ],
    "resume": ["pending", "starting", "running", "refused", "refused", "stopping", "refused", "pending", *["refused"] * 3],
    "retry": [*["refused"] * 9, "pending", "pending"],
}
"""The state right after the call, for each of STATES; 'refused' is a Conflict that changes nothing."""


@pytest.mark.parametrize("restart", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize(
    ("ask", "state", "after"), [(ask, *pair) for ask in AFTER for pair in zip(STATES, AFTER[ask], strict=True)]
)
def test_each_wish_in_each_state_and_twice(bench: Bench, ask: str, state: str, after: str, restart: bool) -> None:
    """Asked again, also by somebody whose first answer was lost, it changes nothing more."""
    job = in_state(bench, state)
    wish: Ask = {"pause": pause, "resume": resume, "retry": retry}[ask]
    if restart:
        bench.restart()
    before = bench.log()
    for _ in range(2):
        if after == "refused":
            with pytest.raises(Conflict, match=job):
                wish(bench, job)
            assert bench.log() == before
        elif ask == "retry" and bench.log() != before:
            with pytest.raises(Conflict, match="has not finished, it is pending"):
                wish(bench, job)
        else:
            wish(bench, job)
        assert after in ("refused", bench.state(job))
    assert len(bench.log()) <= len(before) + 1


@pytest.mark.parametrize("wish", [pause, resume, retry, cancel])
def test_a_job_that_nobody_knows_is_not_found(bench: Bench, wish: Ask) -> None:
    with pytest.raises(NotFound):
        wish(bench, JobId("nobody-9"))


@pytest.mark.parametrize("wish", [pause, resume, retry, cancel])
def test_a_wish_whose_database_is_locked_changes_nothing(bench: Bench, locked: DatabaseLock, wish: Ask) -> None:
    states: dict[Ask, str] = {resume: "paused", retry: "failed"}
    job = in_state(bench, states.get(wish, "running"))
    world = bench.world
    with locked, pytest.raises(StoreUnavailable):
        wish(bench, job)
    assert bench.world is world
    wish(bench, job)
    assert bench.world is not world


# Pause and resume


def test_a_paused_job_lets_go_of_its_devices_and_goes_on_when_it_is_resumed(bench: Bench) -> None:
    job, agent = running(bench, max_restarts=0)
    agent.deaf = True
    pause(bench, job)
    bench.tick(2)
    assert why_view(bench.world, bench.job(job), {}).sentence.startswith("stops since somebody paused it; holds its devices")
    with pytest.raises(Conflict, match="still lets go"):
        resume(bench, job)
    agent.deaf = False
    bench.tick(2)
    assert bench.job(job).state == Paused(1)
    assert (bench.world.held(), agent.held) == ({}, {})
    assert bench.world.attempts[FIRST].detail == "paused"
    sentence = why_view(bench.world, bench.job(job), {}).sentence
    assert sentence == f"paused; `phalanx resume {job}` lets it go on from its last checkpoint"
    bench.tick(3)
    assert agent.starts == [FIRST], "it waits for nobody but the one who resumes it"
    other = bench.submit(a_spec("other"))
    bench.tick()
    assert bench.state(other) == "starting", "its devices are anybody's meanwhile"
    resume(bench, job)
    assert bench.job(job).stop is None
    agent.end(AttemptId(f"{other}.1"))
    bench.tick(2)
    assert agent.starts[-1] == SECOND
    agent.run(SECOND)
    agent.end(SECOND)
    bench.tick()
    assert bench.job(job).state == Finished(2, "succeeded", "every rank exited with code 0")
    assert told_tracker(bench)[:3] == [("run_started", ""), ("run_waits", "paused"), ("run_started", "")]
    assert told_tracker(bench)[-1] == ("run_finished", "FINISHED")


def test_pauses_use_up_no_restarts_and_failures_still_do(bench: Bench) -> None:
    job, agent = running(bench, max_restarts=1)
    for number in (1, 2):
        pause(bench, job)
        bench.tick(2)
        restarted(bench)
        assert bench.job(job).state == Paused(number)
        resume(bench, job)
        restarted(bench)
        attempt = AttemptId(f"{job}.{number + 1}")
        agent.run(attempt)
        bench.tick()
        assert bench.state(job) == "running"
    assert bench.job(job).interruptions == 2
    agent.end(THIRD, 3)
    bench.restarted()
    assert bench.state(job) == "starting"
    agent.run(AttemptId("tiny-1.4"))
    agent.end(AttemptId("tiny-1.4"), 3)
    bench.tick(2)
    assert bench.job(job).state == Finished(4, "failed", "rank 0 exited with code 3")
    assert job_view(bench.world, bench.job(job), {}).restarts == 3


def test_a_job_that_is_paused_while_it_waits_waits_no_longer(bench: Bench) -> None:
    job = bench.submit()
    pause(bench, job)
    bench.add("a")
    bench.tick(3)
    assert bench.job(job).state == Paused(0)
    assert bench.control.waiting == {}
    assert told_tracker(bench) == [], "it never ran, so it has no run"
    resume(bench, job)
    bench.tick()
    assert bench.state(job) == "starting"


def test_a_job_paused_between_two_attempts_leaves_its_run_waiting(bench: Bench) -> None:
    job, agent = running(bench)
    agent.end(FIRST, 1)
    bench.control.observe()
    pause(bench, job)
    assert bench.job(job).state == Paused(1)
    assert told_tracker(bench) == [("run_started", ""), ("run_waits", "paused")]
    resume(bench, job)
    bench.tick()
    assert bench.state(job) == "starting", "a person asked for it: it is not put off"


def test_a_paused_job_can_be_cancelled_and_then_retried(bench: Bench) -> None:
    job, _ = running(bench)
    pause(bench, job)
    bench.tick(2)
    cancel(bench, job)
    assert bench.job(job).state == Finished(1, "cancelled", "cancelled while paused")
    assert told_tracker(bench)[-1] == ("run_finished", "KILLED")
    retry(bench, job)
    bench.tick()
    assert bench.state(job) == "starting"


def test_cancelling_a_job_that_is_being_paused_makes_it_cancelled(bench: Bench) -> None:
    job, agent = running(bench)
    agent.deaf = True
    pause(bench, job)
    bench.tick()
    cancel(bench, job)
    agent.deaf = False
    bench.tick(2)
    assert bench.job(job).state == Finished(1, "cancelled", "cancelled")
    assert told_tracker(bench)[-1] == ("run_finished", "KILLED")


@pytest.mark.parametrize("code", [0, 1])
def test_a_job_whose_ranks_end_by_themselves_while_it_is_paused_is_paused(bench: Bench, code: int) -> None:
    job, agent = running(bench, max_restarts=0)
    agent.deaf = True
    pause(bench, job)
    agent.end(FIRST, code)
    bench.tick(2)
    assert bench.job(job).state == Paused(1)


@pytest.mark.parametrize("ask", ["pause", "drain"])
def test_a_trainer_that_was_done_before_the_stop_reached_it_has_succeeded(bench: Bench, ask: str) -> None:
    """It saved its model: another attempt would register a second version."""
    agent = bench.add("a")
    plain = replace(a_spec(), kind="train", entrypoint="", recipe="llama", data=DataSource(path="/d"), hyperparameters={})
    job = bench.submit(plain)
    bench.tick()
    agent.run(FIRST)
    bench.tick()
    agent.deaf = True
    pause(bench, job) if ask == "pause" else bench.control.drain(A, "disk", "ada", now=True)
    agent.end(FIRST)
    bench.tick(2)
    assert bench.job(job).state == Finished(1, "succeeded", "every rank exited with code 0")
    assert bench.job(job).interruptions == 0
    assert told_tracker(bench)[-1] == ("run_finished", "FINISHED")


def test_a_job_that_is_done_and_ships_its_logs_is_neither_paused_nor_moved(bench: Bench) -> None:
    """It would run twice: that every rank exited with code 0 was known before anybody asked."""
    job, agent = running(bench)
    agent.exit(FIRST, {0: 0})
    bench.tick()
    bench.control.drain(A, "disk", "ada", now=False)
    agent.exit(FIRST, {1: 0})
    bench.tick()
    with pytest.raises(Conflict, match="about to finish"):
        pause(bench, job)
    bench.control.drain(A, "disk", "ada", now=True)
    assert bench.log(StopRequested) == []
    agent.end(FIRST)
    bench.tick()
    assert bench.job(job).state == Finished(1, "succeeded", "every rank exited with code 0")


def test_a_service_whose_ranks_all_left_is_paused_all_the_same(bench: Bench) -> None:
    """Another attempt would follow."""
    job, agent = running(bench, kind="service")
    agent.exit(FIRST, {0: 0, 1: 0})
    bench.tick()
    pause(bench, job)
    bench.tick(2)
    assert bench.job(job).state == Paused(1)


# Retry


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_retried_job_has_all_its_restarts_again_and_goes_on_with_its_run(bench: Bench, how: str) -> None:
    job, agent = running(bench, max_restarts=1)
    if how == "failed":
        agent.end(FIRST, 3)
        bench.restarted()
        agent.run(SECOND)
        agent.end(SECOND, 3)
    else:
        bench.control.facts(A, FIRST, 0, 9, [CheckpointCommitted(rank=0, step=5, path="/c", digest="d", size_bytes=1, at_ms=1)])
        cancel(bench, job)
    bench.tick(2)
    assert bench.state(job) == "finished"
    ended = bench.job(job)
    restarted(bench)
    retry(bench, job)
    opened = bench.job(job)
    assert opened.state == Pending(ended.state.attempt)
    assert (opened.stop, opened.finished_ms, opened.quick_ends) == (None, None, 0)
    assert (opened.attempts, opened.submitted_ms) == (ended.attempts, ended.submitted_ms)
    restarted(bench)
    for _ in range(2):
        attempt = bench.attempt(job).id
        agent.run(attempt)
        agent.end(attempt, 3)
        bench.restarted()
    assert bench.state(job) == "finished", "one attempt and one restart, as at first"
    assert len(bench.job(job).attempts) == len(ended.attempts) + 2
    kinds = [kind for kind, _ in told_tracker(bench)]
    assert kinds[-4:] == ["run_waits", "run_started", "run_started", "run_finished"]
    assert told_tracker(bench)[-1] == ("run_finished", "FAILED")


def test_a_retried_job_stands_in_line_by_its_first_submission(bench: Bench) -> None:
    first, agent = running(bench, max_restarts=0)
    agent.end(FIRST, 1)
    bench.tick(2)
    blocking, later = bench.submit(a_spec("blocking")), bench.submit(a_spec("later"))
    bench.tick()
    retry(bench, first)
    assert list(bench.world.open_jobs) == [first, blocking, later]
    agent.end(AttemptId(f"{blocking}.1"))
    bench.tick(2)
    assert (bench.state(first), bench.state(later)) == ("starting", "pending")


def test_a_job_that_fits_no_more_is_not_opened_again(bench: Bench) -> None:
    job, agent = running(bench, max_restarts=0)
    agent.end(FIRST, 1)
    bench.tick(2)
    agent.shape = replace(agent.shape, devices=agent.shape.devices[:1])
    agent.hello()
    bench.tick()
    with pytest.raises(SpecError, match="never fits"):
        retry(bench, job)
    assert bench.state(job) == "finished"


# Drain


def test_nothing_new_is_placed_on_a_drained_node_and_what_runs_there_runs_on(bench: Bench) -> None:
    job, agent = running(bench)
    bench.control.drain(A, "disk", "ada")
    waits = bench.submit(a_spec("waits"))
    bench.tick(2)
    assert bench.state(job) == "running"
    assert bench.control.waiting[waits].reason == NoNodes(1, drained=1)
    agent.end(FIRST)
    bench.tick(2)
    assert (bench.state(job), bench.state(waits)) == ("finished", "pending")
    restarted(bench)
    agent.boot = "boot-2"
    restarted(bench)
    assert bench.state(waits) == "pending", "a restart, of whatever, undrains nothing"
    (view,) = node_views(bench.world, {})
    assert (view.state, view.drained) == ("up", "disk")
    bench.control.undrain(A, "ada")
    bench.tick()
    assert bench.state(waits) == "starting"
    assert node_views(bench.world, {})[0].drained == ""


def test_a_drain_now_moves_gangs_off_and_uses_up_no_restart(bench: Bench) -> None:
    job, one = running(bench, max_restarts=0)
    two = bench.add("b")
    bench.tick()
    bench.control.drain(A, "disk", "ada", now=True)
    assert why_view(bench.world, bench.job(job), {}).sentence.startswith("stops since its node is drained")
    restarted(bench)
    bench.tick(3)
    assert (one.starts, two.starts) == ([FIRST], [SECOND])
    assert bench.world.attempts[FIRST].detail == "moved off a drained node"
    assert (bench.job(job).interruptions, bench.job(job).stop) == (1, None)
    two.run(SECOND)
    bench.tick()
    assert told_tracker(bench) == [("run_started", ""), ("run_started", "")], "its run never stopped"
    two.end(SECOND, 1)
    bench.tick(2)
    assert bench.job(job).state == Finished(2, "failed", "rank 0 exited with code 1"), "no restart was its own to use"


def test_a_drain_now_stops_the_whole_of_a_gang_that_has_a_part_there(bench: Bench) -> None:
    one, two = bench.add("a"), bench.add("b")
    job = bench.submit(a_spec(num_nodes=2))
    bench.tick()
    bench.control.drain(B, "disk", "ada", now=True)
    bench.tick(2)
    assert bench.job(job).state == Pending(1)
    assert (one.held, two.held) == ({}, {})


def test_draining_and_undraining_twice_is_once(bench: Bench) -> None:
    job, agent = running(bench)
    agent.deaf = True
    for _ in range(2):
        bench.control.drain(A, "disk", "ada", now=True)
        bench.control.drain(A, "disk", "ada")
        bench.restart()
        agent.hello()
        bench.tick()
    assert len(bench.log(NodeDrained)) == len(bench.log(StopRequested)) == 1
    bench.control.drain(A, "the other disk", "ada")
    assert bench.world.nodes[A].drained == "the other disk"
    for _ in range(2):
        bench.control.undrain(A, "ada")
    assert len(bench.log(NodeUndrained)) == 1
    assert bench.state(job) == "stopping", "it was asked to stop, and stops"
    agent.deaf = False
    bench.tick(2)
    assert agent.starts == [FIRST, SECOND]


@pytest.mark.parametrize("state", STATES)
def test_a_drain_now_in_each_state_of_a_job(bench: Bench, state: str) -> None:
    job = in_state(bench, state)
    if A not in bench.world.nodes:
        bench.add("a")
        bench.tick(decide=lambda _: Plan(()))
    before = bench.state(job)
    bench.control.drain(A, "disk", "ada", now=True)
    assert bench.state(job) == ("stopping" if before in ("starting", "running") else before)
    for agent in bench.agents.values():
        agent.deaf = False
        agent.hello()
    bench.tick(3)
    settled = {"cancel": "finished", "max_duration": "finished", "pause": "paused", "paused": "paused"}
    over = "finished" if state in ("succeeded", "failed", "cancelled") else "pending"
    assert bench.state(job) == settled.get(state, over)
    assert bench.world.held() == {}


def test_a_drain_needs_a_node_and_a_reason(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    with pytest.raises(NotFound, match="no such node"):
        bench.control.drain(B, "disk", "ada")
    with pytest.raises(NotFound, match="no such node"):
        bench.control.undrain(B, "ada")
    for reason in ("", "x" * (REASON_CHARS_MAX + 1)):
        with pytest.raises(SpecError, match="say why"):
            bench.control.drain(A, reason, "ada")
    assert bench.log(NodeDrained) == []


def test_pausing_a_job_that_is_moved_off_pauses_it(bench: Bench) -> None:
    job, agent = running(bench)
    agent.deaf = True
    bench.control.drain(A, "disk", "ada", now=True)
    pause(bench, job)
    agent.deaf = False
    bench.tick(3)
    assert bench.job(job).state == Paused(1)
    assert told_tracker(bench)[-1] == ("run_waits", "paused")


def test_the_log_says_who_asked(bench: Bench) -> None:
    job, agent = running(bench, max_restarts=0)
    pause(bench, job)
    bench.tick(2)
    resume(bench, job)
    bench.tick()
    agent.run(SECOND)
    agent.end(SECOND, 1)
    bench.tick(2)
    retry(bench, job)
    bench.tick()
    asked = [body for body in bench.log() if isinstance(body, StopRequested | JobResumed | JobRetried | AttemptPlaced)]
    assert [(body.kind, getattr(body, "by", "")) for body in asked] == [
        ("attempt_placed", ""),
        ("stop_requested", "ada"),
        ("job_resumed", "ada"),
        ("attempt_placed", ""),
        ("job_retried", "ada"),
        ("attempt_placed", ""),
    ]


# What agents can do


def test_a_job_that_no_agent_can_run_as_asked_is_refused_by_the_field_that_asks_for_it(bench: Bench) -> None:
    agent = bench.add("a", features=("secrets",))
    bench.tick()
    image = JobSpec(name="i", entrypoint="x", environment=Environment(image="docker.io/x"))
    stop = JobSpec(name="s", entrypoint="x", on_partition="stop")
    for spec, field, value in ((image, "environment.image", "docker.io/x"), (stop, "on_partition", "stop")):
        with pytest.raises(SpecError) as refused:
            bench.submit(spec)
        assert (refused.value.field, refused.value.value) == (field, value)
        assert "no node can do what" in refused.value.fix
    fine = bench.submit(JobSpec(name="f", entrypoint="x", secrets=("TOKEN",)))
    bench.tick()
    assert bench.state(fine) == "starting"
    assert agent.launches[AttemptId(f"{fine}.1")].secrets == ("TOKEN",)


def test_a_job_waits_for_an_able_node_and_an_upgraded_agent_is_one(bench: Bench) -> None:
    able = bench.add("b", features=("image",))
    able.cut = True
    other = bench.add("a")
    bench.pass_time(16_000, "a")
    job = bench.submit(JobSpec(name="i", entrypoint="x", environment=Environment(image="x")))
    bench.tick()
    assert bench.control.waiting[job].reason == NoRoom(asked=1, free=0, held=0, closed=2)
    other.shape = replace(other.shape, features=("image",))
    other.hello()
    bench.tick()
    assert other.starts == [f"{job}.1"]
