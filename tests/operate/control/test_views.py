"""What people are shown, of real worlds: every view goes to JSON and back, and every sentence says what is."""

from dataclasses import replace

import pytest

from phalanx.core import wire
from phalanx.core.health import DamagedData, LossSpike, SaveTrouble
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.reasons import NeverFits, NoNodes
from phalanx.core.records import CheckpointCommitted, ModelSaved, Resumed
from phalanx.core.views import EventView, JobView, ModelView, NodeView, Progress, RankView, WhyView
from phalanx.operate.control.views import (
    device_counts,
    devices_are,
    event_view,
    job_counts,
    job_view,
    model_view,
    node_views,
    why_view,
)
from phalanx.operate.control.world import FINDINGS_KEPT
from tests.operate.control.control_bench import LEASE_MS, Bench, a_spec, shape


def shown(bench: Bench, job: JobId, progress: Progress | None = None) -> JobView:
    view = job_view(bench.world, bench.job(job), bench.control.waiting, progress)
    assert wire.loads(JobView, wire.dumps(JobView, view)) == view
    return view


def why(bench: Bench, job: JobId) -> WhyView:
    view = why_view(bench.world, bench.job(job), bench.control.waiting)
    assert wire.loads(WhyView, wire.dumps(WhyView, view)) == view
    return view


def test_a_job_from_waiting_to_its_end(bench: Bench) -> None:
    job = bench.submit(a_spec(max_restarts=1))
    assert why(bench, job).sentence == "waits for the scheduler's next decision"
    bench.tick()
    assert shown(bench, job).why == f"{NoNodes(0).sentence()}; position 1 in queue default"
    assert (why(bench, job).reason, why(bench, job).position) == ({"known": 0, "drained": 0, "exposed": 0, "kind": "no_nodes"}, 1)
    agent = bench.add("a")
    bench.tick()
    assert why(bench, job).sentence == "its ranks are being started on a (devices 0, 1)"
    assert (why(bench, job).reason, why(bench, job).position) == (None, None)
    first, second = AttemptId(f"{job}.1"), AttemptId(f"{job}.2")
    agent.run(first)
    bench.tick()
    assert shown(bench, job).attempts[0].ranks[1] == RankView(rank=1, node=agent.node, device=1, pid=1001)
    agent.exit(first, {1: -9})
    bench.restarted()
    agent.run(second)
    bench.control.facts(agent.node, second, 0, 5, [Resumed(rank=0, step=40, checkpoint="c", skipped=(), at_ms=1)])
    saved = CheckpointCommitted(rank=0, step=50, path="/c", digest="d", size_bytes=3, at_ms=2)
    model = ModelSaved(rank=0, step=60, path="/m", weights_digest="w", metrics={"loss": 1.5}, lineage={"torch": "2"}, at_ms=3)
    bench.control.facts(agent.node, second, 0, 9, [saved, model])
    bench.tick()
    progress = Progress(step=50, total_steps=60, loss=2.0, tokens_per_s=9.0, mfu=0.0, eta_ms=None)
    view = shown(bench, job, progress)
    assert (view.state, view.restarts, view.detail, view.progress) == ("running", 1, "", progress)
    assert (view.attempts[0].detail, view.attempts[1].resumed_step) == ("rank 1 was killed by SIGKILL", 40)
    assert [(item.attempt, item.step) for item in view.checkpoints] == [(second, 50)]
    assert view.spec["hyperparameters"] == {"lr": 0.5, "steps": 3, "name": "x", "flag": True}
    agent.end(second)
    bench.tick()
    view = shown(bench, job)
    assert (view.state, view.outcome, view.detail, view.why) == ("finished", "succeeded", "every rank exited with code 0", None)
    assert view.model == "tiny:1"
    assert why(bench, job).sentence == "succeeded: every rank exited with code 0"


def test_what_was_found_wrong_is_shown_once_and_the_newest_are_kept(bench: Bench) -> None:
    agent, job = bench.add("a"), bench.submit(a_spec())
    bench.tick()
    attempt = AttemptId(f"{job}.1")
    agent.run(attempt)
    spikes = [
        LossSpike(
            rank=0, step=step, measured=9.0, norm=1.0, usual=4.0, limit=5.0, action="skip", weights_of=step - 1,
            samples=(step, step), worst=(), at_ms=step,
        )
        for step in range(1, FINDINGS_KEPT + 2)
    ]  # fmt: skip
    bench.control.facts(agent.node, attempt, 0, 9, [*spikes, spikes[-1]])
    findings = shown(bench, job).findings
    assert [one.step for one in findings] == list(range(2, FINDINGS_KEPT + 2))
    assert (findings[-1].attempt, findings[-1].kind, findings[-1].sentence) == (attempt, "spike", spikes[-1].sentence())


def test_what_is_set_aside_of_the_data_is_pushed_out_by_nothing_else(bench: Bench) -> None:
    """It holds to the end of the run, whatever comes after."""
    agent, job = bench.add("a"), bench.submit(a_spec())
    bench.tick()
    attempt = AttemptId(f"{job}.1")
    agent.run(attempt)
    damaged = [
        DamagedData(rank=0, step=9, source="web", shard="ab12", blocks=(block,), samples=3, at_ms=1)
        for block in range(FINDINGS_KEPT + 2)
    ]
    trouble = [SaveTrouble(rank=0, step=step, lost=False, reason="full", at_ms=step) for step in range(1, 2 * FINDINGS_KEPT)]
    bench.control.facts(agent.node, attempt, 0, 9, [*damaged[:1], *trouble])
    findings = shown(bench, job).findings
    assert [one.kind for one in findings] == ["data"] + ["save"] * FINDINGS_KEPT
    bench.control.facts(agent.node, attempt, 0, 99, damaged)
    kinds = [one.kind for one in shown(bench, job).findings]
    assert (kinds.count("data"), kinds.count("save")) == (FINDINGS_KEPT, FINDINGS_KEPT), "and both have an end"


def test_a_stopping_job_and_a_node_that_is_away_are_named(bench: Bench) -> None:
    agent = bench.add("a")
    agent.deaf = True
    job = bench.submit(a_spec(max_duration="1m"))
    bench.tick()
    bench.pass_time(60_000)
    assert why(bench, job).sentence == (
        "stops since max_duration (1m) is over; holds its devices until every rank is gone on a (devices 0, 1, away now)"
    )
    bench.control.cancel(job, "ada")
    assert "somebody cancelled it" in why(bench, job).sentence


def test_nodes_with_what_is_held_and_when_they_were_heard(bench: Bench) -> None:
    bench.add("b", count=1)
    bench.add("a")
    bench.tick()
    job = bench.submit(a_spec(gpus="1"))
    bench.tick()
    bench.pass_time(LEASE_MS + 1, "b")
    views = node_views(bench.world, {bench.agents["b"].node: bench.clock.now_ms()})
    assert [(view.node, view.state, view.held) for view in views] == [("a", "away", {}), ("b", "up", {0: f"{job}.1"})]
    assert views[0].seen_ms == bench.world.nodes[bench.agents["a"].node].since_ms, "not heard since the start"
    assert views[1].seen_ms == bench.clock.now_ms()
    assert [wire.loads(NodeView, wire.dumps(NodeView, view)) for view in views] == list(views)
    assert device_counts(bench.world) == (3, 1)


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ((), "none yet: no node has joined"),
        (("cpu",), "CPU slots: no GPU was found, so CPU slots stand in for devices"),
        (("H100", "T4"), "GPUs (H100, T4)"),
        (("T4", "cpu"), "GPUs (T4) and CPU slots"),
    ],
)
def test_devices_are_said_in_words(bench: Bench, types: tuple[str, ...], words: str) -> None:
    for kind in types:
        bench.add(f"n-{kind.lower()}", greet=False).shape = shape(f"n-{kind.lower()}", kind=kind)
        bench.agents[f"n-{kind.lower()}"].hello()
    bench.tick()
    assert devices_are(bench.world) == words


def test_counts_models_and_events(bench: Bench) -> None:
    agent = bench.add("a")
    done, _ = bench.submit(), bench.submit(a_spec("next"))
    bench.tick()
    attempt = AttemptId(f"{done}.1")
    agent.run(attempt)
    model = ModelSaved(rank=0, step=60, path="/m", weights_digest="w", metrics={"loss": 1.5}, lineage={"torch": "2"}, at_ms=3)
    bench.control.facts(agent.node, attempt, 0, 9, [model])
    agent.end(attempt)
    bench.tick()
    assert job_counts(bench.world) == {"starting": 1, "succeeded": 1}
    view = model_view(bench.world.models["tiny"][0])
    assert (view.name, view.version, view.job, view.lineage["torch"]) == ("tiny", 1, done, "2")
    assert wire.loads(ModelView, wire.dumps(ModelView, view)) == view
    for event in bench.events():
        shown_event = event_view(event)
        assert shown_event.kind == shown_event.body["kind"]
        assert wire.loads(EventView, wire.dumps(EventView, shown_event)) == shown_event


def test_a_deadline_that_is_past_or_cannot_be_kept_is_told_while_it_matters(bench: Bench) -> None:
    spec = replace(a_spec(max_duration="1h"), deadline="70m")
    job = bench.submit(spec)
    bench.tick()

    def late() -> str:
        now_ms = bench.clock.now_ms()
        view = job_view(bench.world, bench.job(job), bench.control.waiting, now_ms=now_ms)
        assert view.late == why_view(bench.world, bench.job(job), bench.control.waiting, now_ms).late
        assert view.deadline_ms == bench.job(job).submitted_ms + 70 * 60_000
        return view.late

    assert late() == ""
    bench.clock.sleep(20 * 60_000)
    assert late() == "run for max_duration (1h), it would be done at least 10m 00s after its deadline"
    bench.add("a")
    bench.tick()
    assert late().endswith("it would be done 10m 00s after its deadline")
    bench.clock.sleep(53 * 60_000)
    assert late() == "its deadline passed 3m 00s ago"
    job = bench.submit(spec)
    bench.clock.sleep(75 * 60_000)
    assert late() == "its deadline passed 5m 00s ago"
    bench.control.cancel(job, "ada")
    assert late() == ""


def test_a_job_that_never_fits_is_not_told_how_late_it_would_be(bench: Bench) -> None:
    """As `plan` does not: it never starts, so it is not done so and so much after its deadline."""
    job = bench.submit(replace(a_spec(max_duration="1h", num_nodes=2), deadline="70m"))
    bench.add("a")
    bench.tick()
    assert isinstance(bench.job(job).reason, NeverFits)
    bench.clock.sleep(20 * 60_000)
    assert job_view(bench.world, bench.job(job), bench.control.waiting, now_ms=bench.clock.now_ms()).late == ""
