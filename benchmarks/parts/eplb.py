"""DeepSeek's published expert load balancer, written anew from its description: the peer of benchmarks/expert_balance.py.

Experts are replicated one replica at a time, each for the expert with the largest load a replica. Replicas are packed to GPUs the
heaviest first, each to the GPU with the least load that still has room. Where the nodes divide the groups, groups are first packed
to nodes in the same way, and each node replicates and packs its own experts (hierarchical); otherwise nodes and groups do not count
(global). A replica takes an equal part of its expert's load. https://github.com/deepseek-ai/EPLB
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]


def placed(loads: Table, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int) -> NDArray[np.int64]:
    """The expert in each slot [L, GPUs, slots of a GPU], for loads [L, E]."""
    nodes, groups = (num_nodes, num_groups) if num_groups % num_nodes == 0 else (1, 1)
    return np.array([_layer(layer, num_replicas // nodes, groups, nodes, num_gpus // nodes) for layer in loads])


def imbalance(loads: Table, experts: NDArray[np.int64]) -> Table:
    """The largest GPU load over the mean one, [L]."""
    found = []
    for layer, gpus in zip(loads, experts, strict=True):
        part = layer / np.maximum(np.bincount(gpus.ravel(), minlength=len(layer)), 1)
        found.append(part[gpus].sum(1).max() / (layer.sum() / len(gpus)))
    return np.array(found)


def _layer(loads: Table, slots_of_node: int, groups: int, nodes: int, gpus_of_node: int) -> list[list[int]]:
    size = len(loads) // groups
    found = list[list[int]]()
    for held in packed(loads.reshape(groups, size).sum(1).tolist(), nodes):
        experts = [group * size + place for group in held for place in range(size)]
        replicas = replicated([float(loads[expert]) for expert in experts], slots_of_node)
        part = [float(loads[experts[one]]) / replicas.count(one) for one in replicas]
        found += [[experts[replicas[index]] for index in pack] for pack in packed(part, gpus_of_node)]
    return found


def replicated(loads: Sequence[float], slots: int) -> list[int]:
    """The expert of each replica: all once, then those that were added."""
    found = list(range(len(loads)))
    heaviest = [(-load, expert, 1) for expert, load in enumerate(loads)]
    heapq.heapify(heaviest)
    while len(found) < slots:
        _, expert, count = heaviest[0]
        found.append(expert)
        heapq.heapreplace(heaviest, (-loads[expert] / (count + 1), expert, count + 1))
    return found


def packed(loads: Sequence[float], packs: int) -> list[list[int]]:
    """As many for each pack."""
    most = len(loads) // packs
    found, filled = [list[int]() for _ in range(packs)], [0.0] * packs
    for index in sorted(range(len(loads)), key=lambda one: -loads[one]):
        pack = min((pack for pack in range(packs) if len(found[pack]) < most), key=filled.__getitem__)
        found[pack].append(index)
        filled[pack] += loads[index]
    return found
