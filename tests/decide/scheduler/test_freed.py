"""What gangs let go of when they end, what of it is promised already, and what nodes cost that are bought of it."""

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.room.buying import Market, Offered
from phalanx.decide.scheduler.room.freed import Freed
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.where.fleet import Fleet
from tests.decide.scheduler.sharing import gang, job, world
from tests.drawn import examples

SNAPSHOT = world({}, running=[gang("g-1", count=4), gang("g-2", count=4), gang("g-3", count=8, num_nodes=2)], nodes=3)
FLEET = Fleet.of(SNAPSHOT.nodes)
GANGS = Gangs.of(SNAPSHOT.running, FLEET.ground)
NODES = [node.node for node in FLEET.ground.nodes]


def claim(node: NodeId, *devices: int) -> Placement:
    return Placement((NodeSlice(node, devices),))


def test_slices_of_a_type_are_in_order_of_gangs_and_ranks() -> None:
    freed = Freed(SNAPSHOT, FLEET, GANGS, np.zeros(3, np.bool_))
    columns = freed.columns("H100")
    assert columns.slice_gang.tolist() == [0, 1, 2, 2]
    assert columns.slice_row.tolist() == [0, 0, 1, 2]
    assert columns.slice_devices.tolist() == [4, 4, 8, 8]
    assert freed.per_row("H100", np.array([True, False, True])).tolist() == [4, 8, 8]


def test_what_is_promised_of_a_gang_that_ends_comes_free_for_nobody_else() -> None:
    ending = np.array([True, False, False])
    freed = Freed(SNAPSHOT, FLEET, GANGS, ending)
    everybody = np.ones(3, np.bool_)
    assert freed.per_row("H100", everybody).tolist() == [8, 8, 8]
    ending[2] = True
    freed.promise(claim(NODES[2], 0, 1, 2), [2])
    assert freed.columns("H100").slice_devices.tolist() == [4, 4, 8, 5]
    assert freed.per_row("H100", everybody).tolist() == [8, 8, 5]
    assert freed.releasable(2).slices == (NodeSlice(NODES[1], tuple(range(8))), NodeSlice(NODES[2], (3, 4, 5, 6, 7)))
    assert freed.releasable(2, {NODES[2]}).slices == (NodeSlice(NODES[2], (3, 4, 5, 6, 7)),)


def test_a_gang_that_stays_lets_go_of_all_when_it_is_asked_to_whatever_was_promised_of_it() -> None:
    freed = Freed(SNAPSHOT, FLEET, GANGS, np.zeros(3, np.bool_))
    freed.promise(claim(NODES[0], 0), [])
    assert freed.releasable(0) == GANGS.all[0].placement
    assert freed.columns("H100").slice_devices.tolist() == [4, 4, 8, 8]


def test_claims_in_the_snapshot_and_what_gangs_keep_are_promised_from_the_start() -> None:
    waiting = replace(SNAPSHOT.running[1], stopping=True, keeps=claim(NODES[0], 5))
    snapshot = replace(SNAPSHOT, running=(replace(SNAPSHOT.running[0], stopping=True), waiting, SNAPSHOT.running[2]))
    gangs = Gangs.of(snapshot.running, FLEET.ground)
    freed = Freed(snapshot, FLEET, gangs, gangs.stopping.copy())
    assert freed.columns("H100").slice_devices.tolist() == [4, 3, 8, 8]


def test_a_device_that_its_node_lost_comes_free_for_nobody() -> None:
    """A gang on eight devices holds the seven that are left: who wants eight of a type, or four beside another gang, must not be
    promised them."""
    node = replace(SNAPSHOT.nodes[0], devices=SNAPSHOT.nodes[0].devices[:7])
    snapshot = replace(SNAPSHOT, nodes=(node, *SNAPSHOT.nodes[1:]))
    fleet = Fleet.of(snapshot.nodes)
    gangs = Gangs.of(snapshot.running, fleet.ground)
    freed = Freed(snapshot, fleet, gangs, np.zeros(3, np.bool_))
    assert freed.columns("H100").slice_devices.tolist() == [4, 3, 8, 8]
    assert gangs.devices.tolist() == [4, 4, 16], "what it was given counts for its queue"
    freed.promise(claim(node.node, 4), [1])
    assert freed.columns("H100").slice_devices.tolist() == [4, 3, 8, 8]
    high = job("j-1", count=4, priority=75)
    plan = schedule(replace(snapshot, nodes=(node,), running=snapshot.running[:2], pending=(high,)))
    assert [(one.job, one.placement.world_size) for one in plan.claims if one.placement] == [("j-1", 4)]
    assert [one.job for one in plan.evictions] == ["g-1"]


def market(count: int, cost: list[float]) -> Market:
    columns = Freed(SNAPSHOT, FLEET, GANGS, np.zeros(3, np.bool_)).columns("H100")
    offered = Offered(columns.slice_gang, columns.slice_row, columns.slice_devices[None, :])
    return Market((float(count),), offered, np.zeros((1, 3)), np.array(cost))


def test_the_price_of_a_gang_is_spread_over_the_nodes_that_are_missing() -> None:
    assert market(8, [1.0, 2.0, 8.0]).prices(missing=2).tolist() == [3.0, 4.0, 4.0]
    assert market(8, [1.0, 2.0, 8.0]).prices(missing=1).tolist() == [3.0, 8.0, 8.0]


def test_nodes_are_bought_the_cheapest_first_and_with_a_gang_all_that_it_frees() -> None:
    shop = market(8, [1.0, 2.0, 8.0])
    assert shop.buy(missing=3, most=3) == ([0, 1], 1)
    assert shop.buy(missing=2, most=1) == ([2], 2)


def test_nobody_is_ended_on_a_node_who_is_not_needed_there() -> None:
    assert market(4, [5.0, 2.0, 8.0]).buy(missing=1, most=3) == ([1], 1)


def test_nothing_is_bought_where_so_many_gangs_are_on_too_few_nodes() -> None:
    assert market(8, [1.0, 1.0, 1.0]).buy(missing=3, most=1) == ([], 0)


@settings(max_examples=examples(200), deadline=None)
@given(st.randoms(use_true_random=False))
def test_prices_of_crowded_nodes_and_of_others_are_what_gangs_one_by_one_cost(choosing: random.Random) -> None:
    """On one node some slices stand together, on most one stands alone; some are sold, then the rest has other prices."""
    num_nodes, num_gangs, count = 6, choosing.randint(1, 5), choosing.choice((2, 4, 8))
    slices = [
        (at, gang, choosing.choice((1, 2, 4, 8))) for gang in range(num_gangs) for at in range(num_nodes) if choosing.random() < 0.3
    ]
    gang, row, devices = (np.array([one[column] for one in slices], np.int64) for column in (1, 0, 2))
    free = np.array([float(choosing.randrange(count)) for _ in range(num_nodes)])
    cost = np.array([float(choosing.randint(1, 100)) for _ in range(num_gangs)])
    shop = Market((float(count),), Offered(gang, row, devices[None, :].astype(np.float64)), free[None, :].copy(), cost)
    for missing in range(num_nodes, 0, -1):
        expected = _prices(slices, free.tolist(), cost.tolist(), count, missing)
        found = dict(zip(shop.rows.tolist(), shop.prices(missing).tolist(), strict=True))
        assert all(np.isclose(found[at], price) for at, price in expected.items())
        assert all(np.isinf(price) for at, price in found.items() if at not in expected)
        sold, num_ready = shop.buy(missing, num_gangs)
        before = {at for at in range(num_nodes) if free[at] >= count}
        for at, whose, more in slices:
            free[at] += more if whose in sold else 0
        assert num_ready == len({at for at in range(num_nodes) if free[at] >= count} - before)
        slices = [one for one in slices if one[1] not in sold and free[one[0]] < count]


def _prices(slices: list[tuple[int, int, int]], free: list[float], cost: list[float], count: int, missing: int) -> dict[int, float]:
    """Of the nodes that can have room, one after the other."""
    found = {}
    sizes = [sum(whose == gang for _, whose, _ in slices) for gang in range(len(cost))]
    share = [price / min(max(1, size), missing) for price, size in zip(cost, sizes, strict=True)]
    for node in {at for at, _, _ in slices}:
        need, has, paid = count - free[node], free[node], 0.0
        here = [(share[whose] / min(need, more), whose, more) for at, whose, more in slices if at == node]
        for _, whose, more in sorted(here):
            has, paid = has + more, paid + share[whose]
            if has >= count:
                found[node] = paid
                break
    return found
