"""What a control plane learns from what it commits: runs that ended by themselves, and nothing of those that were stopped."""

from phalanx.core.ids import AttemptId
from phalanx.decide.scheduler.line.attained import ServiceHistory, bin_of
from phalanx.decide.scheduler.why.history import History, run_bin, run_class
from tests.operate.control.control_bench import Bench, a_spec

CLASS = run_class("default", 1)


def runs(bench: Bench) -> float:
    return sum(bench.control.observe().history.runs.get(CLASS, ()))


def one_run(bench: Bench, ms: int, code: int = 0) -> None:
    job = bench.submit(a_spec(gpus="1", max_restarts=0))
    bench.tick()
    bench.agents["a"].run(AttemptId(f"{job}.1"))
    bench.clock.sleep(ms)
    bench.agents["a"].end(AttemptId(f"{job}.1"), code)
    bench.tick()


def test_runs_that_ended_by_themselves_are_learnt_and_again_after_a_restart(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    assert bench.control.observe().history == History()
    one_run(bench, 60_000)
    one_run(bench, 60_000)
    counts = bench.control.observe().history.runs[CLASS]
    assert counts[run_bin(60_000)] == sum(counts) > 1
    bench.restart()
    assert bench.control.observe().history.runs[CLASS] == counts


def test_kinds_of_jobs_are_learnt_when_they_are_submitted_and_again_after_a_restart(bench: Bench) -> None:
    """Whether or not they ever run."""
    bench.add("a")
    bench.submit(a_spec(gpus="1"))
    bench.submit(a_spec(gpus="L4:8"))
    (one, other) = bench.control.observe().history.mix
    assert {(kind.pod.num_gpu, kind.pod.models, kind.seen) for kind in (one, other)} == {
        (1, frozenset(), 1), (8, frozenset({"L4"}), 1),
    }  # fmt: skip
    bench.restart()
    assert bench.control.observe().history.mix == (one, other)


def test_what_was_stopped_teaches_nothing(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    for wish in ("cancel", "pause"):
        job = bench.submit(a_spec(gpus="1"))
        bench.tick()
        getattr(bench.control, wish)(job, "ada")
        bench.tick(2)
    assert runs(bench) == 0
    one_run(bench, 5_000, code=1)
    assert runs(bench) == 1, "a failure is an end of its own"


def test_how_much_service_finished_jobs_took_is_learnt_and_again_after_a_restart(bench: Bench) -> None:
    """Of those that succeeded alone: others have not told how long they are."""
    bench.add("a")
    bench.tick()
    assert bench.control.observe().service == ServiceHistory()
    one_run(bench, 60_000)
    one_run(bench, 5_000, code=1)
    learnt = bench.control.observe().service
    assert [len(ended) for ended in learnt.sizes.values()] == [1]
    assert learnt.sizes[1].bins == (bin_of(60_000),)
    bench.restart()
    assert bench.control.observe().service == learnt


def test_a_wait_is_compared_with_what_was_forecast(bench: Bench) -> None:
    bench.add("a", count=1)
    bench.tick()
    first, second = (bench.submit(a_spec(gpus="1", max_duration="1h")) for _ in range(2))
    bench.tick()
    bench.agents["a"].run(AttemptId(f"{first}.1"))
    bench.tick()
    bench.clock.sleep(60_000)
    bench.agents["a"].end(AttemptId(f"{first}.1"))
    bench.tick()
    assert bench.state(second) == "starting"
    assert bench.control.observe().history.scored == 1
