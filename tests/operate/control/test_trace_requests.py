"""Traces that people ask a running job for: refused with what to change, committed with who asked, sent until the node has them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from phalanx.core import features
from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.errors import Conflict, NotFound, PhalanxError, SpecError
from phalanx.core.events import (
    AttemptPlaced,
    AttemptRunning,
    EventBody,
    JobSubmitted,
    NodeAway,
    NodeUp,
    RankSaid,
    StopRequested,
    TracesRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import AttemptReport, Command, RequestTraces
from phalanx.core.records import Recovered
from phalanx.core.spec import JobSpec, ProfileSpec
from phalanx.core.trace_request import TraceMissed, TraceRequest, TracesAsked
from phalanx.operate.control import facts
from phalanx.operate.control.dispatch import Dispatch
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.trace_requests import OLD_MS_MAX, Pace, pace_of, requested, view_of
from phalanx.operate.control.wanted import commands
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import a_spec, plain_lineage, shape
from tests.operate.control.test_chaos_asked_control import FIRST, JOB, NEWEST, PLACE, RANKS, A
from tests.operate.control.test_wanted import TERMS, seen
from tests.operate.control.test_world import checkpoint

SPEC = replace(a_spec(), kind="train", entrypoint=(), recipe="llama")
RUN = replace(NEWEST, total_steps=1_000)
PACE = Pace(attempt=FIRST, newest=RUN, step_ms=100.0, files=0)
NOW_MS = RUN.ended_ms + OLD_MS_MAX
RUNNING = AttemptReport(FIRST, 3, "running", RANKS, (), 9, traces=0)
ASKED = TracesAsked(steps=5)
THE_FIRST = TraceRequest(number=1, first=40 + 2 + 50, count=5)
"""At step 40, a step in 100 ms: five seconds from the next step on."""


def world(spec: JobSpec = SPEC, *more: EventBody, able: bool = True) -> World:
    draft = Draft(World())
    node = replace(shape("a"), features=(features.TRACES,) if able else ())
    bodies = (NodeUp(node, "x"), JobSubmitted(JOB, spec, "", "c", "ada"), AttemptPlaced(JOB, FIRST, PLACE, 29_511, 2))
    for body in (*bodies, AttemptRunning(JOB, FIRST, RANKS), *more):
        draft.add(body, 7)
    return draft.world


def ask(*more: EventBody, spec: JobSpec = SPEC, of: TracesAsked = ASKED, pace: Pace | None = PACE, **told: Any) -> TracesRequested:
    report, able = told.get("report", RUNNING), told.get("able", True)
    return requested(world(spec, *more, able=able), seen(report), JOB, of, pace, "ada", told.get("now_ms", NOW_MS))


def at(step: int, total: int = 1_000) -> Pace:
    return replace(PACE, newest=replace(RUN, step=step, total_steps=total))


def missed(rank: int, number: int = 1) -> RankSaid:
    return RankSaid(JOB, FIRST, TraceMissed(rank=rank, step=93, number=number, why="it was late", at_ms=8))


def test_all_ranks_begin_far_enough_ahead_to_have_heard() -> None:
    assert ask() == TracesRequested(JOB, FIRST, THE_FIRST, "ada")
    assert ask(pace=replace(PACE, step_ms=60_000.0)).request.first == 40 + 2 + 1
    assert ask(of=TracesAsked(steps=1, ranks=(1,))).request == replace(THE_FIRST, count=1, ranks=(1,))


def test_a_slow_step_among_fast_ones_does_not_make_it_too_near() -> None:
    fast = replace(RUN, step=30, started_ms=0, ended_ms=10)
    slow = replace(RUN, started_ms=100, ended_ms=4_110)
    assert pace_of(FIRST, slow, fast, 0).step_ms == 10
    assert pace_of(FIRST, slow, replace(fast, started_ms=0, ended_ms=4_010), 0).step_ms == 10, "100 ms for ten steps"
    assert pace_of(FIRST, slow, None, 0).step_ms == 4_010
    assert pace_of(FIRST, replace(RUN, started_ms=5, ended_ms=5), None, 0).step_ms == 1


@pytest.mark.parametrize(
    ("changes", "kind", "field", "says"),
    [
        ({"of": TracesAsked(steps=0)}, SpecError, "steps", "1 to 100"),
        ({"of": TracesAsked(steps=1, ranks=(0, 2))}, SpecError, "ranks", "write 0 to 1"),
        ({"spec": replace(SPEC, kind="batch", recipe="", entrypoint=("x",))}, Conflict, "job", "kind: batch"),
        ({"pace": None}, Conflict, "job", r"not said a step yet.*phalanx\.run\(\)"),
        ({"pace": replace(PACE, attempt=AttemptId("tiny-1.0"))}, Conflict, "job", "not said a step yet"),
        ({"able": False}, Conflict, "job", "agent of node a is too old"),
        ({"report": AttemptReport(FIRST, 3, "running", RANKS, (), 9)}, Conflict, "job", "an older agent started its ranks on a"),
        ({"pace": at(904), "of": TracesAsked(steps=100)}, Conflict, "steps", "at step 904 and ends with step 1000.* at most 45"),
        ({"pace": at(1_000)}, Conflict, "steps", "ask sooner"),
        ({"now_ms": NOW_MS + 200}, Conflict, "job", "its newest step is 30 s old .*; ask again once its records have come"),
        (
            {"pace": replace(PACE, files=4_995)},
            Conflict,
            "ranks",
            "has 4995 of at most 5000 .* name at most 1, as with --rank",
        ),
        ({"pace": replace(PACE, files=9_000)}, Conflict, "ranks", "has 9000 of at most 5000 files .* its next attempt"),
        ({"spec": replace(SPEC, profile=ProfileSpec(first=90, count=3))}, Conflict, "steps", "its file asks for steps 90 to 92"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], kind: type[PhalanxError], field: str, says: str) -> None:
    with pytest.raises(kind, match=says) as refused:
        ask(**changes)
    assert getattr(refused.value, "field", "") == field


def test_steps_that_are_slow_or_few_ranks_are_no_reason_to_refuse() -> None:
    slow = replace(PACE, step_ms=60_000.0)
    assert ask(pace=slow, now_ms=NOW_MS + 60_000).request.first == 43
    assert ask(of=TracesAsked(steps=5, ranks=(1,)), pace=replace(PACE, files=4_997)).request.ranks == (1,)


def test_only_nodes_of_named_ranks_have_to_hear_of_it() -> None:
    draft = Draft(World())
    able, old = (replace(shape(name, 1), features=(features.TRACES,) if name == "a" else ()) for name in "ab")
    place = Placement((NodeSlice(A, (0,)), NodeSlice(NodeId("b"), (0,))))
    placed = AttemptPlaced(JOB, FIRST, place, 29_511, 2)
    bodies = (NodeUp(able, "x"), NodeUp(old, "x"), JobSubmitted(JOB, SPEC, "", "c", "ada"), placed)
    for body in (*bodies, AttemptRunning(JOB, FIRST, RANKS), NodeAway(NodeId("b"))):
        draft.add(body, 7)
    for ranks in ((), (1,), (0, 1)):
        with pytest.raises(Conflict, match="agent of node b is too old"):
            requested(draft.world, Sightings(), JOB, TracesAsked(steps=5, ranks=ranks), PACE, "ada", NOW_MS)
    one = TracesAsked(steps=5, ranks=(0,))
    assert requested(draft.world, Sightings(), JOB, one, PACE, "ada", NOW_MS).request == replace(THE_FIRST, ranks=(0,))


def test_a_script_that_has_not_said_how_long_it_is_may_be_asked_and_a_profile_elsewhere_is_no_matter() -> None:
    script = replace(SPEC, recipe="", entrypoint=("python", "train.py"))
    assert ask(spec=script, pace=at(40, total=40)).request.first == 92
    with pytest.raises(Conflict, match="ends with step 60"):
        ask(spec=script, pace=at(40, total=60))
    assert ask(spec=replace(SPEC, profile=ProfileSpec(first=97, count=3))).request.last == 96
    assert ask(spec=replace(SPEC, profile=ProfileSpec(first=1, count=91))).request.first == 92


def test_only_what_runs_on_nodes_that_are_there_can_hear_of_it() -> None:
    with pytest.raises(NotFound):
        requested(world(), seen(RUNNING), JobId("other-1"), ASKED, PACE, "ada", NOW_MS)
    with pytest.raises(Conflict, match="it is stopping"):
        ask(StopRequested(JOB, "pause", "ada"))
    with pytest.raises(Conflict, match="nothing was heard of node a"):
        ask(NodeAway(A))
    assert requested(world(), Sightings(), JOB, ASKED, PACE, "ada", NOW_MS).request == THE_FIRST, "told once it reports"


def test_one_request_at_a_time_until_its_steps_are_made_or_nobody_makes_them() -> None:
    first = ask()
    with pytest.raises(Conflict, match=r"steps 92 to 96 are asked for already.*at step 95"):
        ask(first, pace=at(95))
    with pytest.raises(Conflict, match="asked for already"):
        ask(first, missed(0), pace=at(93))
    for second in (ask(first, pace=at(96)), ask(first, missed(0), missed(1), missed(1), pace=at(93))):
        assert second.request.number == 2 and second.request.first > 96


def test_ranks_without_which_a_gang_goes_on_are_neither_asked_nor_waited_for() -> None:
    shrunk = Recovered(
        rank=0, step=40, generation=2, why="rank 1 fell", replaced=(), pids=(), steps_lost=0, recovery_ms=1, at_ms=1, absent=(1,)
    )
    gone = RankSaid(JOB, FIRST, shrunk)
    with pytest.raises(Conflict, match="goes on without it"):
        ask(gone, of=TracesAsked(steps=1, ranks=(1,)))
    assert ask(gone, ask(gone), missed(0), pace=at(93)).request.number == 2, "nobody is left that would make them"
    assert ask(gone, pace=replace(PACE, files=4_997)).request == THE_FIRST, "one rank leaves files"
    record = world(SPEC, gone, ask(gone)).attempts[FIRST]
    assert view_of(world().jobs[JOB], record, record.traces[0], (), 40).left == (0,)


def test_a_node_is_told_until_it_says_that_it_has_the_newest() -> None:
    first = ask()
    second = ask(first, pace=at(96))
    one, both = world(SPEC, first), world(SPEC, first, second)
    assert commands(one, seen(RUNNING), TERMS) == {A: [RequestTraces(FIRST, 3, first.request)]}
    assert commands(one, seen(replace(RUNNING, traces=1)), TERMS) == {}
    assert commands(both, seen(replace(RUNNING, traces=1)), TERMS) == {A: [RequestTraces(FIRST, 3, second.request)]}
    assert commands(both, seen(replace(RUNNING, traces=-1)), TERMS) == {}, "its ranks would not hear of it"
    assert commands(world(SPEC, first, able=False), seen(RUNNING), TERMS) == {}, "an older agent would hang up"


def test_the_next_request_is_sent_at_once_and_the_same_one_only_when_it_is_due() -> None:
    told: list[int] = []

    class Link:
        node = A

        def send(self, commands: Sequence[Command]) -> None:
            told.extend(one.request.number for one in commands if isinstance(one, RequestTraces))

    dispatch = Dispatch({A: Link()}, resend_ms=2_000)
    for now_ms, number in ((0, 1), (1_000, 1), (2_000, 1), (2_500, 2)):
        dispatch.send({A: [RequestTraces(FIRST, 3, replace(THE_FIRST, number=number))]}, now_ms)
    assert told == [1, 1, 2]


def test_excuses_use_up_no_facts_and_only_those_that_were_asked_for_are_kept() -> None:
    asked = ask(of=TracesAsked(steps=5, ranks=(1,)))
    draft = Draft(world(SPEC, asked, RankSaid(JOB, FIRST, checkpoint(1))))
    said = [missed(rank, number).fact for rank, number in ((1, 1), (1, 1), (0, 1), (1, 2), (7, 1), (-1, 1))]
    assert facts.add_all(draft, FIRST, said * 100, plain_lineage, 8) == 0, "they are not told of as a flood"
    record = draft.world.attempts[FIRST]
    assert [event.body for event in draft.events] == [missed(1)] and record.facts == 1
    assert [one.rank for one in record.traces[0].missed] == [1]


def test_an_excuse_that_is_waited_for_is_heard_after_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "FACTS_MAX", 1)
    draft = Draft(world(SPEC, ask(), RankSaid(JOB, FIRST, checkpoint(1))))
    assert facts.add_all(draft, FIRST, [checkpoint(2), missed(0).fact], plain_lineage, 8) == 1
    assert [one.rank for one in draft.world.attempts[FIRST].traces[0].missed] == [0]


def test_what_became_of_it_is_what_has_come_and_what_ranks_said() -> None:
    after = world(SPEC, ask(), missed(1), missed(7), missed(0, number=3))
    record = after.attempts[FIRST]
    assert [one.rank for one in record.traces[0].missed] == [1], "there is no rank 7, and no request 3"
    view = view_of(after.jobs[JOB], record, record.traces[0], (), 94)
    assert (view.first, view.last, view.at_step, view.traced, view.left, view.ended) == (92, 96, 94, 0, (0,), False)
    assert [(one.rank, one.why) for one in view.missed] == [(1, "it was late")]
    done = view_of(after.jobs[JOB], record, record.traces[0], {0, 1}, 96)
    assert (done.traced, done.missed, done.left) == (2, (), ()), "the trace of a generation before is one too"
