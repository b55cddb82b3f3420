"""Where pods that want parts of GPUs go, so that what stays idle can still be used. Pure: NumPy over columns, one row a node.

A packer keeps a score for each kind of pod and node. A placement changes one node, so only that one is scored anew when a pod of
that kind comes next. Equal scores go to the node that is first by name, and on it to the GPU with the lowest index.

`BestFit` and `GradientDescent` are the published rules; ours is in `expected_idle`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.decide.scheduler.where.columns import (
    WHOLE_MILLI,
    Bools,
    Choices,
    Columns,
    Floats,
    Indices,
    Pod,
    Popular,
    Spot,
    States,
    after,
)

TYPICAL_SHARE: Final = 0.95
"""Of all pods seen so far: the most popular kinds that together cover it are the typical ones (FGD, ATC 2023)."""

BEST_FIT_CPU_MILLI: Final = 128_000
BEST_FIT_GPU_MILLI: Final = 8_000
"""Of the largest nodes of Alibaba's trace, as in the published evaluation of BestFit."""


class Scored(NamedTuple):
    """How good each of some nodes is for a pod, more is better; gpu: the first of its GPUs, -1 without."""

    score: Floats
    gpu: Indices


@dataclass(slots=True)
class _Scores:
    """Of one kind of pod. version: of each node when it was scored; -1 before."""

    version: npt.NDArray[np.int64]
    score: Floats
    gpu: Indices


class Packer(ABC):
    """Places pods one by one on the node with the best score."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._scores = dict[Pod, _Scores]()
        self._allowed = dict[Pod, Bools]()

    @abstractmethod
    def rate(self, pod: Pod, rows: Indices) -> Scored:
        """Of nodes that can take the pod, from these nodes alone."""

    def weigh(self, pod: Pod, score: Floats) -> Floats:
        """Scores of all nodes with what depends on the whole cluster, so is not kept."""
        return score

    def feasible(self, pod: Pod) -> Bools:
        """Which nodes can take the pod now."""
        return self.columns.free.hold(pod, self.allowed(pod))

    def score(self, pod: Pod) -> Floats:
        """Of every node, -inf where the pod does not fit."""
        return self.weigh(pod, self._scored(pod).score)

    def choose(self, pod: Pod, among: Bools | None = None) -> Spot | None:
        """The best place now, of the nodes that may be used; None when there is none. Takes nothing."""
        score = self.score(pod)
        if among is not None:
            score = np.where(among, score, -np.inf)
        row = int(np.argmax(score)) if len(score) else 0
        if not len(score) or score[row] == -np.inf:
            return None
        return Spot(row, self._gpus(pod, row, int(self._scored(pod).gpu[row])))

    def take(self, spot: Spot, pod: Pod) -> None:
        self.columns.take(spot, pod)

    def release(self, spot: Spot, pod: Pod) -> None:
        self.columns.release(spot, pod)

    @property
    def num_kept(self) -> int:
        """Numbers that are kept for kinds of pods, by node."""
        return len(self._scores) * len(self.columns)

    def forget(self) -> None:
        """Scores are found again when they are asked for."""
        self._scores.clear()

    def allowed(self, pod: Pod) -> Bools:
        """By model."""
        if pod not in self._allowed:
            self._allowed[pod] = self.columns.allows(pod)
        return self._allowed[pod]

    def _scored(self, pod: Pod) -> _Scores:
        """Up to date: only nodes that changed since are rated again."""
        kept = self._scores.get(pod)
        if kept is None:
            rows = len(self.columns)
            kept = self._scores[pod] = _Scores(np.full(rows, -1), np.full(rows, -np.inf), np.full(rows, -1, np.intp))
        changed = np.flatnonzero(kept.version != self.columns.version)
        if len(changed):
            kept.version[changed] = self.columns.version[changed]
            kept.score[changed] = -np.inf
            able = changed[self.columns.free.at(changed).hold(pod, self.allowed(pod))]
            if len(able):
                kept.score[able], kept.gpu[able] = self.rate(pod, able)
        return kept

    def _gpus(self, pod: Pod, row: int, first: int) -> tuple[int, ...]:
        """Several are whole ones, lowest index first."""
        if pod.num_gpu <= 1:
            return (first,) * pod.num_gpu
        free = np.flatnonzero(self.columns.free.gpu_milli[row] >= pod.gpu_milli)
        return tuple(int(gpu) for gpu in free[: pod.num_gpu])


def best_of(choices: Choices, score: Floats, count: int) -> tuple[Scored, Indices]:
    """For each of `count` nodes the choice with the best score, the first of equals; and which choice it is."""
    starts = np.searchsorted(choices.owner, np.arange(count))
    best = np.maximum.reduceat(score, starts)
    winners = np.flatnonzero(score == best[choices.owner])
    chosen = winners[np.searchsorted(choices.owner[winners], np.arange(count))]
    return Scored(best, choices.gpu[chosen]), chosen


class BestFit(Packer):
    """The fullest node: least free CPUs and GPUs, weighed alike, in whole points of 100. A share goes to the GPU with the least
    room for it."""

    def rate(self, pod: Pod, rows: Indices) -> Scored:
        states = self.columns.free.at(rows)
        cpu = (states.cpu_milli - pod.cpu_milli) / BEST_FIT_CPU_MILLI
        gpu = (states.gpu_milli.sum(axis=1) - pod.total_milli) / BEST_FIT_GPU_MILLI
        room = np.where(states.gpu_milli >= max(1, pod.gpu_milli), states.gpu_milli, WHOLE_MILLI + 1)
        tightest = room.argmin(axis=1) if room.shape[1] else np.full(len(rows), -1, np.intp)
        return Scored(np.floor((1.0 - (cpu + gpu) / 2) * 100), tightest)


class GradientDescent(Packer):
    """FGD (ATC 2023): where fragmentation grows least or shrinks most. A score is a whole number of points of 100, the sigmoid of
    the decrease in GPUs, rounded down, as in the authors' scheduler: many nodes tie, and the tie goes to the first name."""

    def __init__(self, columns: Columns, typical: Sequence[Popular]) -> None:
        super().__init__(columns)
        self._allows = np.array([columns.allows(pod) for pod, _ in typical], bool).reshape(len(typical), len(columns.models))
        self._cpu, self._num, self._milli = (
            np.array([getattr(pod, name) for pod, _ in typical], np.int32) for name in ("cpu_milli", "num_gpu", "gpu_milli")
        )
        self._count = np.array([count for _, count in typical], np.float64)

    def rate(self, pod: Pod, rows: Indices) -> Scored:
        states = self.columns.free.at(rows)
        choices = after(pod, states)
        shrinks = self.fragments_milli(states)[choices.owner] - self.fragments_milli(choices.states)
        points = np.floor(100 / (1 + np.exp(-shrinks / WHOLE_MILLI)))
        return best_of(choices, points, len(rows))[0]

    def fragments_milli(self, states: States) -> Floats:
        """Idle GPU-milli of each node that a typical pod is expected not to be able to use: all of it where the pod does not fit
        or wants no GPU, else what is on GPUs with less room than it wants. Memory is not looked at, as in the paper."""
        idle = states.gpu_milli.sum(axis=1, dtype=np.int32)[:, None]
        short = states.gpu_milli[:, None, :] < self._milli[:, None]
        roomy = short.shape[2] - short.sum(axis=2, dtype=np.int32)
        fits = (self._num > 0) & (roomy >= self._num) & (states.cpu_milli[:, None] >= self._cpu) & self._allows.T[states.model]
        lost = np.where(fits, np.where(short, states.gpu_milli[:, None, :], 0).sum(axis=2, dtype=np.int32), idle)
        # Whole numbers, so exact in any order: states that are worth the same must tie.
        return np.asarray(lost @ self._count / self._count.sum(), np.float64)
