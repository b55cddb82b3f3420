"""What stays idle on a node that fixed streams of pods fill alone, until nothing fits any more. Pure and without chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from phalanx.decide.scheduler.where.columns import WHOLE_MILLI, Bools, Columns, Floats, Indices, Ints, Pod, Popular, States

SPREAD_ROUNDS: Final = 3

NOTHING: Final = Pod(2**31 - 1, 0, 0, 0)
"""Fits nowhere."""


class Streams(NamedTuple):
    """What fills a node, by its model: models x streams x length. num_whole: GPUs of a pod that wants several, else 0."""

    cpu_milli: Ints
    memory_mib: Ints
    gpu_milli: Ints
    num_whole: Ints


def gpus_by_model(columns: Columns) -> Floats:
    """How many GPUs there are of each model."""
    return np.bincount(columns.capacity.model, columns.capacity.gpu_milli.sum(axis=1), len(columns.models)) / WHOLE_MILLI


def arrivals(columns: Columns, mix: Sequence[Popular]) -> Floats:
    """How often each kind of pod comes to a node of a model, by GPU: kinds x models. Pods that have a choice of models go where
    less is asked for, found in a few rounds; pods without GPUs come everywhere alike."""
    gpus = gpus_by_model(columns)
    asked = np.array([pod.total_milli * count for pod, count in mix], np.float64)
    part = np.array([columns.allows(pod) * gpus for pod, _ in mix], np.float64).reshape(len(mix), len(gpus))
    there = np.maximum(1.0, gpus)
    for turn in range(SPREAD_ROUNDS + 1):
        if turn:
            part /= np.maximum(1e-12, asked @ part / there)
        part /= np.maximum(1e-12, part.sum(axis=1, keepdims=True))
    part[asked == 0] = gpus / max(1.0, gpus.sum())
    return np.asarray(part * np.array([count for _, count in mix])[:, None] / there, np.float64)


def even_draws(num_streams: int, length: int, seed: int) -> Floats:
    """Numbers from 0 to 1, streams x length: at each position one in every 1/num_streams, in an order of its own. From the raw bits
    of a PCG64, which are the same in every version of NumPy."""
    bits = np.random.PCG64(seed).random_raw((2, num_streams, length))
    rank = bits[0].argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")
    return np.asarray((rank + (bits[1] >> np.uint64(11)) * 2.0**-53) / num_streams, np.float64)


def streams(columns: Columns, mix: Sequence[Popular], draws: Floats) -> Streams:
    """The same draws for every model, each turned into pods by what comes there; where nothing does, pods that fit nowhere."""
    kinds = np.full((len(columns.models), *draws.shape), len(mix), np.intp)
    for model, often in enumerate(arrivals(columns, mix).T):
        upto = np.cumsum(often)
        if often.any():
            kinds[model] = np.minimum(np.searchsorted(upto, draws * upto[-1], side="right"), len(mix) - 1)
    known = [*(pod for pod, _ in mix), NOTHING]
    cpu, memory, milli, num = (
        np.array([getattr(pod, name) for pod in known], np.int32) for name in ("cpu_milli", "memory_mib", "gpu_milli", "num_gpu")
    )
    return Streams(cpu[kinds], memory[kinds], milli[kinds], np.where(num > 1, num, 0).astype(np.int32)[kinds])


@dataclass(slots=True)
class _Filling:
    """Nodes being filled, one row for each of them and each stream. may: pods of the stream that still fit, by position."""

    row: Indices
    cpu_milli: Ints
    memory_mib: Ints
    gpu_milli: Ints
    stream: Streams
    may: Bools

    def keep(self, rows: Bools) -> "_Filling":
        stream = Streams(*(column[rows] for column in self.stream))
        free = (self.cpu_milli[rows], self.memory_mib[rows], self.gpu_milli[rows])
        return _Filling(self.row[rows], *free, stream, self.may[rows])

    def narrow(self) -> None:
        """Resources only shrink, so what does not fit now never will."""
        stream, may = self.stream, self.may
        may &= stream.cpu_milli <= self.cpu_milli[:, None]
        may &= stream.gpu_milli <= self.gpu_milli.max(axis=1)[:, None]
        may &= stream.memory_mib <= self.memory_mib[:, None]
        if stream.num_whole.any():
            may &= stream.num_whole <= np.count_nonzero(self.gpu_milli == WHOLE_MILLI, axis=1)[:, None]

    def place(self, at: Indices) -> None:
        """The pod at that position of each row's stream; a share on the GPU with the least room for it."""
        rows = np.arange(len(at))
        self.may[rows, at] = False
        cpu, memory, milli, whole = (column[rows, at] for column in self.stream)
        self.cpu_milli -= cpu
        self.memory_mib -= memory
        room = np.where(self.gpu_milli >= milli[:, None], self.gpu_milli, WHOLE_MILLI + 1)
        self.gpu_milli[rows, room.argmin(axis=1)] -= milli
        for row in np.flatnonzero(whole):
            free = np.flatnonzero(self.gpu_milli[row] == WHOLE_MILLI)
            self.gpu_milli[row, free[: whole[row] - 1]] = 0


def idle_after(states: States, by_model: Streams) -> Floats:
    """GPU-milli that are left idle on each node, averaged over the streams that fill it alone."""
    num_streams = by_model.cpu_milli.shape[1]
    if not states.gpu_milli.size:
        return np.zeros(len(states.cpu_milli))
    owner = np.repeat(np.arange(len(states.cpu_milli)), num_streams)
    which = np.tile(np.arange(num_streams), len(states.cpu_milli))
    start, models = states.at(owner), states.model[owner]
    stream = Streams(*(column[models, which] for column in by_model))
    left = np.zeros(len(owner), np.int64)
    filling = _Filling(
        np.arange(len(owner)), start.cpu_milli, start.memory_mib, start.gpu_milli, stream, np.ones(stream.cpu_milli.shape, bool)
    )
    while len(filling.row):
        filling.narrow()
        at = filling.may.argmax(axis=1)
        goes_on = filling.may[np.arange(len(at)), at] & (filling.gpu_milli.max(axis=1) > 0)
        if not goes_on.all():
            left[filling.row[~goes_on]] = filling.gpu_milli[~goes_on].sum(axis=1)
            filling, at = filling.keep(goes_on), at[goes_on]
        filling.place(at)
    return np.asarray(left.reshape(-1, num_streams).mean(axis=1), np.float64)
