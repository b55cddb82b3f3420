"""Which GPUs make a node, where experts lie anywhere: loads of GPUs stay as they are, and replicas of an expert get apart, since a
node that has one sends its own tokens for it nowhere."""

from dataclasses import replace

import numpy as np

from phalanx.fabric.experts.layout import ExpertPlacement, Floats, Ints, at, counted
from phalanx.fabric.experts.rows import ranked


def spread(placement: ExpertPlacement, loads: Floats) -> ExpertPlacement:
    """The same GPUs in another order. Those with most that could be served at home first, each to the node where it serves most."""
    layout = placement.layout
    order = _order(placement, loads, layout.num_nodes, layout.gpus_per_node)
    taken = order[:, :, None]
    experts, shares = np.take_along_axis(placement.experts_LGS, taken, 1), np.take_along_axis(placement.shares_LGS, taken, 1)
    return replace(placement, experts_LGS=experts, shares_LGS=shares)


def _order(placement: ExpertPlacement, loads: Floats, num_nodes: int, gpus_per_node: int) -> Ints:
    """The GPU that comes to each place, [L, G]."""
    experts, shares = placement.experts_LGS, placement.shares_LGS
    layers, num_gpus, _ = experts.shape
    row, home = np.arange(layers), 1 / num_nodes
    load = at(loads, experts)
    several = at(counted(experts.reshape(layers, -1), loads.shape[1]).astype(np.float64), experts) > 1
    turns = ranked((np.minimum(shares, home) * load * several).sum(-1))
    held, count = np.zeros((layers, num_nodes, loads.shape[1])), np.zeros((layers, num_nodes), np.int64)
    order = np.zeros((layers, num_gpus), np.int64)
    for gpu in turns.T:
        expert, share = experts[row, gpu], shares[row, gpu]
        there = held[row[:, None], :, expert].transpose(0, 2, 1)  # [L, nodes, S]
        gain = ((np.minimum(there + share[:, None, :], home) - np.minimum(there, home)) * load[row, gpu][:, None, :]).sum(-1)
        node = np.where(count < gpus_per_node, gain, -1.0).argmax(1)
        order[row, node * gpus_per_node + count[row, node]] = gpu
        held[row[:, None], node[:, None], expert] += share
        count[row, node] += 1
    return order
