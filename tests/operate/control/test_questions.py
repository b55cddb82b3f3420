"""What the scheduler's process is asked: only what is new, and whatever comes, the snapshot at the other end is the same."""

import gc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core import wire
from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Policy, Queue
from phalanx.decide.scheduler import JobFacts, NodeFacts, PendingJob, RunningJob, Shape, Snapshot, Usage
from phalanx.decide.scheduler.line.attained import ServiceHistory, learned
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.where.columns import Pod, Popular
from phalanx.decide.scheduler.why.history import History
from phalanx.operate.control.questions import Answerer, Asker, Question
from phalanx.operate.control.scheduler_process import Mind
from tests.drawn import examples

MIXED = History(mix=(Popular(Pod(1_500, 64, 1, 250, frozenset({"L4", "T4"})), 3), Popular(Pod(0, 0, 8, 1_000), 1)))


def node(name: str, free: int = 2) -> NodeFacts:
    return NodeFacts(NodeId(name), ((0, "cpu"), (1, "cpu")), tuple(range(free)), 8.0, 8.0, 2**30, 2**30, True)


def facts(name: str) -> JobFacts:
    return JobFacts(JobId(name), Shape(DeviceRequest()), sequence=1)


def pending(name: str, evictions: int = 0) -> PendingJob:
    return PendingJob(facts(name), evictions=evictions)


def running(name: str, saved_ms: int = 0) -> RunningJob:
    place = Placement((NodeSlice(NodeId("n0"), (0,)),))
    return RunningJob(facts(name), AttemptId(f"{name}.1"), place, 5, saved_ms=saved_ms)


def told(asker: Asker, answerer: Answerer, snapshot: Snapshot) -> tuple[Question, Snapshot]:
    """Over the line and back."""
    question: Question = wire.loads(Question, wire.dumps(Question, asker.question(snapshot)))
    return question, answerer.snapshot(question)


def alike(one: Snapshot, other: Snapshot) -> bool:
    """The order of the tuples means nothing."""

    def key(snapshot: Snapshot) -> Snapshot:
        return replace(
            snapshot,
            nodes=tuple(sorted(snapshot.nodes, key=lambda item: item.node)),
            running=tuple(sorted(snapshot.running, key=lambda item: item.facts.job)),
            pending=tuple(sorted(snapshot.pending, key=lambda item: item.facts.job)),
        )

    return key(one) == key(other)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    jobs = draw(st.permutations([f"j-{number}" for number in range(4)]))
    cut = draw(st.integers(0, 4))
    small = st.integers(0, 2)
    return Snapshot(
        draw(small),
        tuple(node(f"n{number}", draw(small)) for number in draw(st.sets(st.integers(0, 3)))),
        tuple(running(name, draw(small)) for name in jobs[:cut]),
        tuple(pending(name, draw(small)) for name in jobs[cut:] if draw(st.booleans())),
        policy=draw(st.sampled_from([Policy(), Policy(queues={"left": Queue(weight=2.0)})])),
        usage=draw(st.sampled_from([{}, {"left": Usage(1.0, 2, 3.0)}])),
        history=draw(st.sampled_from([History(), History(scored=3), MIXED])),
        service=draw(st.sampled_from([ServiceHistory(), learned(ServiceHistory(), 8, 3, 60_000)])),
    )


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(snapshots(), st.booleans()), max_size=5))
def test_whatever_comes_the_other_end_has_the_same_snapshot(history: list[tuple[Snapshot, bool]]) -> None:
    asker, answerer = Asker(), Answerer()
    for snapshot, dies in history:
        if dies:
            asker.forget()
            answerer = Answerer()
        assert alike(told(asker, answerer, snapshot)[1], snapshot)


def test_only_what_is_new_travels_and_the_rest_are_the_same_objects() -> None:
    asker, answerer = Asker(), Answerer()
    one = Snapshot(1, (node("n0"), node("n1")), (running("a-1"),), (pending("b-2"), pending("c-3")), usage={"left": Usage(1.0)})
    whole, before = told(asker, answerer, one)
    assert (len(whole.nodes), len(whole.running), len(whole.pending), whole.follows) == (2, 1, 2, False)
    two = replace(one, now_ms=2, nodes=(one.nodes[0], node("n1", 1)), pending=(one.pending[1],))
    new, after = told(asker, answerer, two)
    assert new == Question(number=2, follows=True, now_ms=2, nodes=(node("n1", 1),), pending_left=(JobId("b-2"),))
    assert [was is now for was, now in zip(before.nodes, after.nodes, strict=True)] == [True, False]
    assert after.running[0] is before.running[0]
    assert len(wire.dumps(Question, new)) < 700


def test_a_process_that_does_not_know_the_one_before_says_so() -> None:
    asker = Asker()
    asker.question(Snapshot(1, (), (), ()))
    follows = asker.question(Snapshot(2, (), (), ()))
    with pytest.raises(ValueError, match="follows one that is not known"):
        Answerer().snapshot(follows)
    answer = Mind().answer(wire.dumps(Question, follows).encode())
    assert answer.plan is None
    assert "follows one" in answer.error


def test_a_decision_leaves_nothing_behind_once_it_is_told() -> None:
    """What is alive while rubbish is collected is never looked at again: for days, a decision's worth of a fleet each time."""
    asker, mind = Asker(), Mind()
    gc.collect()
    before = _rounds()
    gc.disable()
    try:
        for number in range(6):
            jobs = tuple(pending(f"j-{job}") for job in range(4 + number % 2))
            one = Snapshot(number, (node("n0"), node("n1", free=1)), (), jobs)
            assert mind.answer(wire.dumps(Question, asker.question(one)).encode()).plan is not None
            gc.collect(0)
        assert len(_rounds()) == len(before)
    finally:
        gc.enable()


def _rounds() -> list[object]:
    """By type: isinstance asks every living object for its class, and torch's deprecated ones warn."""
    return [one for one in gc.get_objects() if type(one) is Round]
