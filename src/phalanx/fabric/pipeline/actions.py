"""The order in which each rank of a schedule passes its stages: written down from the papers, without a clock.

A unit is one action, or a forward and a backward pass of different microbatches that DualPipe runs as one.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from phalanx.fabric.pipeline.layout import PipelineLayout, num_rounds


class Kind(StrEnum):
    """F: forward. B: the whole backward. I and W: its two halves, the gradient of the stage's input, and of its weights."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Action(NamedTuple):
    """One pass of one microbatch through one stage, both counted from 0."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Unit = tuple[Action, ...]
Order = tuple[Unit, ...]


def orders(layout: PipelineLayout) -> tuple[Order, ...]:
    """What each rank does, in order. Raises SpecError for a layout that cannot be."""
    layout.check()
    return tuple(tuple(_ORDER_OF[layout.schedule](layout, rank)) for rank in range(layout.num_ranks))


def flat(order: Order) -> tuple[Action, ...]:
    """Without what belongs together."""
    return tuple(chain.from_iterable(order))


def _gpipe(layout: PipelineLayout, rank: int) -> Iterator[Unit]:
    """GPipe (arXiv:1811.06965): all forwards, then all backwards."""
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        for microbatch in range(layout.num_microbatches):
            yield (Action(kind, rank, microbatch),)


def _one_forward_one_backward(layout: PipelineLayout, rank: int) -> Iterator[Unit]:
    """PipeDream-Flush (arXiv:2006.09503), known as 1F1B: a rank begins with as many forwards as there are ranks after it."""
    ahead = layout.num_ranks - 1 - rank
    for turn in range(layout.num_microbatches + ahead):
        if turn < layout.num_microbatches:
            yield (Action(Kind.FORWARD, rank, turn),)
        if turn >= ahead:
            yield (Action(Kind.BACKWARD, rank, turn - ahead),)


def _breadth_first(layout: PipelineLayout, rank: int) -> Iterator[Unit]:
    """Breadth-first pipelines (arXiv:2211.05953): all microbatches through one stage, then the next; back in reverse."""
    stages = layout.stages_of(rank)
    for stage in stages:
        for microbatch in range(layout.num_microbatches):
            yield (Action(Kind.FORWARD, stage, microbatch),)
    for stage in reversed(stages):
        for microbatch in reversed(range(layout.num_microbatches)):
            yield (Action(Kind.BACKWARD, stage, microbatch),)


class _Turns:
    """Passes of a looped schedule, a round of microbatches through each stage in turn."""

    def __init__(self, layout: PipelineLayout, rank: int) -> None:
        self._in_round = layout.num_microbatches // num_rounds(layout.num_microbatches, layout.num_ranks)
        self._stages = layout.stages_of(rank)
        self.num = layout.num_microbatches * len(self._stages)
        self.num_first = (len(self._stages) - 1) * self._in_round
        """Forwards until a microbatch comes to the last stage of this rank."""

    def forward(self, turn: int) -> Unit:
        return (self._at(Kind.FORWARD, self._stages, turn),)

    def backward(self, kind: Kind, turn: int) -> Unit:
        return (self._at(kind, self._stages[::-1], turn),)

    def _at(self, kind: Kind, stages: tuple[int, ...], turn: int) -> Action:
        whole_rounds, within = divmod(turn, self._in_round * len(stages))
        which, number = divmod(within, self._in_round)
        return Action(kind, stages[which], whole_rounds * self._in_round + number)


def _interleaved(layout: PipelineLayout, rank: int) -> Iterator[Unit]:
    """Interleaved 1F1B (arXiv:2104.04473, section 2.2), with rounds as Llama 3 has them (arXiv:2407.21783, section 3.3.2)."""
    turns = _Turns(layout, rank)
    ahead = min(turns.num, turns.num_first + 2 * (layout.num_ranks - 1 - rank))
    for turn in range(turns.num + ahead):
        if turn < turns.num:
            yield turns.forward(turn)
        if turn >= ahead:
            yield turns.backward(Kind.BACKWARD, turn - ahead)


def _zero_bubble(layout: PipelineLayout, rank: int) -> Iterator[Unit]:
    """ZB-H1 (arXiv:2401.10241, section 2), which DeepSeek names ZB1P: a weight pass is put off for as many turns as there are
    ranks before, so that the end of the step has some to fill it. Of several stages a rank the same, as in interleaved 1F1B."""
    turns = _Turns(layout, rank)
    ahead = min(turns.num, turns.num_first + layout.num_ranks - 1 - rank)
    for turn in range(turns.num + ahead):
        if turn < turns.num:
            yield turns.forward(turn)
        if turn >= ahead:
            yield turns.backward(Kind.INPUT, turn - ahead)
            if turn - ahead >= rank:
                yield turns.backward(Kind.WEIGHT, turn - ahead - rank)
    for turn in range(max(0, turns.num - rank), turns.num):
        yield turns.backward(Kind.WEIGHT, turn)


class _Counted:
    """Actions of a rank's stages, each kind's microbatches in their order."""

    def __init__(self, down: int, up: int) -> None:
        self.down, self.up = down, up
        self.done: Counter[tuple[Kind, int]] = Counter()
        self.owed: deque[tuple[int, int]] = deque()

    def take(self, kind: Kind, stage: int) -> Action:
        """The next microbatch's. A whole backward counts as its first half."""
        key = (Kind.INPUT if kind is Kind.BACKWARD else kind, stage)
        action = Action(kind, stage, self.done[key])
        self.done[key] += 1
        if kind is Kind.INPUT:
            self.owed.append((stage, action.microbatch))
        return action

    def one(self, kind: Kind, stage: int) -> Unit:
        return (self.take(kind, stage),)

    def pair(self, there: int, back: int) -> Unit:
        """A forward through the one stage, and a backward through the other."""
        return self.take(Kind.FORWARD, there), self.take(Kind.BACKWARD, back)

    def take_owed(self) -> Iterator[Unit]:
        """The weight pass that was put off longest, if any."""
        if self.owed:
            yield (Action(Kind.WEIGHT, *self.owed.popleft()),)


def _zbv(layout: PipelineLayout, rank: int) -> Iterator[Unit]:
    """ZB-V (arXiv:2401.10241, section 6). Fewer microbatches than fill it are a full one without the others' actions."""
    full = max(layout.num_microbatches, 2 * layout.num_ranks - 1)
    for action in _full_zbv(full, layout.num_ranks, rank, *layout.stages_of(rank)):
        if action.microbatch < layout.num_microbatches:
            yield (action,)


def _full_zbv(num_microbatches: int, num_ranks: int, rank: int, down: int, up: int) -> Iterator[Action]:
    counted, after = _Counted(down, up), num_ranks - rank
    forwards = [down] * (2 * after - 1) + [up, down] * rank
    yield from (counted.take(Kind.FORWARD, stage) for stage in forwards)

    def passes(stage: int, kinds: str) -> Iterator[Action]:
        return (counted.take(Kind(kind), stage) for kind in kinds)

    for _ in range(after):
        yield from passes(up, "FIW")
    while counted.done[Kind.FORWARD, up] < num_microbatches:
        yield from passes(down, "FIW" if counted.done[Kind.FORWARD, down] < num_microbatches else "IW")
        yield from passes(up, "FIW")
    for _ in range(rank):
        yield from passes(down, "I")
        yield from passes(up, "I")
    for _ in range(after):
        yield from passes(down, "IW")
    for stage in (up, down):
        while counted.done[Kind.WEIGHT, stage] < num_microbatches:
            yield from passes(stage, "W")


def _dual_pipe_v(layout: PipelineLayout, rank: int) -> Iterator[Unit]:
    """DualPipeV: DeepSeek's DualPipe (arXiv:2412.19437, section 3.2.1) cut in half, as they published it with its eight parts
    (github.com/deepseek-ai/DualPipe)."""
    down, up = layout.stages_of(rank)
    counted, after = _Counted(down, up), layout.num_ranks - 1 - rank
    for stage in [down] * (2 * after) + [down, up] * (rank + 1):
        yield counted.one(Kind.FORWARD, stage)
    for _ in range(after):
        yield counted.one(Kind.INPUT, up)
        yield from counted.take_owed()
        yield counted.one(Kind.FORWARD, up)
    for turn in range(layout.num_microbatches - layout.num_stages + rank + 1):
        if turn == 0 and after == 0:  # apart, since the first half of the pair is what the second waits for
            yield counted.one(Kind.FORWARD, down)
            yield counted.one(Kind.BACKWARD, up)
        else:
            yield counted.pair(down, up)
        yield counted.pair(up, down)
    for _ in range(after):
        yield counted.one(Kind.BACKWARD, up)
        yield counted.pair(up, down)
    yield from _dual_pipe_v_end(counted, rank, after)


def _dual_pipe_v_end(counted: _Counted, rank: int, after: int) -> Iterator[Unit]:
    """No forwards are left. From the middle on weight passes are put off, and then made where the rank would wait."""
    lasts = [counted.up, counted.down] * (rank + 1)
    for number, stage in enumerate(lasts):
        yield counted.one(Kind.BACKWARD if number <= rank else Kind.INPUT, stage)
    for _ in range(after):
        yield from counted.take_owed()
        yield counted.one(Kind.INPUT, counted.down)
    for _ in range(rank + 1):
        yield from counted.take_owed()


_ORDER_OF: dict[str, Callable[[PipelineLayout, int], Iterator[Unit]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "bfs": _breadth_first,
    "interleaved": _interleaved,
    "zb1p": _zero_bubble,
    "zbv": _zbv,
    "dualpipev": _dual_pipe_v,
}
