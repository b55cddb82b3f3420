"""What gangs let go of when they end, what of it is promised already, and what nodes cost that are bought of it."""

from dataclasses import replace

import numpy as np

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.room.buying import Market
from phalanx.decide.scheduler.room.freed import Freed
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.where.fleet import Fleet
from tests.decide.scheduler.sharing import facts, gang, world

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


def market(count: int, num_nodes: int, cost: list[float]) -> Market:
    columns = Freed(SNAPSHOT, FLEET, GANGS, np.zeros(3, np.bool_)).columns("H100")
    has = np.zeros(3), np.zeros(3), np.zeros(3)
    return Market(facts("j-9", count=count, num_nodes=num_nodes).shape, columns, np.arange(4), has, np.array(cost))


def test_the_price_of_a_gang_is_spread_over_the_nodes_that_are_missing() -> None:
    assert market(8, 2, [1.0, 2.0, 8.0]).prices(missing=2).tolist() == [3.0, 4.0, 4.0]
    assert market(8, 1, [1.0, 2.0, 8.0]).prices(missing=1).tolist() == [3.0, 8.0, 8.0]


def test_nodes_are_bought_the_cheapest_first_and_with_a_gang_all_that_it_frees() -> None:
    shop = market(8, 3, [1.0, 2.0, 8.0])
    assert shop.buy(missing=3, most=3) == ([0, 1], 1)
    assert shop.buy(missing=2, most=1) == ([2], 2)


def test_nobody_is_ended_on_a_node_who_is_not_needed_there() -> None:
    assert market(4, 1, [5.0, 2.0, 8.0]).buy(missing=1, most=3) == ([1], 1)


def test_nothing_is_bought_where_so_many_gangs_are_on_too_few_nodes() -> None:
    assert market(8, 3, [1.0, 1.0, 1.0]).buy(missing=3, most=1) == ([], 0)
