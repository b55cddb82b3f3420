"""From measured loads to a placement: groups to nodes, replicas, GPUs, shares, and which GPUs make a node."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from phalanx.fabric.experts.groups import nodes_of_groups, swapped_groups
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
    if not layout.num_groups:
        everywhere = np.tile(np.arange(loads.shape[1]), (len(loads), 1))
        placement = _on_rows(loads, layout, everywhere, even_shares)
        return placement if layout.num_nodes == 1 else spread(placement, loads)
    first, other = splits(loads, layout)
    placement = _on_rows(loads, layout, first, even_shares)
    differ = np.flatnonzero((first != other).reshape(len(loads), -1).any(1))
    return _better(placement, loads, differ, other, even_shares) if len(differ) else placement


def _better(placement: ExpertPlacement, loads: Floats, layers: Ints, members: Ints, even: bool) -> ExpertPlacement:
    """With another split of the groups in those of these layers in which that has a smaller largest GPU load."""
    of_layers = members.reshape(len(loads), -1, members.shape[1])[layers].reshape(-1, members.shape[1])
    other = _on_rows(loads[layers], placement.layout, of_layers, even)
    lower = other.gpu_loads(loads[layers]).max(1) < placement.gpu_loads(loads).max(1)[layers]
    experts, shares = placement.experts_LGS.copy(), placement.shares_LGS.copy()
    experts[layers[lower]], shares[layers[lower]] = other.experts_LGS[lower], other.shares_LGS[lower]
    return replace(placement, experts_LGS=experts, shares_LGS=shares)


def _on_rows(loads: Floats, layout: ExpertLayout, members: Ints, even: bool) -> ExpertPlacement:
    """members: the experts of each row [P, E of a row], -1 at the end of those that have fewer."""
    of_rows, exists = row_loads(loads, members)
    if even:
        rows = swapped(of_rows, exists, gpus_of_row(layout), layout.slots_per_gpu)
    else:
        rows = searched(of_rows, exists, gpus_of_row(layout), layout.slots_per_gpu, len(loads))
    return placed(layout, rows, members, len(loads), even)


def gpus_of_row(layout: ExpertLayout) -> int:
    return layout.gpus_per_node if layout.num_groups else layout.num_gpus


def splits(loads: Floats, layout: ExpertLayout) -> tuple[Ints, Ints]:
    """The experts of each node of each layer [L x nodes, experts], -1 at the end of those that have fewer, by two splits of the
    groups: the published balancer's, and that after swaps of groups."""
    layers, num_experts = loads.shape
    size = num_experts // layout.num_groups
    of_groups = loads.reshape(layers, layout.num_groups, size).sum(-1)
    first, turn = nodes_of_groups(of_groups, layout.num_nodes), np.argsort(ranked(of_groups), axis=1)
    both = (first, swapped_groups(of_groups, first, layout.num_nodes))
    one, other = (grouped(np.repeat(node, size, axis=1), layout.num_nodes, np.repeat(turn, size, axis=1)) for node in both)
    return one, other


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
