"""What is free on nodes with CPUs, memory and GPUs that may be shared, in columns: one row a node. Pure.

The kinds of pods that want it, places for them, and nodes as they would be with a pod on them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.core.errors import Bug

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]

WHOLE_MILLI: Final = 1000


@dataclass(frozen=True, slots=True)
class Pod:
    """A kind of pod. gpu_milli: of each of its GPUs, less than 1000 only for one. models: the only ones it takes, empty for any."""

    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    models: frozenset[str] = frozenset()

    @property
    def total_milli(self) -> int:
        return self.num_gpu * self.gpu_milli


@dataclass(frozen=True, slots=True)
class Node:
    """A node with nothing on it."""

    name: str
    cpu_milli: int
    memory_mib: int
    num_gpu: int
    model: str


class Popular(NamedTuple):
    """A kind of pod and how many of it were seen."""

    pod: Pod
    seen: int


class Spot(NamedTuple):
    """A place for a pod: the node's row, and which of its GPUs."""

    node: int
    gpus: tuple[int, ...]


class States(NamedTuple):
    """Nodes as they are or might be. gpu_milli: nodes x GPUs, 0 where a node has fewer; model: index into `Columns.models`."""

    cpu_milli: Ints
    memory_mib: Ints
    gpu_milli: Ints
    model: Ints

    def at(self, rows: Indices) -> "States":
        """Copies of these rows."""
        return States(self.cpu_milli[rows], self.memory_mib[rows], self.gpu_milli[rows], self.model[rows])

    def hold(self, pod: Pod, allowed: Bools) -> Bools:
        """Which of the nodes can take the pod now; `allowed`: by model."""
        room = (self.cpu_milli >= pod.cpu_milli) & (self.memory_mib >= pod.memory_mib)
        if pod.num_gpu:
            room &= allowed[self.model] & (np.count_nonzero(self.gpu_milli >= pod.gpu_milli, axis=1) >= pod.num_gpu)
        return room


def popular(pods: Iterable[Pod], share: float = 1.0) -> tuple[Popular, ...]:
    """The kinds of pods, most popular first, until they cover `share` of all. Equally popular ones come in order of appearance."""
    counts = Counter(pods)
    enough, covered = share * counts.total(), 0
    kept = list[Popular]()
    for pod, count in counts.most_common():
        if covered >= enough:
            break
        kept.append(Popular(pod, count))
        covered += count
    return tuple(kept)


class Columns:
    """What is free, one row a node, by name. Numbers are below 2**31: two million cores, two pebibytes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        self.names = tuple(node.name for node in ordered)
        self.models = tuple(sorted({node.model for node in ordered}))
        width = max((node.num_gpu for node in ordered), default=0)
        gpus = [[WHOLE_MILLI] * node.num_gpu + [0] * (width - node.num_gpu) for node in ordered]
        self.free = States(
            np.array([node.cpu_milli for node in ordered], np.int32),
            np.array([node.memory_mib for node in ordered], np.int32),
            np.array(gpus, np.int32).reshape(len(ordered), width),
            np.array([self.models.index(node.model) for node in ordered], np.int32),
        )
        self.capacity = States(*(column.copy() for column in self.free))
        self.version = np.zeros(len(ordered), np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def allows(self, pod: Pod) -> Bools:
        """By model."""
        return np.array([not pod.models or model in pod.models for model in self.models], bool)

    def take(self, spot: Spot, pod: Pod) -> None:
        """Raises Bug when that much is not free there."""
        if len(set(spot.gpus)) != pod.num_gpu:
            raise Bug(f"{pod} wants {pod.num_gpu} GPUs and is given {spot.gpus}")
        self._change(spot, pod, -1)

    def release(self, spot: Spot, pod: Pod) -> None:
        """Raises Bug when that much was not taken there."""
        self._change(spot, pod, 1)

    def put(self, row: int, cpu_milli: int, memory_mib: int, gpu_milli: Sequence[int]) -> None:
        """So much is free on the node; what is beyond what it has is cut off."""
        free, whole = self.free, self.capacity
        cpu, memory = min(cpu_milli, int(whole.cpu_milli[row])), min(memory_mib, int(whole.memory_mib[row]))
        milli = np.array([*gpu_milli, *(0,) * (free.gpu_milli.shape[1] - len(gpu_milli))], np.int32)
        if (cpu, memory) == (free.cpu_milli[row], free.memory_mib[row]) and np.array_equal(milli, free.gpu_milli[row]):
            return
        free.cpu_milli[row], free.memory_mib[row], free.gpu_milli[row] = cpu, memory, milli
        self.version[row] += 1

    def _change(self, spot: Spot, pod: Pod, sign: int) -> None:
        free, whole, row, gpus = self.free, self.capacity, spot.node, list(spot.gpus)
        cpu = int(free.cpu_milli[row]) + sign * pod.cpu_milli
        memory = int(free.memory_mib[row]) + sign * pod.memory_mib
        milli = free.gpu_milli[row, gpus] + sign * pod.gpu_milli
        fits = 0 <= cpu <= whole.cpu_milli[row] and 0 <= memory <= whole.memory_mib[row]
        if not fits or np.any(milli < 0) or np.any(milli > whole.gpu_milli[row, gpus]):
            raise Bug(f"{self.names[row]} would have {cpu} CPU-milli, {memory} MiB and {milli} GPU-milli free")
        free.cpu_milli[row], free.memory_mib[row], free.gpu_milli[row, gpus] = cpu, memory, milli
        self.version[row] += 1


class Choices(NamedTuple):
    """Nodes as they would be after a pod, one for each GPU that makes a difference. owner: index into the rows asked for."""

    owner: Indices
    gpu: Indices
    states: States


def after(pod: Pod, states: States) -> Choices:
    """Every node of `states` with the pod on it; all of them can take it. A share may go to any GPU with room, of equally free
    ones the first; the choices of one node follow each other, lowest GPU first."""
    if pod.num_gpu == 1:
        owner, gpu = np.nonzero((states.gpu_milli >= pod.gpu_milli) & ~_twins(states.gpu_milli))
    else:
        owner = np.arange(len(states.cpu_milli))
        gpu = np.full(len(owner), -1, np.intp)
    then = states.at(owner)
    np.subtract(then.cpu_milli, pod.cpu_milli, out=then.cpu_milli)
    np.subtract(then.memory_mib, pod.memory_mib, out=then.memory_mib)
    if pod.num_gpu == 1:
        then.gpu_milli[np.arange(len(owner)), gpu] -= pod.gpu_milli
    elif pod.num_gpu:
        room = then.gpu_milli >= pod.gpu_milli
        then.gpu_milli[room & (np.cumsum(room, axis=1) <= pod.num_gpu)] -= pod.gpu_milli
    return Choices(owner, gpu, then)


def _twins(gpu_milli: Ints) -> Bools:
    """GPUs that are as free as one before them on their node."""
    twin = np.zeros(gpu_milli.shape, bool)
    for later in range(1, gpu_milli.shape[1]):
        twin[:, later] = np.any(gpu_milli[:, :later] == gpu_milli[:, later : later + 1], axis=1)
    return twin
