"""Devices that are promised: for whom gangs end, and gangs that lost some of their nodes."""

from dataclasses import replace

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.core.reasons import MakingRoom
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Claim, Plan, Start, Wait
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, RunningJob, Shape, Snapshot
from tests.decide.scheduler.closed_loop import ALL, HIGH, LOW, MINUTE, NOW, STANDARD, Loop, facts, fleet, gang, name_of


def whole(*nodes: int) -> Placement:
    return Placement(tuple(NodeSlice(name_of(node), tuple(ALL)) for node in nodes))


def decided(nodes: tuple[NodeFacts, ...], running: list[RunningJob], *jobs: PendingJob) -> Plan:
    return schedule(Snapshot(NOW, nodes, tuple(running), jobs, Policy()))


def claimant(*nodes: int, name: str = "claimant") -> PendingJob:
    return PendingJob(facts(name, 8, len(nodes)), claim=whole(*nodes))


def test_it_starts_on_exactly_its_claim_once_all_of_it_is_free() -> None:
    ending = gang("ending", (1, ALL), stopping=True, evicted_for=JobId("claimant"))
    (decision,) = decided(fleet(3, held=[ending]), [ending], claimant(0, 1)).decisions
    assert isinstance(decision, Wait) and decision.reason == MakingRoom((JobId("ending"),), 8)
    plan = decided(fleet(3), [], claimant(0, 1))
    assert plan.decisions == (Start(JobId("claimant"), whole(0, 1)),)
    assert plan.claims == ()


def test_what_is_claimed_is_offered_to_nobody_whoever_comes_first() -> None:
    ending = gang("ending", (1, ALL), stopping=True)
    others = [PendingJob(facts("high", 8, priority=HIGH)), PendingJob(facts("old", 8, priority=STANDARD, submitted_ms=0))]
    plan = decided(fleet(3, held=[ending]), [ending], *others, claimant(0, 1))
    started = [(one.job, one.placement.slices[0].node) for one in plan.decisions if isinstance(one, Start)]
    assert started == [("high", "n02")]


def test_a_claim_that_cannot_come_true_is_given_up_and_the_job_considered() -> None:
    """Its node was drained, or goes away, or somebody who is not ending holds it."""
    drained = tuple(replace(node, schedulable=node.node != "n01", drained=node.node == "n01") for node in fleet(3))
    closing = tuple(replace(node, closing_ms=NOW + 1 if node.node == "n01" else None) for node in fleet(3))
    stays = gang("stays", (1, ALL), priority=STANDARD)
    for nodes, running in ((drained, []), (closing, []), (fleet(3, held=[stays]), [stays])):
        plan = decided(nodes, running, claimant(0, 1))
        assert plan.claims == (Claim(JobId("claimant"), None),)
        assert plan.decisions == (Start(JobId("claimant"), whole(0, 2)),)


def test_giving_up_makes_nothing_free_that_somebody_holds() -> None:
    stays = gang("stays", (1, ALL), priority=STANDARD)
    plan = decided(fleet(2, held=[stays]), [stays], claimant(0, 1), PendingJob(facts("next", 8)))
    assert [one.job for one in plan.decisions if isinstance(one, Start)] == []
    plan = decided(fleet(2, held=[stays]), [stays], claimant(1), PendingJob(facts("next", 8)))
    assert [(one.job, one.placement) for one in plan.decisions if isinstance(one, Start)] == [("claimant", whole(0))]


def test_devices_on_which_given_up_ranks_still_live_are_waited_for() -> None:
    fenced = tuple(replace(node, free=(), fenced=tuple(ALL)) if node.node == "n01" else node for node in fleet(3))
    plan = decided(fenced, [], claimant(0, 1))
    (decision,) = plan.decisions
    assert isinstance(decision, Wait) and decision.reason == MakingRoom((), 8)
    assert plan.claims == ()


def test_a_smaller_gang_starts_on_what_it_keeps() -> None:
    shape = replace(facts("e", 8, 4).shape, min_nodes=2)
    waits = PendingJob(replace(facts("e"), shape=shape), claim=whole(0, 2))
    assert decided(fleet(4), [], waits).decisions == (Start(JobId("e"), whole(0, 2)),)


def repaired(*last: int, **more: object) -> PendingJob:
    return PendingJob(facts("repaired", 8, len(last)), repair=True, last=whole(*last), **more)  # type: ignore[arg-type]


def where(plan: Plan, job: str) -> list[str]:
    return [part.node for one in plan.decisions if one.job == job and isinstance(one, Start) for part in one.placement.slices]


def test_S10_a_repaired_gang_goes_before_its_equals() -> None:
    """A drained node returns. An unrelated job of equal priority has waited for longer; the slot is the repaired gang's."""
    unrelated = PendingJob(facts("unrelated", 8, priority=STANDARD, submitted_ms=0))
    nodes = fleet(2)
    away = tuple(replace(node, schedulable=node.node == "n00", drained=node.node == "n01") for node in nodes)
    held = gang("other", (0, ALL), priority=STANDARD)
    gone = decided(tuple(replace(node, free=()) if node.node == "n00" else node for node in away), [held], repaired(1), unrelated)
    assert not any(isinstance(one, Start) for one in gone.decisions)
    back = tuple(replace(node, free=() if node.node == "n00" else node.free) for node in nodes)
    plan = decided(back, [held], repaired(1), unrelated)
    assert where(plan, "repaired") == ["n01"]
    assert where(plan, "unrelated") == []


def test_S10_a_repaired_gang_of_several_nodes_is_not_passed_while_one_is_missing() -> None:
    """It ran on three nodes of which one is still away; equals do not take the two that it waits on."""
    nodes = tuple(replace(node, schedulable=node.node != "n02") for node in fleet(3))
    line = [repaired(0, 1, 2), *(PendingJob(facts(f"u-{number}", 8, submitted_ms=number)) for number in range(3))]
    plan = decided(nodes, [], *line)
    assert not any(isinstance(one, Start) for one in plan.decisions)
    assert where(decided(fleet(3), [], *line), "repaired") == ["n00", "n01", "n02"]


def test_S11_only_the_failed_nodes_are_replaced() -> None:
    """Two of 500 nodes failed, others stand idle: 498 ranks' nodes are the same, at the same place."""
    last = list(range(500))[::-1]
    nodes = tuple(replace(node, schedulable=node.node not in ("n17", "n250"), free=node.free) for node in fleet(510))
    found = where(decided(nodes, [], repaired(*last)), "repaired")
    assert [rank for rank, (was, now) in enumerate(zip(last, found, strict=True)) if name_of(was) != now] == [249, 482]
    assert set(found) - {str(name_of(node)) for node in last} <= {str(name_of(node)) for node in range(500, 510)}
    assert len(set(found)) == 500


def test_S11_the_missing_ones_lie_where_the_job_wants_them() -> None:
    """Groups of two ranks lie in one domain, and the whole in one block."""
    nodes = tuple(
        replace(node, labels={"domain": f"d{number // 4}", "block": f"b{number // 16}"}, schedulable=number != 5)
        for number, node in enumerate(fleet(32))
    )
    asked = facts("repaired", 8, 4)
    shape = replace(asked.shape, group=2, within="block")
    job = PendingJob(replace(asked, shape=shape), repair=True, last=whole(0, 1, 4, 5))
    assert where(decided(nodes, [], job), "repaired") in (["n00", "n01", "n04", "n06"], ["n00", "n01", "n04", "n07"])
    only = replace(job, facts=replace(asked, shape=replace(asked.shape, within="block")))
    found = where(decided(nodes, [], only), "repaired")
    assert found[:3] == ["n00", "n01", "n04"] and int(found[3][1:]) < 16


def test_a_gang_that_cannot_have_its_former_nodes_is_placed_anew() -> None:
    held = [gang("h", (0, ALL), (1, ALL), priority=STANDARD)]
    assert where(decided(fleet(4, held=held), held, repaired(0, 1)), "repaired") == ["n02", "n03"]
    avoiding = repaired(0, 1, avoids=frozenset({NodeId("n01")}))
    assert where(decided(fleet(4), [], avoiding), "repaired")[0] == "n00"
    assert "n01" not in where(decided(fleet(4), [], avoiding), "repaired")
    wider = replace(repaired(0, 1), facts=facts("repaired", 8, 3))
    assert len(where(decided(fleet(4), [], wider), "repaired")) == 3


def test_a_share_is_placed_anew() -> None:
    request = replace(facts("s").shape.request, count=1, milli=250)
    share = PendingJob(replace(facts("s"), shape=Shape(request)), last=Placement((NodeSlice(name_of(1), (3,), 250),)))
    assert len(where(decided(fleet(2), [], share), "s")) == 1


def test_two_claims_run_side_by_side_to_their_end() -> None:
    loop = Loop(fleet(4))
    loop.running = [gang(f"low-{node}", (node, ALL)) for node in range(4)]
    loop.submit(*(facts(f"high-{number}", 8, 2, priority=HIGH) for number in range(2)))
    loop.steps(5)
    assert [len(loop.where(f"high-{number}")) for number in range(2)] == [2, 2]
    assert len(loop.evicted) == 4


def test_a_claim_of_a_job_that_may_not_start_is_given_up() -> None:
    outside: JobFacts = replace(facts("claimant", 8, 1), window="night")
    plan = decided(fleet(1), [], PendingJob(outside, claim=whole(0)), PendingJob(facts("next", 8)))
    assert Claim(JobId("claimant"), None) in plan.claims


def test_the_other_half_of_a_device_that_is_promised_whole_is_nobodys() -> None:
    """A share of it is ended for a gang that needs the device whole: the half beside it goes to no other share, now or later."""
    half = DeviceRequest(("H100",), 1, 500)
    low = gang("low", (0, [0]), priority=LOW)
    low = replace(
        low,
        facts=replace(low.facts, shape=replace(low.facts.shape, request=half)),
        placement=Placement((NodeSlice(NodeId("n00"), (0,), 500),)),
    )
    loop = Loop(fleet(1, 1), stops_ms=lambda _: 5 * MINUTE)
    loop.running = [low]
    share = facts("share", 1)
    loop.submit(facts("whole", 1, priority=HIGH), replace(share, shape=replace(share.shape, request=half)))
    loop.steps(10)
    assert [job for _, job, _ in loop.evicted] == ["low"]
    assert [one.facts.job for one in loop.running] == ["whole"]
    assert "share" not in loop.started
