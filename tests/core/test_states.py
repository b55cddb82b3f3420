"""A job's states: every pair of state and move either moves as the table says or raises, and the happy paths are the design's."""

import itertools

import pytest

from phalanx.core import wire
from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.errors import IllegalTransition
from phalanx.core.ids import JobId, NodeId
from phalanx.core.states import (
    Finished,
    GangEnded,
    GangUp,
    JobMove,
    JobState,
    Paused,
    Pending,
    Placed,
    ResumeAsked,
    RetryAsked,
    Running,
    Starting,
    StopAsked,
    StopCause,
    Stopping,
    advance,
)

JOB = JobId("x-1")
AT = Placement((NodeSlice(NodeId("n"), (0, 1)),))
PENDING, STARTING, RUNNING, PAUSED = Pending(1), Starting(1, AT), Running(1, AT), Paused(1)
CAUSES: list[StopCause] = ["cancel", "max_duration", "pause", "drain"]
STOPPING: dict[StopCause, Stopping] = {cause: Stopping(1, AT, cause) for cause in CAUSES}
SUCCEEDED, FAILED, CANCELLED = (Finished(1, outcome, "d") for outcome in ("succeeded", "failed", "cancelled"))
STATES: list[JobState] = [PENDING, STARTING, RUNNING, *STOPPING.values(), PAUSED, SUCCEEDED, FAILED, CANCELLED]

PLACED, UP, RESUME, RETRY = Placed(AT), GangUp(), ResumeAsked(), RetryAsked()
WELL, AGAIN, LATER, BAD = (
    GangEnded(True, False, "d"),
    GangEnded(False, True, "d"),
    GangEnded(False, True, "d", 9),
    GangEnded(False, False, "d"),
)
STOP: dict[StopCause, StopAsked] = {cause: StopAsked(cause) for cause in CAUSES}
MOVES: list[JobMove] = [PLACED, Placed(AT, 3), Placed(AT, -1), UP, WELL, AGAIN, LATER, BAD, *STOP.values(), RESUME, RETRY]

ENDS: list[JobMove] = [WELL, AGAIN, LATER, BAD]
TABLE: dict[tuple[JobState, JobMove], JobState] = {
    (PENDING, PLACED): Starting(2, AT),
    (PENDING, Placed(AT, 3)): Starting(5, AT),
    (PENDING, STOP["cancel"]): Finished(1, "cancelled", "cancelled while waiting"),
    (PENDING, STOP["pause"]): PAUSED,
    (PAUSED, STOP["cancel"]): Finished(1, "cancelled", "cancelled while paused"),
    (PAUSED, RESUME): PENDING,
    (FAILED, RETRY): PENDING,
    (CANCELLED, RETRY): PENDING,
    (STARTING, UP): RUNNING,
    **{(state, STOP[cause]): STOPPING[cause] for state in (STARTING, RUNNING) for cause in CAUSES},
    **{(state, STOP["cancel"]): STOPPING["cancel"] for state in STOPPING.values()},
    (STOPPING["drain"], STOP["pause"]): STOPPING["pause"],
    **{(state, WELL): SUCCEEDED for state in (STARTING, RUNNING)},
    **{(state, BAD): FAILED for state in (STARTING, RUNNING)},
    **{(state, AGAIN): PENDING for state in (STARTING, RUNNING)},
    **{(state, LATER): Pending(1, 9) for state in (STARTING, RUNNING)},
    **{(STOPPING["cancel"], end): CANCELLED for end in ENDS},
    **{(STOPPING["max_duration"], end): FAILED for end in ENDS},
    **{(STOPPING["pause"], end): SUCCEEDED if end == WELL else PAUSED for end in ENDS},
    **{(STOPPING["drain"], end): SUCCEEDED if end == WELL else PENDING for end in ENDS},
}
"""Every pair that moves, and where to; every other pair raises."""


@pytest.mark.parametrize(("state", "move"), list(itertools.product(STATES, MOVES)), ids=lambda one: f"{one}")
def test_every_pair_moves_as_the_table_says_or_raises(state: JobState, move: JobMove) -> None:
    expected = TABLE.get((state, move))
    if expected is None:
        with pytest.raises(IllegalTransition, match=JOB):
            advance(JOB, state, move)
    else:
        assert advance(JOB, state, move) == expected


def test_states_survive_json() -> None:
    for state in STATES:
        assert wire.loads(JobState, wire.dumps(JobState, state)) == state


def test_a_job_that_succeeded_never_moves() -> None:
    assert not [pair for pair in TABLE if pair[0] == SUCCEEDED]


def test_a_lost_gang_waits_again_with_its_attempt_counted() -> None:
    state: JobState = Pending(0)
    for move in (PLACED, UP, GangEnded(False, True, "rank 1 was killed"), PLACED):
        state = advance(JOB, state, move)
    assert state == Starting(2, AT)


@pytest.mark.parametrize(
    ("cause", "after"),
    [("cancel", CANCELLED), ("max_duration", FAILED), ("pause", PAUSED), ("drain", PENDING)],
)
def test_a_stopped_gang_holds_its_devices_until_it_is_gone(cause: StopCause, after: JobState) -> None:
    stopping = advance(JOB, RUNNING, STOP[cause])
    assert isinstance(stopping, Stopping)
    assert stopping.placement == AT
    assert advance(JOB, stopping, BAD) == after
