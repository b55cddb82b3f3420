"""Groups of experts to nodes: as many for each node, or one more; the heaviest group first to the node with the least load."""

import numpy as np

from phalanx.fabric.experts.layout import Floats, Ints
from phalanx.fabric.experts.rows import ranked


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
