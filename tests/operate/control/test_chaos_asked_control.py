"""Faults that people ask for: refused with what to change, committed with who asked, sent until the node says that it has them."""

from dataclasses import replace

import pytest

from phalanx.core import features
from phalanx.core.chaos import Asked, FaultMet
from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.errors import Conflict, NotFound, PhalanxError, SpecError
from phalanx.core.events import AttemptPlaced, AttemptRunning, EventBody, FaultPlanned, JobSubmitted, NodeUp, RankSaid
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import AttemptReport, PlanFaults, RankProcess
from phalanx.core.records import StepRecord
from phalanx.core.spec import JobSpec
from phalanx.operate.control import chaos
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.views import job_view
from phalanx.operate.control.wanted import commands
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import LEASE_MS, a_spec, shape
from tests.operate.control.test_wanted import TERMS, seen

A = NodeId("a")
JOB, FIRST = JobId("tiny-1"), AttemptId("tiny-1.1")
PLACE = Placement((NodeSlice(A, (0, 1)),))
RANKS = (RankProcess(0, 1), RankProcess(1, 2))
SPEC = replace(a_spec(), kind="train", chaos=True)
RECIPE = replace(SPEC, entrypoint=(), recipe="llama")
NEWEST = StepRecord(
    rank=0, step=40, total_steps=50, loss=1.0, loss_hex="", grad_norm=1.0, lr=1.0, tokens=1, tokens_per_s=1.0, mfu=0.0,
    started_ms=1, ended_ms=1,
)  # fmt: skip
KILL = Asked(fault="kill-rank", rank=1, step=45)


def world(spec: JobSpec = SPEC, *more: EventBody, able: bool = True) -> World:
    draft = Draft(World())
    node = replace(shape("a"), features=(features.CHAOS,) if able else ())
    bodies = (NodeUp(node, "x"), JobSubmitted(JOB, spec, "", "c", "ada"), AttemptPlaced(JOB, FIRST, PLACE, 29_511, 2))
    for body in (*bodies, AttemptRunning(JOB, FIRST, RANKS), *more):
        draft.add(body, 7)
    return draft.world


def asked(spec: JobSpec = SPEC, fault: Asked = KILL, newest: StepRecord | None = NEWEST, *more: EventBody) -> list[EventBody]:
    return chaos.planned(world(spec, *more), JOB, fault, (FIRST, newest) if newest else None, "ada", LEASE_MS)


def test_the_newest_step_of_an_attempt_before_is_none_of_this_one() -> None:
    """The job started again between the look at its records and the plan."""
    early = replace(KILL, step=NEWEST.step - 10)
    (planned,) = chaos.planned(world(), JOB, early, (AttemptId(f"{JOB}.0"), NEWEST), "ada", LEASE_MS)
    assert isinstance(planned, FaultPlanned) and planned.fault.step == early.step
    with pytest.raises(Conflict):
        chaos.planned(world(), JOB, early, (FIRST, NEWEST), "ada", LEASE_MS)


@pytest.mark.parametrize(
    ("spec", "fault", "kind", "field"),
    [
        (replace(SPEC, chaos=False), KILL, Conflict, "job"),
        (replace(SPEC, kind="batch"), KILL, SpecError, "fault"),
        (SPEC, Asked(fault="flip-bit"), SpecError, "fault"),
        (SPEC, Asked(fault="slow-rank"), SpecError, "fault"),
        (SPEC, replace(KILL, rank=2), SpecError, "rank"),
        (SPEC, replace(KILL, step=40), Conflict, "step"),
        (SPEC, replace(KILL, step=51), SpecError, "step"),
        (SPEC, replace(KILL, for_ms=5), SpecError, "for"),
    ],
)
def test_what_cannot_be_is_refused(spec: JobSpec, fault: Asked, kind: type[PhalanxError], field: str) -> None:
    with pytest.raises(kind) as refused:
        asked(spec, fault)
    assert getattr(refused.value, "field", "") == field


def test_a_job_that_nobody_knows_or_that_waits_has_no_faults() -> None:
    with pytest.raises(NotFound):
        chaos.planned(world(), JobId("other-1"), KILL, None, "ada", LEASE_MS)
    draft = Draft(World())
    draft.add(JobSubmitted(JOB, SPEC, "", "c", "ada"), 7)
    with pytest.raises(Conflict, match="it is pending"):
        chaos.planned(draft.world, JOB, KILL, None, "ada", LEASE_MS)


def test_the_one_that_asked_is_in_the_log_and_numbers_count_up() -> None:
    (first,) = asked()
    (second,) = asked(RECIPE, Asked(fault="flip-bit"), None, first)
    assert isinstance(first, FaultPlanned) and isinstance(second, FaultPlanned)
    assert (first.fault.number, first.by, second.fault.number) == (1, "ada", 2)


def test_a_node_is_told_until_it_says_that_it_has_them_and_only_of_what_is_open() -> None:
    (first,) = asked()
    (second,) = asked(SPEC, Asked(fault="fill-disk"), NEWEST, first)
    assert isinstance(first, FaultPlanned) and isinstance(second, FaultPlanned)
    running = AttemptReport(FIRST, 3, "running", RANKS, (), 9)
    both = world(SPEC, first, second)
    assert commands(both, seen(running), TERMS) == {A: [PlanFaults(FIRST, 3, (first.fault, second.fault), 2)]}
    assert commands(both, seen(replace(running, faults=2)), TERMS) == {}
    met = FaultMet(rank=1, step=45, number=1, fault="kill-rank", late=False, at_ms=8)
    half = replace(met, rank=0, number=2, fault="fill-disk")
    later = world(SPEC, first, second, RankSaid(JOB, FIRST, met), RankSaid(JOB, FIRST, met), RankSaid(JOB, FIRST, half))
    assert commands(later, seen(running), TERMS) == {A: [PlanFaults(FIRST, 3, (second.fault,), 2)]}
    view = job_view(later, later.jobs[JOB], {}).attempts[0].faults
    assert [one.met for one in view] == ["met by rank 1 at step 45", "met by rank 0 at step 45"]
    assert commands(world(SPEC, first, able=False), seen(running), TERMS) == {}, "an older agent would hang up"


def test_an_agent_is_not_kept_away_for_longer_than_the_lease_of_somebody_else_on_its_node() -> None:
    other, theirs = JobId("other-1"), AttemptId("other-1.1")
    beside = (
        NodeUp(replace(shape("a", 4), features=(features.CHAOS,)), "x"),
        JobSubmitted(other, a_spec(), "", "c", "bob"),
        AttemptPlaced(other, theirs, Placement((NodeSlice(A, (2, 3)),)), 29_512, 2),
    )
    for fault in ("kill-agent", "kill-node"):
        long, short = (Asked(fault=fault, for_ms=for_ms) for for_ms in (3_600_000, LEASE_MS // 2))
        with pytest.raises(Conflict, match=r"for.*other-1\.1 has a part on a .* at most"):
            asked(SPEC, long, None, *beside)
        assert asked(SPEC, short, None, *beside) and asked(SPEC, long, None), "alone it may be away as long as it likes"
