"""Groups of experts to nodes: as many for each node, or one more; the heaviest group first to the node with the least load, and
then by swaps of two."""

import numpy as np

from phalanx.fabric.experts.layout import Floats, Ints
from phalanx.fabric.experts.rows import LEAST, ranked


def nodes_of_groups(loads: Floats, num_nodes: int) -> Ints:
    """The node of each group, [L, groups], from the loads of the groups. Ties go to the group and node with the smaller index."""
    layers, num_groups = loads.shape
    node = np.zeros((layers, num_groups), np.int64)
    load, held = np.zeros((layers, num_nodes)), np.zeros((layers, num_nodes), np.int64)
    each, more = divmod(num_groups, num_nodes)
    row = np.arange(layers)
    for group in ranked(loads).T:
        extra_left = (held > each).sum(1) < more
        room = (held < each) | ((held == each) & extra_left[:, None])
        chosen = np.where(room, load, np.inf).argmin(1)
        node[row, group] = chosen
        load[row, chosen] += loads[row, group]
        held[row, chosen] += 1
    return node


def swapped_groups(loads: Floats, node: Ints, num_nodes: int) -> Ints:
    """The node of each group [L, groups] after the best swap of a group of the heaviest node with one of another node, again and
    again, as long as that lowers the larger load of the two."""
    node, row = node.copy(), np.arange(len(loads))
    less = loads[:, :, None] - loads[:, None, :]
    for _ in range(4 * loads.shape[1]):
        on_node = node[:, :, None] == np.arange(num_nodes)
        load = (loads[:, :, None] * on_node).sum(1)
        heavy = load.argmax(1)
        top, other = load[row, heavy], np.take_along_axis(load, node, 1)
        here = node == heavy[:, None]
        gain = np.minimum(less, (top[:, None] - other)[:, None, :] - less)
        gain = np.where(here[:, :, None] & ~here[:, None, :], gain, -1.0).reshape(len(loads), -1)
        best = gain.argmax(1)
        act = np.flatnonzero(gain[row, best] > LEAST * top)
        if not len(act):
            break
        mine, theirs = np.divmod(best[act], loads.shape[1])
        node[act, mine], node[act, theirs] = node[act, theirs], node[act, mine]
    return node
