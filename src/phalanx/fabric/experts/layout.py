"""Where experts may lie, and where they lie: shapes, and the checks of what users give. Arrays end in their shape: L layers,
E logical experts, G GPUs over all nodes (node after node), S slots of a GPU."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phalanx.core.errors import DataError, SpecError
from phalanx.core.experts import SLOTS_MAX

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """The room for replicas of experts. Every GPU has the same number of slots, in every layer.

    num_nodes: machines, or other domains between which traffic is dear. gpus_per_node: GPUs of each. slots_per_gpu: replicas that
    each GPU holds of each layer. num_groups: the experts are that many groups of equal size, in their order, and all replicas of a
    group lie on one node (for routing that chooses groups first, as DeepSeek-V3's); 0: experts lie anywhere.
    """

    num_nodes: int
    gpus_per_node: int
    slots_per_gpu: int
    num_groups: int = 0

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def slots_per_node(self) -> int:
        return self.gpus_per_node * self.slots_per_gpu

    def check(self, num_experts: int) -> None:
        """Raises SpecError where so many experts cannot lie here."""
        sizes = {"num_nodes": self.num_nodes, "gpus_per_node": self.gpus_per_node, "slots_per_gpu": self.slots_per_gpu}
        for name, size in sizes.items():
            if size < 1:
                raise SpecError(name, size, "write 1 or more")
        total = self.num_gpus * self.slots_per_gpu
        if total > SLOTS_MAX:
            largest = max(sizes, key=sizes.__getitem__)
            fix = f"that makes {total:,} slots over all GPUs, and {SLOTS_MAX:,} are the most; write less"
            raise SpecError(largest, sizes[largest], fix)
        if self.num_groups < 0:
            raise SpecError("num_groups", self.num_groups, "write 0 for experts that lie anywhere, or the number of groups")
        if self.num_groups:
            self._check_groups(num_experts)
            return
        if total < num_experts:
            least = -(-num_experts // self.num_gpus)
            fix = f"{self.num_gpus} GPUs have {total} slots for {num_experts} experts; write {least} or more"
            raise SpecError("slots_per_gpu", self.slots_per_gpu, fix)
        self._check_distinct(num_experts, f"there are {num_experts} experts")

    def _check_groups(self, num_experts: int) -> None:
        if num_experts % self.num_groups:
            dividing = [count for count in range(1, num_experts + 1) if num_experts % count == 0]
            fix = f"{num_experts} experts are not that many groups of equal size; write one of {dividing}, or 0 for no groups"
            raise SpecError("num_groups", self.num_groups, fix)
        if self.num_groups < self.num_nodes:
            fix = f"{self.num_nodes} nodes need a group each; use at most {self.num_groups} nodes, or num_groups 0"
            raise SpecError("num_groups", self.num_groups, fix)
        size, most = num_experts // self.num_groups, -(-self.num_groups // self.num_nodes)
        if most * size > self.slots_per_node:
            at_least = -(-most * size // self.gpus_per_node)
            fix = f"a node gets {most} groups of {size} experts and has {self.slots_per_node} slots; write {at_least} or more"
            raise SpecError("slots_per_gpu", self.slots_per_gpu, fix)
        least = self.num_groups // self.num_nodes * size
        self._check_distinct(least, f"a node gets the {least} experts of its groups")

    def _check_distinct(self, num_experts: int, said: str) -> None:
        if self.slots_per_gpu > num_experts:
            fix = f"{said}, and a second replica on the same GPU is of no use; write {num_experts} or less"
            raise SpecError("slots_per_gpu", self.slots_per_gpu, fix)


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Which expert lies in each slot, and how much of its load it takes there.

    experts_LGS: int64, the logical expert in each slot; a GPU has an expert at most once, unless shares are even. shares_LGS:
    float64, the part of that expert's tokens that goes to this replica; the shares of an expert add up to 1 in each layer.
    """

    layout: ExpertLayout
    experts_LGS: Ints
    shares_LGS: Floats

    @property
    def num_layers(self) -> int:
        return len(self.experts_LGS)

    def gpu_loads(self, loads_LE: ArrayLike) -> Floats:
        """Tokens of each GPU, float64 [L, G], under loads in tokens [L, E]."""
        loads = self._loads(loads_LE)
        return np.asarray((self.shares_LGS * at(loads, self.experts_LGS)).sum(-1))

    def _loads(self, loads_LE: ArrayLike) -> Floats:
        """Raises DataError where these are not the loads of these layers and experts."""
        loads = checked_loads(loads_LE)
        num_experts = int(self.experts_LGS.max()) + 1  # each has a place
        if loads.shape != (self.num_layers, num_experts):
            fix = f"the placement is of {self.num_layers} layers x {num_experts} experts; give their loads"
            raise DataError("loads", loads.shape, fix)
        return loads

    def imbalance(self, loads_LE: ArrayLike) -> Floats:
        """The largest GPU load over the mean one, float64 [L]; 1 is even. A layer without load counts as even."""
        gpus = self.gpu_loads(loads_LE)
        mean = gpus.mean(-1)
        return np.where(mean > 0, gpus.max(-1) / np.where(mean > 0, mean, 1), 1.0)

    def replicas(self, num_experts: int) -> Ints:
        """How many replicas each expert has, int64 [L, E]."""
        return counted(self.experts_LGS.reshape(self.num_layers, -1), num_experts)

    def between_nodes(self, loads_LE: ArrayLike) -> Floats:
        """The part of all tokens that leaves its node, float64 [L], where every node sends as many tokens to each expert as the
        others, and a node's own replicas serve its own tokens first. A token that goes to two experts of one node counts twice."""
        loads = self._loads(loads_LE)
        by_node = node_shares(self.layout, self.experts_LGS, self.shares_LGS, loads.shape[1])
        own = (np.minimum(by_node, 1 / self.layout.num_nodes).sum(1) * loads).sum(-1)
        total = loads.sum(-1)
        return 1 - np.where(total > 0, own / np.where(total > 0, total, 1), 1.0)


def node_shares(layout: ExpertLayout, experts_LGS: Ints, shares_LGS: Floats, num_experts: int) -> Floats:
    """The part of each expert's tokens that each node takes, float64 [L, nodes, E]."""
    layers = len(experts_LGS)
    found = np.zeros((layers, layout.num_nodes, num_experts))
    of_node = experts_LGS.reshape(layers, layout.num_nodes, -1)
    place = (np.arange(layers)[:, None, None], np.arange(layout.num_nodes)[None, :, None], of_node)
    np.add.at(found, place, shares_LGS.reshape(of_node.shape))
    return found


def checked_loads(loads_LE: ArrayLike) -> Floats:
    """Raises DataError unless these are finite numbers of 0 or more, [L, E]. One layer may be given as [E]."""
    try:
        loads = np.atleast_2d(np.asarray(loads_LE, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise DataError("loads", None, f"are no table of numbers ({error}); give layers x experts") from error
    if loads.ndim != 2 or not loads.size:
        raise DataError("loads", loads.shape, "is no shape of layers x experts; give one row of experts for each layer")
    wrong = ~np.isfinite(loads) | (loads < 0)
    if wrong.any():
        layer, expert = map(int, np.argwhere(wrong)[0])
        raise DataError(f"loads[{layer}][{expert}]", float(loads[layer, expert]), "write a finite number of tokens, 0 or more")
    return loads


def at(table: NDArray[np.float64], index: Ints) -> Floats:
    """table [rows, E] at index [rows, ...], row by row."""
    return np.take_along_axis(table, index.reshape(len(index), -1), 1).reshape(index.shape)


def counted(experts: Ints, num_experts: int) -> Ints:
    """How often each expert occurs in each row, int64 [rows, E]."""
    rows = len(experts)
    keys = experts + np.arange(rows)[:, None] * num_experts
    return np.bincount(keys.ravel(), minlength=rows * num_experts).reshape(rows, num_experts).astype(np.int64)
