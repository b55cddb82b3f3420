"""A job's states: every pair of state and move either moves or raises, and the happy paths are the ones of the design."""

import itertools

import pytest

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.errors import IllegalTransition
from phalanx.core.ids import JobId, NodeId
from phalanx.core.states import (
    Finished,
    GangEnded,
    GangUp,
    JobMove,
    JobState,
    Pending,
    Placed,
    Running,
    Starting,
    StopAsked,
    Stopping,
    advance,
)

JOB = JobId("x-1")
AT = Placement((NodeSlice(NodeId("n"), (0, 1)),))
STATES: list[JobState] = [
    Pending(0),
    Starting(1, AT),
    Running(1, AT),
    Stopping(1, AT, "cancel"),
    Stopping(1, AT, "max_duration"),
    Finished(1, "succeeded", ""),
]
MOVES: list[JobMove] = [
    Placed(AT),
    GangUp(),
    GangEnded(True, False, ""),
    GangEnded(False, True, ""),
    StopAsked("cancel"),
    StopAsked("max_duration"),
]


def test_advance_is_total() -> None:
    for state, move in itertools.product(STATES, MOVES):
        try:
            after = advance(JOB, state, move)
        except IllegalTransition:
            continue
        assert after.attempt >= state.attempt


def test_a_finished_job_never_moves() -> None:
    for move in MOVES:
        with pytest.raises(IllegalTransition):
            advance(JOB, STATES[-1], move)


def test_a_lost_gang_waits_again_with_its_attempt_counted() -> None:
    state: JobState = Pending(0)
    for move in (Placed(AT), GangUp(), GangEnded(False, True, "rank 1 was killed"), Placed(AT)):
        state = advance(JOB, state, move)
    assert state == Starting(2, AT)


@pytest.mark.parametrize(("cause", "outcome"), [("cancel", "cancelled"), ("max_duration", "failed")])
def test_a_stopped_gang_holds_its_devices_until_it_is_gone(cause: str, outcome: str) -> None:
    stopping = advance(JOB, Running(1, AT), StopAsked(cause))  # type: ignore[arg-type]  # parametrize knows only str
    assert isinstance(stopping, Stopping)
    assert stopping.placement == AT
    ended = advance(JOB, stopping, GangEnded(False, False, "stopped"))
    assert isinstance(ended, Finished)
    assert ended.outcome == outcome
