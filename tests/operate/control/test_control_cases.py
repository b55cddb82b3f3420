"""What users of other platforms hit, and reviewers of this one: clocks that jump, crash loops, floods, ends that nobody saw."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from phalanx.core.errors import Exit
from phalanx.core.events import AttemptEnded, AttemptPlaced, AttemptRunning, JobSubmitted, NodeAway
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.messages import PROTOCOL, Hello, Phase, RankExit, RankProcess, StopRanks
from phalanx.core.records import CheckpointCommitted, ModelSaved
from phalanx.core.spec import JobSpec, Kind, Resources
from phalanx.core.states import Finished, Pending
from phalanx.core.training_data import DataSource
from phalanx.core.units import MILLI
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.facts import FACTS_MAX
from phalanx.operate.control.store import Store
from phalanx.operate.control.tracked import lineage_of, outbox_entries
from phalanx.operate.control.views import job_view, why_view
from phalanx.operate.control.world import CHECKPOINTS_KEPT
from phalanx.record.telemetry.ledger import account
from tests.operate.control.control_bench import LEASE_MS, Agent, Bench, a_spec, new_bench

pytestmark = pytest.mark.both_databases

FIRST, SECOND = AttemptId("tiny-1.1"), AttemptId("tiny-1.2")
RECIPE = JobSpec(name="tiny", kind="train", recipe="llama", data=DataSource(path="/d"), resources=Resources(gpus="2"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """As the server sets it up: with the real outbox and lineage, and commands that are not sent again at every tick."""
    bench = new_bench(tmp_path / "home", outbox_for=outbox_entries, lineage=lineage_of, resend_ms=2_000)
    yield bench
    bench.check()
    bench.store.close()


def running(bench: Bench, spec: JobSpec | None = None) -> tuple[JobId, Agent]:
    agent = bench.add("a")
    job = bench.submit(spec or a_spec())
    bench.tick()
    agent.run(AttemptId(f"{job}.1"))
    bench.tick()
    assert bench.state(job) == "running"
    return job, agent


def told_tracker(bench: Bench) -> list[str]:
    return [row.entry["kind"] for row in bench.store.pending_outbox(1_000)]


def checkpoint(number: int) -> CheckpointCommitted:
    return CheckpointCommitted(rank=0, step=number, path="/c", digest=str(number), size_bytes=1, at_ms=5)


def model() -> ModelSaved:
    return ModelSaved(rank=0, step=9, path="/m", weights_digest="d", metrics={}, lineage={}, at_ms=5)


# Cases


@pytest.mark.parametrize("kind", ["batch", "train", "service", "interactive"])
def test_P01_every_kind_of_job_survives_a_restart_of_the_control_plane(bench: Bench, kind: Kind) -> None:
    job, agent = running(bench, a_spec(kind=kind))
    waits = bench.submit(a_spec("waits", kind=kind))
    for _ in range(3):
        bench.restart()
        bench.tick()
        agent.hello()
        bench.tick(2)
        assert (bench.state(job), bench.state(waits)) == ("running", "pending")
    assert agent.starts == [FIRST]
    agent.end(FIRST)
    bench.tick(2)
    assert agent.starts == [FIRST, AttemptId(f"{waits}.1")]
    assert bench.world.attempts[FIRST].ok


def test_P05_a_preempted_node_is_away_within_its_lease_and_its_job_queued_again_once_it_is_back(bench: Bench) -> None:
    """Nobody looks at a dead worker for hours: the lease says it is away, and its word that the ranks are gone requeues."""
    job, agent = running(bench)
    bench.pass_time(LEASE_MS + 1)
    assert len(bench.log(NodeAway)) == 1
    assert "away now" in why_view(bench.world, bench.job(job), bench.control.waiting).sentence
    agent.held.clear()
    agent.boot = "boot-2"
    agent.hello()
    bench.tick()
    assert bench.world.attempts[FIRST].detail == "node a lost its ranks: it came back without them"
    assert agent.starts == [FIRST, SECOND], "it had run for longer than a crash at the start takes: at once"


def test_P06_a_job_cancelled_between_attempts_leaves_no_run_running(bench: Bench) -> None:
    job, agent = running(bench)
    agent.end(FIRST, 1)
    bench.control.observe()
    assert isinstance(bench.job(job).state, Pending)
    bench.control.cancel(job, "ada")
    assert bench.job(job).state == Finished(1, "cancelled", "cancelled while waiting")
    (started, finished) = [row.entry for row in bench.store.pending_outbox(10)]
    assert started["kind"] == "run_started"
    assert (finished["kind"], finished["status"], finished["attempts"]) == ("run_finished", "KILLED", [FIRST])
    never = bench.submit(a_spec("never"))
    bench.control.cancel(never, "ada")
    assert len(told_tracker(bench)) == 2, "a job that never ran leaves no run"


def test_P09_of_32_that_submit_at_once_everybody_gets_a_job_and_nobody_a_locked_database(bench: Bench) -> None:
    """One thread writes, whoever asks; and other writers of the file wait their turn."""
    bugs: list[BaseException] = []

    async def all_at_once() -> list[JobId]:
        control = ControlThread(bench.control, bugs.append)
        asked = (control.call(lambda controller, n=n: controller.submit(a_spec(f"j{n}"), "", f"k{n}", "ada")) for n in range(32))  # type: ignore[misc] # loop variable bound
        writers = (asyncio.to_thread(other.set_tokens, other.leader().epoch, {f"{n:064d}": "admin"}, n) for n in range(32))
        jobs, _ = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*writers))
        control.close()
        return jobs

    bench.store.close()
    patient = Store(bench.database)
    bench.store, bench.control = patient, type(bench.control)(patient, bench.clock, bench.links, bench.settings)
    other = Store(bench.database)
    jobs = asyncio.run(all_at_once())
    other.close()
    assert sorted(jobs) == sorted(bench.world.jobs)
    assert len(bench.log(JobSubmitted)) == 32
    assert bugs == []


# Clocks


def test_a_wall_clock_that_jumps_neither_ends_an_attempt_nor_lets_it_run_longer(bench: Bench) -> None:
    job, agent = running(bench, a_spec(max_duration="2h"))
    for jump_ms in (86_400_000, -10 * 86_400_000):
        bench.clock.jump(jump_ms)
        bench.tick()
        assert bench.state(job) == "running"
    agent.deaf = True
    bench.clock.sleep(7_199_999)
    bench.tick()
    assert bench.job(job).stop is None
    bench.clock.sleep(1)
    bench.tick()
    assert bench.job(job).stop == "max_duration"


@pytest.mark.parametrize(("jump_ms", "more_ms"), [(0, 60_000), (30_000, 30_000), (-86_400_000, 120_000)])
def test_what_an_attempt_ran_before_a_restart_counts_by_the_wall_clock(bench: Bench, jump_ms: int, more_ms: int) -> None:
    job, agent = running(bench, a_spec(max_duration="2m"))
    agent.deaf = True
    bench.clock.sleep(60_000)
    bench.clock.jump(jump_ms)
    bench.restart()
    agent.hello()
    bench.clock.sleep(more_ms - 1)
    bench.tick()
    assert bench.job(job).stop is None
    bench.clock.sleep(1)
    bench.tick()
    assert bench.job(job).stop == "max_duration"


def test_a_wall_clock_that_is_set_back_holds_no_restart_back(bench: Bench) -> None:
    job, agent = running(bench)
    agent.end(FIRST, 1)
    bench.tick(2)
    assert bench.state(job) == "pending"
    bench.clock.jump(-86_400_000)
    bench.tick()
    assert agent.starts == [FIRST, SECOND]


# Ends that nobody saw


@pytest.mark.parametrize("ended_at_once", [True, False])
def test_a_job_that_ran_while_the_server_was_down_did_run(bench: Bench, ended_at_once: bool) -> None:
    agent = bench.add("a")
    job = bench.submit(a_spec(kind="train"))
    bench.tick()
    bench.restart()
    exits, ranks = (RankExit(0, 0, 1), RankExit(1, 0, 1)), (RankProcess(0, 1000), RankProcess(1, 1001))
    phase: Phase = "ended" if ended_at_once else "stopping"
    agent.held[FIRST] = replace(agent.held[FIRST], phase=phase, exits=exits, ranks=ranks)
    agent.hello()
    bench.control.facts(agent.node, FIRST, 0, 10, [model()])
    bench.tick()
    if not ended_at_once:
        agent.end(FIRST)
        bench.tick()
    assert isinstance(bench.job(job).state, Finished)
    assert bench.attempt(job).running_ms is not None
    assert [type(body) for body in bench.log() if isinstance(body, AttemptRunning | AttemptEnded)] == [AttemptRunning, AttemptEnded]
    assert sorted(told_tracker(bench)) == ["model_version", "run_finished", "run_started"]


@pytest.mark.parametrize("exits", [(), (RankExit(0, -15, 1), RankExit(1, -15, 1))], ids=["no exits", "stopped before the start"])
def test_an_attempt_that_no_rank_ran_of_did_not_run(bench: Bench, exits: tuple[RankExit, ...]) -> None:
    """An exit without a process is of a rank that was never started."""
    agent = bench.add("a")
    job = bench.submit(a_spec(max_restarts=0))
    bench.tick()
    agent.held[FIRST] = replace(agent.held[FIRST], phase="ended", exits=exits)
    agent.report(FIRST)
    bench.tick()
    assert bench.attempt(job).running_ms is None
    assert told_tracker(bench) == []


# A platform that is stopped, and comes back


DOWN_MS = 7_200_000


def stop_platform(bench: Bench, agent: Agent, attempt: AttemptId = FIRST, code: int = -15, phase: Phase = "ended") -> int:
    """`down --force`, and an `up` two hours later, the agent not there yet. When the ranks were gone."""
    gone_ms = bench.clock.now_ms()
    exits = tuple(RankExit(rank, code, gone_ms) for rank in (0, 1))
    lost = "they were stopped with the platform"
    agent.held[attempt] = replace(
        agent.held[attempt], phase=phase, ranks=(), exits=exits, lost=lost, interrupted=True, ended_ms=gone_ms
    )
    bench.clock.sleep(DOWN_MS)
    bench.restart()
    bench.tick()
    return gone_ms


@pytest.mark.parametrize("code", [0, -15])
@pytest.mark.parametrize(
    "spec",
    [a_spec(max_restarts=0), a_spec(kind="interactive"), a_spec(kind="service"), RECIPE, a_spec(max_duration="2h")],
    ids=["no restarts", "interactive", "service", "recipe", "limited"],
)
def test_what_was_stopped_with_the_platform_goes_on_at_once_and_costs_no_restart(bench: Bench, spec: JobSpec, code: int) -> None:
    job, agent = running(bench, spec)
    stop_platform(bench, agent, code=code)
    assert bench.state(job) == "running"
    agent.hello()
    bench.tick()
    assert agent.starts == [FIRST, SECOND]
    assert (bench.world.attempts[FIRST].ok, bench.world.attempts[FIRST].detail) == (False, "stopped with the platform")
    assert (bench.job(job).interruptions, bench.job(job).quick_ends) == (1, 0)
    assert job_view(bench.world, bench.job(job), bench.control.waiting).restarts == 1
    assert "run_finished" not in told_tracker(bench)


def test_failures_still_use_up_the_restarts_of_a_job_that_was_interrupted(bench: Bench) -> None:
    job, agent = running(bench, a_spec(max_restarts=1))
    stop_platform(bench, agent)
    agent.hello()
    bench.tick()
    agent.run(SECOND)
    agent.end(SECOND, 3)
    bench.restarted()
    assert agent.starts == [FIRST, SECOND, "tiny-1.3"]
    agent.end(AttemptId("tiny-1.3"), 3)
    bench.tick()
    assert bench.job(job).state == Finished(3, "failed", "rank 0 exited with code 3")


def test_a_job_that_was_asked_to_stop_does_not_go_on_after_the_platform_was_stopped(bench: Bench) -> None:
    job, agent = running(bench)
    agent.deaf = True
    bench.control.cancel(job, "ada")
    bench.tick()
    stop_platform(bench, agent)
    agent.hello()
    bench.tick()
    assert bench.job(job).state == Finished(1, "cancelled", "cancelled")


def test_the_time_a_platform_was_down_is_not_held_by_the_job(bench: Bench) -> None:
    job, agent = running(bench)
    bench.clock.sleep(60_000)
    gone_ms = stop_platform(bench, agent)
    agent.hello()
    bench.tick()
    first = bench.world.attempts[FIRST]
    assert (first.ended_ms, first.ended_ms - first.placed_ms if first.ended_ms else 0) == (gone_ms, 60_000)
    until_ms = bench.clock.now_ms()
    mine = account(bench.events(), {}, 0, until_ms, job=job)
    assert mine.capacity == 2 * 60_000 * MILLI
    whole = account(bench.events(), {}, 0, until_ms)
    assert whole.balanced
    assert whole.categories["idle"] == 2 * DOWN_MS * MILLI


def test_an_end_outside_the_attempts_time_is_cut_to_it(bench: Bench) -> None:
    job, agent = running(bench)
    placed_ms = bench.attempt(job).placed_ms
    bench.clock.sleep(60_000)
    agent.held[FIRST] = replace(agent.held[FIRST], ended_ms=placed_ms - 9_000)
    agent.end(FIRST)
    bench.tick()
    assert (bench.attempt(job).running_ms, bench.attempt(job).ended_ms) == (placed_ms, placed_ms)
    other, _ = bench.submit(), bench.tick()
    newest = bench.attempt(other).id
    agent.held[newest] = replace(agent.held[newest], ended_ms=bench.clock.now_ms() + 86_400_000)
    agent.end(newest)
    bench.tick()
    assert bench.world.attempts[newest].ended_ms == bench.clock.now_ms()


def test_an_attempt_that_is_over_but_for_its_logs_is_not_stopped_for_the_time_nobody_looked(bench: Bench) -> None:
    job, agent = running(bench, a_spec(max_duration="2h", max_restarts=0))
    stop_platform(bench, agent, phase="stopping")
    agent.deaf = True
    agent.hello()
    bench.tick(2)
    assert bench.job(job).stop is None
    agent.deaf = False
    agent.held[FIRST] = replace(agent.held[FIRST], phase="ended")
    agent.report(FIRST)
    bench.tick()
    assert agent.starts == [FIRST, SECOND]


def test_an_attempt_that_was_never_started_does_not_run_out_of_time_while_the_platform_is_down(bench: Bench) -> None:
    agent = bench.add("a")
    agent.deaf = True
    job = bench.submit(a_spec(max_duration="2h"))
    bench.tick()
    bench.clock.sleep(DOWN_MS)
    bench.restart()
    agent.deaf = False
    agent.hello()
    bench.tick(2)
    assert (bench.job(job).stop, agent.starts) == (None, [FIRST])


# Restarts


def test_a_service_that_ends_at_once_is_restarted_later_and_later(bench: Bench) -> None:
    agent = bench.add("a")
    job = bench.submit(a_spec(kind="service"))
    for _ in range(300):
        for attempt, report in list(agent.held.items()):
            if report.phase == "starting":
                agent.run(attempt)
                agent.end(attempt, 1)
        bench.clock.sleep(1_000)
        agent.renew()
        bench.tick()
    placed = [event.at_ms for event in bench.events() if isinstance(event.body, AttemptPlaced)]
    waits = [round((later - earlier) / 1000) for earlier, later in pairwise(placed)]
    assert waits == [2, 3, 5, 9, 17, 33, 61, 61, 61], "the tick that takes in the end, and then the wait"
    sentence = why_view(bench.world, bench.job(job), bench.control.waiting).sentence
    assert sentence.startswith("restarts in ")
    assert sentence.endswith("s: the last 10 attempts each ended within 1s; rank 0 exited with code 1")
    assert job_view(bench.world, bench.job(job), bench.control.waiting).restarts == 9
    assert bench.world.seq < 60


@pytest.mark.parametrize("how", ["checkpoint", "long"])
def test_an_attempt_that_got_somewhere_is_followed_at_once_and_the_count_begins_anew(bench: Bench, how: str) -> None:
    job, agent = running(bench, a_spec(max_restarts=9))
    agent.end(FIRST, 1)
    bench.restarted()
    assert bench.job(job).quick_ends == 1
    agent.run(SECOND)
    if how == "checkpoint":
        bench.control.facts(agent.node, SECOND, 0, 10, [checkpoint(1)])
    else:
        bench.clock.sleep(10_000)
    agent.end(SECOND, -9)
    bench.tick()
    assert agent.starts == [FIRST, SECOND, "tiny-1.3"]
    assert bench.job(job).quick_ends == 0


def test_a_put_off_restart_survives_a_restart_of_the_control_plane(bench: Bench) -> None:
    job, agent = running(bench)
    agent.end(FIRST, 1)
    bench.tick()
    bench.restart()
    agent.hello()
    bench.tick()
    sentence = why_view(bench.world, bench.job(job), bench.control.waiting).sentence
    assert sentence == "restarts in 1s: the last attempt ended within 0s; rank 0 exited with code 1"
    bench.clock.sleep(1_000)
    bench.tick()
    assert agent.starts == [FIRST, SECOND]


def test_a_recipe_that_refuses_its_input_is_not_started_again(bench: Bench) -> None:
    job, agent = running(bench, RECIPE)
    agent.exit(FIRST, {0: Exit.BAD_INPUT})
    bench.tick(2)
    assert bench.job(job).state == Finished(1, "failed", "rank 0 exited with code 2 (bad input; see its log)")
    assert agent.starts == [FIRST]


def test_the_last_words_of_the_rank_that_fell_say_why_its_job_waits(bench: Bench) -> None:
    job, agent = running(bench)
    agent.exit(FIRST, {0: 1}, "KeyError: 'x'")
    bench.tick(2)
    sentence = why_view(bench.world, bench.job(job), bench.control.waiting).sentence
    assert sentence.endswith("ended within 0s; rank 0 exited with code 1: KeyError: 'x'")
    assert bench.world.attempts[FIRST].exits[0].said == "KeyError: 'x'"


def test_the_last_words_of_a_recipe_that_refuses_its_input_say_how_its_job_ended(bench: Bench) -> None:
    job, agent = running(bench, RECIPE)
    agent.exit(FIRST, {0: Exit.BAD_INPUT}, "no data")
    bench.tick(2)
    assert bench.job(job).state == Finished(1, "failed", "rank 0 exited with code 2 (bad input): no data")


@pytest.mark.parametrize(
    ("spec", "codes", "detail"),
    [
        (a_spec(), {0: 2}, "rank 0 exited with code 2"),
        (RECIPE, {0: -9, 1: 2}, "rank 0 was killed by SIGKILL"),
    ],
)
def test_other_ends_are_restarted(bench: Bench, spec: JobSpec, codes: dict[int, int], detail: str) -> None:
    """A script's code 2 means what its author likes; and a rank that fell after another one is no cause."""
    job, agent = running(bench, spec)
    agent.exit(FIRST, codes)
    bench.restarted()
    assert bench.world.attempts[FIRST].detail == detail
    assert bench.job(job).attempts == (FIRST, SECOND)


# Floods


def test_a_flood_of_facts_ends_at_a_limit_and_the_model_still_gets_in(bench: Bench) -> None:
    job, agent = running(bench)
    for part in range(3):
        facts = [checkpoint(number) for number in range(part * 5_000, (part + 1) * 5_000)]
        bench.control.facts(agent.node, FIRST, 0, 100 * (part + 1), facts)
    assert bench.attempt(job).facts == FACTS_MAX
    assert [saved.step for saved in bench.attempt(job).checkpoints] == list(range(10_000 - CHECKPOINTS_KEPT, 10_000))
    assert bench.control.records_offset(FIRST, 0) == 300
    bench.control.facts(agent.node, FIRST, 0, 400, [model(), model(), checkpoint(1)])
    assert bench.job(job).model == "tiny:1"
    assert bench.attempt(job).facts == FACTS_MAX + 1
    assert bench.world.seq < FACTS_MAX + 20


# Queues


def test_why_says_the_place_in_the_jobs_own_queue(bench: Bench) -> None:
    running(bench)
    jobs = [bench.submit(replace(a_spec(f"j{number}"), queue=("default", "night")[number % 2])) for number in range(4)]
    bench.tick()
    said = [why_view(bench.world, bench.job(job), bench.control.waiting) for job in jobs]
    assert [view.position for view in said] == [1, 1, 2, 2]
    assert said[2].sentence.endswith("; position 2 in queue default")
    assert said[3].sentence.endswith("; position 2 in queue night")


def test_two_machines_by_one_name_do_not_get_each_others_devices(bench: Bench) -> None:
    """The second one knows nothing of what runs on the first, and the first comes back."""
    agent = bench.add("a")
    job = bench.submit()
    bench.tick()
    agent.run(FIRST)
    bench.control.observe()
    bench.control.heard(agent.node, Hello(agent.shape, "boot-2", PROTOCOL, "0", 1, ()))
    bench.control.observe()
    assert bench.state(job) == "pending"
    agent.hello()
    (facts,) = bench.control.observe().nodes
    assert (facts.free, facts.fenced) == ((), (0, 1)), "its ranks live, whatever was made of their absence"
    agent.deaf = True
    bench.restarted()
    assert agent.got[-1] == StopRanks(FIRST, bench.control.epoch, 10_000)
    assert agent.starts == [FIRST]


def test_a_node_whose_clock_was_set_back_is_heard_all_the_same(bench: Bench) -> None:
    agent = bench.add("a")
    job = bench.submit()
    bench.tick()
    agent.held[FIRST] = replace(agent.held[FIRST], phase="running", ranks=(RankProcess(0, 7),))
    agent.report(FIRST)
    bench.clock.jump(-3_600_000)
    agent.run(FIRST)
    bench.tick()
    assert bench.state(job) == "running"
