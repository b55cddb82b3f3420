"""From measured loads to a placement: groups to nodes, replicas, GPUs, shares, and which GPUs make a node."""

import numpy as np
from numpy.typing import ArrayLike

from phalanx.fabric.experts.groups import nodes_of_groups
from phalanx.fabric.experts.layout import Bools, ExpertLayout, ExpertPlacement, Floats, Ints, at, checked_loads, counted
from phalanx.fabric.experts.rows import Rows, ranked
from phalanx.fabric.experts.search import searched, swapped
from phalanx.fabric.experts.spread import spread


def balance(loads_LE: ArrayLike, layout: ExpertLayout, even_shares: bool = False) -> ExpertPlacement:
    """Where replicas of experts lie so that the largest GPU load of each layer is small, and least traffic leaves the nodes.

    loads_LE: measured tokens of each logical expert in each layer, [L, E]; only their ratios count. Deterministic: equal arguments
    give the same placement. Raises DataError for the loads, SpecError for the layout.

    The shares are a part of the plan: a dispatcher sends that part of an expert's tokens to each replica. even_shares: for one that
    sends each replica the same number; then an expert may lie on a GPU twice, and GPUs come less near to each other. In either case
    no layer's largest GPU load is above that of DeepSeek's published balancer where that can place the groups: as many to a node.
    """
    loads = checked_loads(loads_LE)
    layout.check(loads.shape[1])
    loads = np.ldexp(loads, -np.frexp(loads.max(1, keepdims=True))[1])  # at most 1, and no digit is rounded
    members = members_of(loads, layout)
    of_rows, exists = row_loads(loads, members)
    if even_shares:
        rows = swapped(of_rows, exists, gpus_of_row(layout), layout.slots_per_gpu)
    else:
        rows = searched(of_rows, exists, gpus_of_row(layout), layout.slots_per_gpu, len(loads))
    placement = placed(layout, rows, members, len(loads), even_shares)
    return placement if layout.num_groups or layout.num_nodes == 1 else spread(placement, loads)


def gpus_of_row(layout: ExpertLayout) -> int:
    return layout.gpus_per_node if layout.num_groups else layout.num_gpus


def members_of(loads: Floats, layout: ExpertLayout) -> Ints:
    """The experts of each row [P, E of a row], -1 at the end of those that have fewer: of each layer, or of each node of each."""
    layers, num_experts = loads.shape
    if not layout.num_groups:
        return np.tile(np.arange(num_experts), (layers, 1))
    size = num_experts // layout.num_groups
    of_groups = loads.reshape(layers, layout.num_groups, size).sum(-1)
    node, turn = nodes_of_groups(of_groups, layout.num_nodes), np.argsort(ranked(of_groups), axis=1)
    return grouped(np.repeat(node, size, axis=1), layout.num_nodes, np.repeat(turn, size, axis=1))


def grouped(node: Ints, num_nodes: int, turn: Ints) -> Ints:
    """The experts of each node from the node of each expert [L, E], in the order of their turns and numbers. Of experts whose
    replicas have equal loads the first one gets another replica, so the order is that of the published balancer."""
    layers = len(node)
    count = counted(node, num_nodes)
    members = np.full((layers, num_nodes, int(count.max())), -1)
    order = np.argsort(node * node.shape[1] + turn, axis=1, kind="stable")
    sorted_node = np.take_along_axis(node, order, 1)
    begin = np.cumsum(count, axis=1) - count
    place = np.arange(node.shape[1]) - np.take_along_axis(begin, sorted_node, 1)
    members[np.arange(layers)[:, None], sorted_node, place] = order
    return members.reshape(layers * num_nodes, -1)


def row_loads(loads: Floats, members: Ints) -> tuple[Floats, Bools]:
    """The loads of each row's experts, 0 of none, and which there are."""
    exists = members >= 0
    of_layer = np.repeat(loads, len(members) // len(loads), axis=0)
    return np.where(exists, at(of_layer, np.maximum(members, 0)), 0.0), exists


def placed(layout: ExpertLayout, rows: Rows, members: Ints, layers: int, even: bool) -> ExpertPlacement:
    """The rows as layers; slots of a GPU in the order of their experts."""
    count = at_float(rows.copies, rows.experts)
    load = at(rows.loads, rows.experts)
    measured = load > 0 if not even else np.zeros(load.shape, np.bool_)
    shares = np.where(measured, rows.tokens / np.where(measured, load, 1.0), 1.0 / count)
    experts = np.take_along_axis(members, rows.experts.reshape(len(members), -1), 1).reshape(layers, -1, layout.slots_per_gpu)
    order = np.argsort(experts, axis=2, kind="stable")
    shares = shares.reshape(experts.shape)
    return ExpertPlacement(layout, np.take_along_axis(experts, order, 2), np.take_along_axis(shares, order, 2))


def at_float(table: Ints, index: Ints) -> Floats:
    return at(table.astype(np.float64), index)
