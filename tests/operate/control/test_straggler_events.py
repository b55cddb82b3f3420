"""What follows from a straggler: told once, and where the policy says so its node is drained and the job starts again elsewhere."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest

from phalanx.core.events import NodeDrained, StopRequested, StragglerFound
from phalanx.core.health import Corruption, Straggler
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.policy import Health, Policy
from phalanx.core.records import Recovered, StepRecord
from phalanx.operate.control.stragglers import TOLD_MAX, Watch
from phalanx.record.telemetry.health.stragglers import WINDOW, Outlier
from tests.operate.control.control_bench import Bench, a_spec
from tests.record.telemetry.test_straggler_rule import steps

QUARANTINE = Policy(health=Health(stragglers="quarantine"))


def outlier(rank: int = 1) -> Outlier:
    return Outlier(rank=rank, step=31, ratio=1.52, slow=24, steps=24, local_us=61_000, peers_us=40_000)


def running(bench: Bench, *nodes: str, policy: Policy = QUARANTINE) -> AttemptId:
    """A gang of two on the first of `nodes`."""
    for node in nodes:
        bench.add(node)
    bench.tick()
    bench.control.set_policy(policy, "ann")
    job = bench.submit(a_spec(max_restarts=0))
    bench.tick()
    attempt = bench.job(job).attempt
    assert attempt is not None
    agent = bench.agents[str(bench.world.attempts[attempt].placement.slices[0].node)]
    agent.run(attempt)
    bench.tick()
    return attempt


def kinds(bench: Bench, since: int) -> Iterator[type]:
    return (type(event.body) for event in bench.store.events(since))


def findings(bench: Bench, attempt: AttemptId) -> list[Straggler]:
    return [one for one in bench.world.attempts[attempt].findings if isinstance(one, Straggler)]


def test_it_is_told_once_with_its_place(bench: Bench) -> None:
    attempt = running(bench, "a", "b", policy=Policy())
    bench.control.outliers(attempt, [outlier(), outlier()])
    bench.restart()
    bench.control.outliers(attempt, [outlier()])
    (only,) = findings(bench, attempt)
    part = bench.world.attempts[attempt].placement.slices[0]
    assert (only.rank, only.node, only.device, only.quarantined) == (1, part.node, part.devices[1], False)
    assert not any(node.drained for node in bench.world.nodes.values())


def test_in_quarantine_the_node_is_drained_and_the_job_starts_again_elsewhere_and_uses_up_no_restart(bench: Bench) -> None:
    attempt = running(bench, "a", "b")
    job, node = bench.world.attempts[attempt].job, bench.world.attempts[attempt].placement.slices[0].node
    seq = bench.world.seq
    bench.control.outliers(attempt, [outlier()])
    assert list(kinds(bench, seq)) == [StragglerFound, NodeDrained, StopRequested]
    assert bench.world.nodes[node].drained.startswith("quarantine: rank 1 of ") and findings(bench, attempt)[0].quarantined
    bench.tick(3)
    again = bench.job(job).attempt
    assert again is not None and again != attempt, "with max_restarts 0 it is not over"
    assert bench.world.attempts[again].placement.slices[0].node != node


def test_the_last_node_is_never_drained(bench: Bench) -> None:
    attempt = running(bench, "a")
    bench.control.outliers(attempt, [outlier()])
    assert not findings(bench, attempt)[0].quarantined and not bench.world.nodes[bench.agents["a"].node].drained


def test_a_rule_that_errs_does_not_empty_a_fleet(bench: Bench) -> None:
    first = running(bench, "a", "b", "c")
    bench.control.outliers(first, [outlier()])
    bench.tick(3)
    second = bench.job(bench.world.attempts[first].job).attempt
    assert second is not None and second != first
    bench.control.outliers(second, [outlier()])
    assert len(findings(bench, second)) == 1 and not findings(bench, second)[0].quarantined
    assert sum(bool(node.drained) for node in bench.world.nodes.values()) == 1


def test_of_one_attempt_a_few_are_told(bench: Bench) -> None:
    bench.add("wide", count=TOLD_MAX + 3)
    bench.tick()
    job = bench.submit(a_spec(gpus=str(TOLD_MAX + 3)))
    bench.tick()
    attempt = AttemptId(f"{job}.1")
    bench.control.outliers(attempt, [outlier(rank) for rank in range(TOLD_MAX + 3)])
    assert [one.rank for one in findings(bench, attempt)] == list(range(TOLD_MAX))


def test_an_attempt_that_ended_has_none(bench: Bench) -> None:
    attempt = running(bench, "a", "b")
    bench.agents[str(bench.world.attempts[attempt].placement.slices[0].node)].end(attempt)
    bench.tick()
    bench.control.outliers(attempt, [outlier()])
    bench.control.outliers(AttemptId("nobody-1.1"), [outlier()])
    assert findings(bench, attempt) == []


@pytest.mark.parametrize("told", [False, True])
def test_records_become_an_outlier_unless_it_was_told_before_a_restart(bench: Bench, told: bool) -> None:
    attempt = running(bench, "a", "b")
    if told:
        bench.control.outliers(attempt, [outlier()])
    records = [
        StepRecord(
            rank=rank, step=step, total_steps=99, loss=1.0, loss_hex="0x1p+0", grad_norm=1.0, lr=0.1, tokens=1, tokens_per_s=1.0,
            mfu=0.0, started_ms=1, ended_ms=2, local_us=(60_000 if rank else 40_000),
        )
        for step in range(1, 40)
        for rank in (0, 1)
    ]  # fmt: skip
    found = Watch().take(bench.world, attempt, records)
    assert [one.rank for one in found] == ([] if told else [1])
    assert Watch().take(bench.world, AttemptId("nobody-1.1"), records) == []


def corruption(**changes: object) -> Corruption:
    found = Corruption(rank=0, step=1000, place="gradients", name="norm.weight", ranks=(1,), certain=True, at_ms=1)
    return replace(found, **changes)  # type: ignore[arg-type]  # a test's shorthand


@pytest.mark.parametrize(
    ("found", "setting", "moved"),
    [
        (corruption(), "quarantine", True),
        (corruption(), "tell", False),
        (corruption(certain=False, ranks=(0, 1)), "quarantine", False),
        (corruption(ranks=(0, 1)), "quarantine", False),
        (corruption(ranks=(7,)), "quarantine", False),
    ],
)
def test_the_node_of_a_rank_that_is_known_to_be_corrupt_is_left_where_the_policy_says_so(
    bench: Bench, found: Corruption, setting: Literal["tell", "quarantine"], moved: bool
) -> None:
    attempt = running(bench, "a", "b", policy=Policy(health=Health(corruption=setting)))
    job, node = bench.world.attempts[attempt].job, bench.world.attempts[attempt].placement.slices[0].node
    bench.control.facts(node, attempt, 0, 9, [found])
    assert bench.world.attempts[attempt].findings == (found,)
    assert bench.world.nodes[node].drained.startswith(f"quarantine: {attempt}: rank 1 is corrupt") == moved
    bench.tick(3)
    again = bench.job(job).attempt
    assert again is not None and (again != attempt) == moved
    assert (bench.world.attempts[again].placement.slices[0].node != node) == moved


def test_a_rank_without_which_the_gang_goes_on_is_waited_for_by_nobody(bench: Bench) -> None:
    bench.add("a", count=3)
    job = bench.submit(a_spec(gpus="3"))
    bench.tick()
    attempt = bench.attempt(job).id
    fell = Recovered(
        rank=1, step=1, generation=2, why="", replaced=(), pids=(), steps_lost=0, recovery_ms=1, at_ms=1, absent=(0,),
    )  # fmt: skip
    bench.control.facts(NodeId("a"), attempt, 1, 10, [fell])
    times = steps(3, WINDOW, lambda rank, _: 60_000 if rank == 2 else 40_000)
    assert [one.rank for one in Watch().take(bench.world, attempt, [one for one in times if one.rank])] == [2]
