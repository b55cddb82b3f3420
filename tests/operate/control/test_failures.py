"""How often the fleet fails is counted from attempts that ended, and goes to jobs that save as often as pays."""

from dataclasses import replace

import pytest

from phalanx.core.events import AttemptEnded, AttemptPlaced, JobSubmitted, NodeUp, PartLost, RankSaid
from phalanx.core.ids import AttemptId
from phalanx.core.interval import PRIOR_NODE_HOURS
from phalanx.core.messages import RankExit
from phalanx.core.records import Recovered
from phalanx.core.spec import CheckpointPolicy
from phalanx.operate.control.failures import seen_by
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.views import job_view
from phalanx.operate.control.wanted import launch
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import a_spec, shape
from tests.operate.control.test_wanted import FIRST, JOB, PLACE, TERMS, A, B

HOUR_MS = 3_600_000


def after(*ends: tuple[AttemptEnded | PartLost | RankSaid, ...], hours: int = 1) -> World:
    """A job of two nodes, whose attempts were placed at 0, 1, 2... hours and met the events of `ends` that much later."""
    draft = Draft(World())
    spec = replace(a_spec(), recipe="llama", entrypoint="", checkpoint=CheckpointPolicy(every="auto"), max_restarts=99)
    for body in (NodeUp(shape("a"), "x"), NodeUp(shape("b"), "x"), JobSubmitted(JOB, spec, "c0de", "c", "ada")):
        draft.add(body, 0)
    for number, met in enumerate((*ends, ()), start=1):
        attempt = AttemptId(f"{JOB}.{number}")
        draft.add(AttemptPlaced(JOB, attempt, PLACE, 29_511, 2), (number - 1) * hours * HOUR_MS)
        for one in met:
            draft.add(replace(one, attempt=attempt), number * hours * HOUR_MS)
    return draft.world


def ended(code: int) -> AttemptEnded:
    return AttemptEnded(JOB, FIRST, False, True, "", (RankExit(0, code, 9, first=True),))


def test_killed_processes_and_lost_nodes_count_and_a_program_s_own_errors_do_not() -> None:
    world = after((ended(-9),), (ended(1),), (PartLost(JOB, FIRST, B, "silent"), ended(0)), (ended(-15),))
    seen = seen_by(world)
    assert (seen.failures, seen.node_hours) == (2, 8.0)
    assert seen.mtbf_s(nodes=2) == pytest.approx(2 * 3600)
    assert seen.sentence(2) == "a failure every 2.0 h is expected (2 failures in 8.0 node-hours)"


def test_what_a_gang_recovered_from_inside_counts_too() -> None:
    fact = Recovered(
        rank=0, step=7, generation=2, why="killed", replaced=(1,), pids=(99,), steps_lost=0, recovery_ms=900, at_ms=9,
    )  # fmt: skip
    again = replace(fact, generation=3)
    world = after((RankSaid(JOB, FIRST, fact), RankSaid(JOB, FIRST, again), replace(ended(0), ok=True, again=True)))
    assert seen_by(world).failures == 2


def test_a_fleet_that_saw_no_failure_says_what_it_assumes() -> None:
    seen = seen_by(after((replace(ended(0), ok=True, again=True),)))
    assert seen.failures == 0 and seen.node_hours == 2.0
    assert seen.sentence(1) == "a failure every 6,300.0 h is expected (0 failures in 2.0 node-hours, so one in 6,300 is assumed)"
    assert seen.mtbf_s(1) == pytest.approx(PRIOR_NODE_HOURS * 3600)


def test_a_launch_carries_the_gang_s_mean_time_between_failures_and_describe_says_it() -> None:
    world = after((ended(-9),), (ended(-9),), hours=3)
    job = world.jobs[JOB]
    part = launch(world, job, world.attempts[job.attempts[-1]], A, TERMS)
    assert part.checkpoint_mtbf_s == pytest.approx(3 * 3600) and part.checkpoint_every == 100
    assert job_view(world, job, {}).saves == "as often as pays; a failure every 3.0 h is expected (2 failures in 12.0 node-hours)"
    fixed = replace(job, spec=replace(job.spec, checkpoint=CheckpointPolicy(every=7)))
    assert launch(world, fixed, world.attempts[job.attempts[-1]], A, TERMS).checkpoint_mtbf_s == 0.0
    assert job_view(world, fixed, {}).saves == ""
