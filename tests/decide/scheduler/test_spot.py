"""Nodes that may be taken away: who takes them, who waits for them, who leaves them."""

from dataclasses import replace

import pytest

from phalanx.core.devices import DeviceRequest
from phalanx.core.ids import NodeId
from phalanx.core.policy import Policy
from phalanx.core.reasons import Kept
from phalanx.core.spec import SpotUse
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob, RunningJob, Shape, Share, Snapshot
from tests.decide.scheduler.closed_loop import ALL, HIGH, HOUR, MINUTE, NOW, STANDARD, Loop, elastic, facts, fleet, gang


def nodes(spot_price: float = 1.0, price: float = 3.0, held: tuple[RunningJob, ...] = ()) -> tuple[NodeFacts, ...]:
    """Two on-demand nodes, then two of spot."""
    return tuple(
        replace(node, spot=number >= 2, price=spot_price if number >= 2 else price)
        for number, node in enumerate(fleet(4, held=held))
    )


def asks(spot: SpotUse, num_nodes: int = 1, waits_ms: int = MINUTE) -> PendingJob:
    found = facts("job", 8, num_nodes)
    return PendingJob(replace(found, shape=replace(found.shape, spot=spot), submitted_ms=NOW - waits_ms))


def decided(fleet_nodes: tuple[NodeFacts, ...], *jobs: PendingJob, running: tuple[RunningJob, ...] = ()) -> Plan:
    return schedule(Snapshot(NOW, fleet_nodes, running, jobs, Policy(spot_fallback="10m")))


def where(plan: Plan) -> list[str]:
    (decision, *_) = plan.decisions
    return [part.node for part in decision.placement.slices] if isinstance(decision, Start) else []


def test_who_wants_none_gets_none() -> None:
    assert where(decided(nodes(), asks("never"))) == ["n00"]
    (decision,) = decided(nodes(), asks("never", 3)).decisions
    assert isinstance(decision, Wait)


@pytest.mark.parametrize(("spot_price", "price", "first"), [(1.0, 3.0, "n02"), (0.0, 0.0, "n02"), (3.0, 1.0, "n00")])
def test_allow_takes_spot_first_unless_it_costs_more(spot_price: float, price: float, first: str) -> None:
    assert where(decided(nodes(spot_price, price), asks("allow"))) == [first]


def test_allow_takes_what_fits_first() -> None:
    held = (gang("h", (2, ALL), (3, ALL), priority=STANDARD),)
    assert where(decided(nodes(held=held), asks("allow"), running=held)) == ["n00"]
    assert len(where(decided(nodes(), asks("allow", 3)))) == 3, "on both kinds together, too"


def test_prefer_waits_for_spot_and_then_takes_what_there_is() -> None:
    held = (gang("h", (2, ALL), (3, ALL), priority=STANDARD),)
    assert where(decided(nodes(), asks("prefer"))) == ["n02"]
    plan = decided(nodes(held=held), asks("prefer"), running=held)
    (decision,) = plan.decisions
    assert isinstance(decision, Wait) and isinstance(decision.reason, Kept)
    assert decision.reason.until_ms == NOW + 9 * MINUTE
    assert [part.node for kept in plan.reservations for part in kept.placement.slices] in (["n02"], ["n03"]), "it keeps no other"
    assert where(decided(nodes(held=held), asks("prefer", waits_ms=10 * MINUTE), running=held)) == ["n00"]
    assert where(decided(nodes(), asks("prefer", waits_ms=10 * MINUTE))) == ["n02"], "spot still comes first"


def test_one_that_waits_for_spot_is_in_nobodys_way_elsewhere_nor_ends_anybody_there() -> None:
    held = (gang("low", (0, ALL)), gang("h", (2, ALL), (3, ALL), priority=HIGH))
    job = asks("prefer")
    plan = decided(
        nodes(held=held), replace(job, facts=replace(job.facts, priority=HIGH)), PendingJob(facts("next", 8)), running=held
    )
    assert [one.job for one in plan.decisions if isinstance(one, Start)] == ["next"]
    assert plan.evictions == ()


def test_where_the_fleet_has_no_spot_nobody_waits_for_it() -> None:
    assert where(decided(fleet(2), asks("prefer"))) == ["n00"]


def closing(at_ms: int, *numbers: int, held: tuple[RunningJob, ...] = (), size: int = 4) -> tuple[NodeFacts, ...]:
    return tuple(
        replace(node, closing_ms=at_ms if number in numbers else None) for number, node in enumerate(fleet(size, held=held))
    )


def test_nothing_is_started_on_a_node_that_goes_away() -> None:
    assert where(decided(closing(NOW + HOUR, 0, 1), PendingJob(facts("job", 8)))) == ["n02"]
    assert where(decided(closing(NOW + HOUR, 0, 1), PendingJob(facts("job", 8, 3)))) == []
    plan = decided(closing(NOW + HOUR, 0, 1, 2, 3), PendingJob(facts("job", 8)))
    assert where(plan) == [] and plan.reservations == ()


def test_nor_a_share_of_a_device_that_is_held_in_part() -> None:
    """Where no whole device may be used, nothing of one held in part may be: on nodes that go away, or while spot is awaited."""
    half = replace(facts("job", 1), shape=Shape(DeviceRequest(("H100",), 1, 500)))

    def broken(node: NodeFacts) -> NodeFacts:
        return replace(node, free=node.free[1:], shares=(Share(node.free[0], 500, 0),))

    away = tuple(broken(node) if node.closing_ms else node for node in closing(NOW + HOUR, 0, 1))
    assert where(decided(away, PendingJob(half))) == ["n02"]
    awaits = PendingJob(replace(half, shape=replace(half.shape, spot="prefer"), submitted_ms=NOW))
    on_demand = tuple(broken(node) if not node.spot else node for node in nodes())
    assert where(decided(on_demand, awaits)) == ["n02"]
    only_demand = tuple(replace(node, free=()) if node.spot else node for node in on_demand)
    assert where(decided(only_demand, awaits)) == []
    cheap = tuple(broken(node) if not node.spot else node for node in nodes(spot_price=1.0, price=3.0))
    allows = PendingJob(replace(half, shape=replace(half.shape, spot="allow")))
    assert where(decided(cheap, allows)) == ["n02"], "spot comes first where it costs no more"


def test_gangs_leave_before_the_node_goes() -> None:
    """Also those that may not be ended for others, and the young."""
    stays = gang("stays", (3, ALL), priority=STANDARD)
    leaves = gang("leaves", (0, ALL), (1, ALL), priority=STANDARD, placed_ms=NOW - MINUTE)
    leaves = replace(leaves, facts=replace(leaves.facts, preemptible=False))
    held = (stays, leaves)
    plan = decided(closing(NOW + 2 * MINUTE, 1, held=held), running=held)
    (evicted,) = plan.evictions
    assert (evicted.job, evicted.claimant, evicted.cause, evicted.keeps) == ("leaves", "leaves", "spot", None)
    assert evicted.lost_ms == 16 * 2 * MINUTE
    assert decided(closing(NOW + HOUR, 1, held=held), running=held).evictions == (), "there is time yet"
    ending = (stays, replace(leaves, stopping=True))
    assert decided(closing(NOW + 2 * MINUTE, 1, held=ending), running=ending).evictions == ()


def test_an_elastic_gang_keeps_the_nodes_that_stay() -> None:
    wide = elastic(gang("wide", *((node, ALL) for node in range(4)), priority=STANDARD), 3, 4)
    (evicted,) = decided(closing(NOW + MINUTE, 1, held=(wide,)), running=(wide,)).evictions
    assert evicted.keeps is not None and [part.node for part in evicted.keeps.slices] == ["n00", "n02", "n03"]
    (evicted,) = decided(closing(NOW + MINUTE, 1, 2, held=(wide,)), running=(wide,)).evictions
    assert evicted.keeps is None


def test_over_rounds_the_gang_goes_on_elsewhere() -> None:
    loop = Loop(closing(NOW + 5 * MINUTE, 0, size=2))
    loop.running = [gang("job", (0, ALL), priority=STANDARD)]
    loop.steps(4)
    assert loop.where("job") == [NodeId("n01")]
    assert [cause for _, _, cause in loop.evicted] == ["spot"]
