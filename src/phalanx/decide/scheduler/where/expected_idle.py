"""Our packer: a placement is as good as what it lets the cluster use later. Pure and without chance: the streams are fixed.

FGD asks which of the typical pods cannot use a node's idle GPUs now. Here a node is worth what would stay idle on it if pods came
until nothing fits any more: each of a few fixed streams, drawn from the pods that the cluster knows, fills the node alone, and what
is left is averaged. So the 190 milli beside a pod of 810 count once, whole GPUs without CPUs count in full, and pods that go well
together are put together.

Three things about the whole cluster are added. Pods that may go anywhere keep off models that others must have (`prices`). A stream
that fills a node of one model has the pods that would go there (`filling.arrivals`). Nodes that could take a whole gang are not
broken up when about as many such gangs are to come as nodes are left for them (`Gangs`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from phalanx.decide.scheduler.where.columns import WHOLE_MILLI, Bools, Columns, Floats, Indices, Pod, Popular, States, after
from phalanx.decide.scheduler.where.filling import even_draws, gpus_by_model, idle_after, streams
from phalanx.decide.scheduler.where.fragmentation import Packer, Scored, best_of

NUM_STREAMS: Final = 32
STREAM_LENGTH: Final = 64
"""More or longer ones change allocation on Alibaba's trace by 0.1 % or so, and cost time in proportion."""

STREAM_SEED: Final = 2023

PRICE_MILLI: Final = 500
"""What a GPU of a model costs a pod that could go elsewhere, when all of the model's demand can go nowhere else. Less of it (400)
turns away more pods of 810 milli than FGD does on Alibaba's mix with bound pods; more allocates less once the cluster is full."""

HORIZON: Final = 0.25
"""Of the cluster's capacity: gangs are expected for at least this much more of requests, also when it is nearly full."""

KNOWN_MAX: Final = 400_000
"""Values of states that are remembered, of about 150 bytes each."""

FILLED_AT_ONCE: Final = 128


class Gangs:
    """Pods of several GPUs, and how many nodes could take each now."""

    def __init__(self, columns: Columns, mix: Sequence[Popular]) -> None:
        self._columns = columns
        kinds = [(pod, count) for pod, count in mix if pod.num_gpu > 1]
        self._allowed = np.array([columns.allows(pod) for pod, _ in kinds], bool).reshape(len(kinds), len(columns.models)).T
        self._cpu, self._memory, self._num = (
            np.array([getattr(pod, name) for pod, _ in kinds], np.int32) for name in ("cpu_milli", "memory_mib", "num_gpu")
        )
        asked = sum(pod.total_milli * count for pod, count in mix)
        self._per_milli = np.array([count / max(1, asked) for _, count in kinds])
        self._capacity_milli = int(columns.capacity.gpu_milli.sum())
        self._able = self.able(columns.free)
        self._num_able = self._able.sum(axis=0)
        self._version = columns.version.copy()

    def __len__(self) -> int:
        return len(self._num)

    def able(self, states: States) -> Bools:
        """Which nodes can take which gang: nodes x gangs."""
        whole = np.count_nonzero(states.gpu_milli == WHOLE_MILLI, axis=1)[:, None]
        room = (states.cpu_milli[:, None] >= self._cpu) & (states.memory_mib[:, None] >= self._memory)
        return np.asarray(room & (whole >= self._num) & self._allowed[states.model], bool)

    def lost(self, rows: Indices, then: States) -> Bools:
        """Gangs that these nodes could take now, and no more in the states that they would be in."""
        self._look()
        return self._able[rows] & ~self.able(then)

    def scarcity(self) -> Floats:
        """Gangs expected for each node that could take one: until the cluster is full, and a while beyond."""
        self._look()
        to_come_milli = max(int(self._columns.free.gpu_milli.sum()), HORIZON * self._capacity_milli)
        return np.asarray(self._per_milli * to_come_milli / np.maximum(1, self._num_able), np.float64)

    def _look(self) -> None:
        """At nodes that changed since."""
        changed = np.flatnonzero(self._version != self._columns.version)
        if len(changed):
            now = self.able(self._columns.free.at(changed))
            self._num_able += now.sum(axis=0) - self._able[changed].sum(axis=0)
            self._able[changed], self._version[changed] = now, self._columns.version[changed]


def prices(columns: Columns, mix: Sequence[Popular]) -> Floats:
    """GPU-milli that a GPU of each model costs a pod: in proportion to the part of the model's demand that may not go to every
    model. Where every pod may go everywhere, nothing."""
    gpus = gpus_by_model(columns)
    everything, bound = np.zeros(len(gpus)), np.zeros(len(gpus))
    for pod, count in mix:
        allowed = columns.allows(pod) & (gpus > 0)
        asked = allowed * (pod.total_milli * count / max(1.0, gpus[allowed].sum()))
        everything += asked
        bound += 0 if allowed[gpus > 0].all() else asked
    return np.asarray(PRICE_MILLI * bound / np.maximum(1e-12, everything), np.float64)


class ExpectedIdle(Packer):
    """Where a pod adds least to what is expected to stay idle in the end. mix: pods of the past, with how many of each there were;
    draws: of the fixed streams, streams x length, from 0 to 1."""

    def __init__(self, columns: Columns, mix: Sequence[Popular], draws: Floats | None = None) -> None:
        super().__init__(columns)
        fixed = even_draws(NUM_STREAMS, STREAM_LENGTH, STREAM_SEED) if draws is None else draws
        self._streams = streams(columns, mix, fixed)
        self._prices = prices(columns, mix)
        self._gangs = Gangs(columns, mix)
        self._known = dict[bytes, float]()
        self._lost = dict[Pod, npt.NDArray[np.float32]]()
        self._value = np.zeros(len(columns))
        self._valued = np.full(len(columns), -1)
        self._empty_value = self.idle_milli(columns.capacity)

    def rate(self, pod: Pod, rows: Indices) -> Scored:
        states = self.columns.free.at(rows)
        choices = after(pod, states)
        gains = self._now(rows)[choices.owner] - self.idle_milli(choices.states)
        costs = self._prices[choices.states.model] * (pod.total_milli / WHOLE_MILLI)
        scored, chosen = best_of(choices, gains - costs, len(rows))
        if len(self._gangs):
            lost = self._lost.setdefault(pod, np.zeros((len(self.columns), len(self._gangs)), np.float32))
            lost[rows] = self._gangs.lost(rows, choices.states.at(chosen))
        return scored

    def weigh(self, pod: Pod, score: Floats) -> Floats:
        """Less what it costs to break up nodes that gangs will want: nothing much while there are many more of those nodes than
        gangs to come (hence the square), and in the end all that a node would gain by being filled at once."""
        if pod not in self._lost:
            return score
        wanted = np.minimum(1.0, self._lost[pod] @ self._gangs.scarcity().astype(np.float32))
        return np.asarray(score - self._empty_value * wanted**2, np.float64)

    @property
    def num_kept(self) -> int:
        return super().num_kept * (1 + len(self._gangs))

    def forget(self) -> None:
        super().forget()
        self._lost.clear()

    def idle_milli(self, states: States) -> Floats:
        """What is expected to stay idle on each node in the end."""
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        keys = _keys(states)
        fresh = {key: row for row, key in enumerate(keys) if key not in self._known}
        unknown = np.fromiter(fresh.values(), np.intp, len(fresh))
        values = [idle_after(states.at(part), self._streams) for part in _parts(unknown, FILLED_AT_ONCE)]
        if values:
            self._known.update(zip(fresh, np.concatenate(values).tolist(), strict=True))
        return np.array([self._known[key] for key in keys], np.float64)

    def _now(self, rows: Indices) -> Floats:
        """Values of nodes as they are."""
        stale = rows[self._valued[rows] != self.columns.version[rows]]
        if len(stale):
            self._value[stale] = self.idle_milli(self.columns.free.at(stale))
            self._valued[stale] = self.columns.version[stale]
        return self._value[rows]


def _keys(states: States) -> list[bytes]:
    """Equal for nodes that differ only in the order of their GPUs."""
    columns = (states.cpu_milli[:, None], states.memory_mib[:, None], states.model[:, None], np.sort(states.gpu_milli, axis=1))
    table = np.hstack(columns)
    width = table.shape[1] * table.itemsize
    raw = table.tobytes()
    return [raw[start : start + width] for start in range(0, len(raw), width)]


def _parts(rows: Indices, most: int) -> list[Indices]:
    return [rows[start : start + most] for start in range(0, len(rows), most)]
