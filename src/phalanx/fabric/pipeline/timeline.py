"""When each rank does what, by the costs of its passes alone; and what that leaves idle.

Times are in whatever unit the costs have; whole numbers stay exact.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.core.errors import Bug, SpecError
from phalanx.fabric.pipeline.actions import Action, Kind, Order, Unit, orders
from phalanx.fabric.pipeline.layout import PipelineLayout


@dataclass(frozen=True, slots=True)
class PassCost:
    """Of one microbatch through one stage. input, weight: the two halves of the backward pass, the gradient of the stage's input
    and that of its weights. overlapped: a forward and a whole backward run as one (DualPipe); None: one after the other."""

    forward: float
    input: float
    weight: float
    overlapped: float | None = None

    @property
    def backward(self) -> float:
        return self.input + self.weight

    @property
    def pair(self) -> float:
        return self.forward + self.backward if self.overlapped is None else self.overlapped

    def of(self, kind: Kind) -> float:
        match kind:
            case Kind.FORWARD:
                return self.forward
            case Kind.BACKWARD:
                return self.backward
            case Kind.INPUT:
                return self.input
            case Kind.WEIGHT:
                return self.weight


Result = tuple[Kind, int, int]
"""FORWARD or INPUT, of a stage and a microbatch."""


class Span(NamedTuple):
    """What was done from when to when."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What each rank did, in order."""

    ranks: tuple[tuple[Span, ...], ...]

    @property
    def start(self) -> float:
        return min(span.start for spans in self.ranks for span in spans)

    @property
    def end(self) -> float:
        return max(span.end for spans in self.ranks for span in spans)

    @property
    def makespan(self) -> float:
        return self.end - self.start

    def idle(self, rank: int) -> float:
        """Between the first and the last thing that the rank did."""
        gaps: float = 0
        until = self.ranks[rank][0].start
        for span in self.ranks[rank]:
            gaps += max(0, span.start - until)
            until = max(until, span.end)
        return gaps

    def busy(self, rank: int) -> float:
        spans = self.ranks[rank]
        return max(span.end for span in spans) - spans[0].start - self.idle(rank)

    def held(self, rank: int) -> int:
        """The most forward passes whose activations the rank keeps at a time, for backward or weight passes still to come."""
        most = now = 0
        for span in self.ranks[rank]:
            now += {Kind.FORWARD: 1, Kind.INPUT: 0}.get(span.action.kind, -1)
            most = max(most, now)
        return most

    @property
    def bubble(self) -> float:
        """The most that a rank idles between its own first and last pass: what the published formulas count. Where a step begins as
        soon as its own rank is free, it takes so much longer than the passes."""
        return max(self.idle(rank) for rank in range(len(self.ranks)))

    @property
    def bubble_share(self) -> float:
        """Of the time that the rank with the largest bubble takes."""
        worst = max(range(len(self.ranks)), key=self.idle)
        return self.idle(worst) / (self.idle(worst) + self.busy(worst))

    @property
    def waiting_share(self) -> float:
        """Of all ranks' time from the first pass of any to the last, where all begin and end a step together."""
        total = self.makespan * len(self.ranks)
        return 1 - sum(self.busy(rank) for rank in range(len(self.ranks))) / total


def ideal(layout: PipelineLayout, costs: PassCost | Sequence[PassCost], transfer: float = 0) -> Timeline:
    """The schedule with nothing in its way. costs: of every stage, or of each. transfer: from the end of a pass until another rank
    has its result. Raises SpecError for a layout that cannot be, or another number of costs than of stages."""
    each = [costs] * layout.num_stages if isinstance(costs, PassCost) else list(costs)
    if len(each) != layout.num_stages:
        raise SpecError("costs", len(each), f"write one for each of the {layout.num_stages} stages")
    return replay(layout, orders(layout), lambda action: each[action.stage].of(action.kind), _paired(each), transfer)


def _paired(each: Sequence[PassCost]) -> Callable[[Unit], float | None]:
    """None: the passes of the unit are made one after the other."""

    def cost(unit: Unit) -> float | None:
        if len(unit) == 1 or any(each[action.stage].overlapped is None for action in unit):
            return None
        return sum(each[action.stage].pair for action in unit) / len(unit)

    return cost


def replay(
    layout: PipelineLayout,
    ordered: Sequence[Order],
    cost: Callable[[Action], float],
    paired: Callable[[Unit], float | None] = lambda unit: None,
    transfer: float = 0,
) -> Timeline:
    """Each rank makes its passes in this order, each as soon as what it needs is there. paired: what a unit of several costs
    together; None: each its own. Raises Bug where ranks wait for each other for ever."""
    left = [deque(_steps(order, cost, paired)) for order in ordered]
    ranks = _Ranks(layout, transfer)
    while any(left):
        moved = [ranks.run(rank, steps) for rank, steps in enumerate(left)]
        if not any(moved):
            waiting = ", ".join(str(steps[0][0][0]) for steps in left if steps)
            raise Bug(f"the ranks of {layout} wait for each other at {waiting}")
    return Timeline(tuple(tuple(spans) for spans in ranks.spans))


def _steps(order: Order, cost: Callable[[Action], float], paired: Callable[[Unit], float | None]) -> Iterator[tuple[Unit, float]]:
    for unit in order:
        together = paired(unit)
        if together is None:
            yield from (((action,), cost(action)) for action in unit)
        else:
            yield unit, together


class _Ranks:
    """Until when each is at work, and when each result was there."""

    def __init__(self, layout: PipelineLayout, transfer: float) -> None:
        self._layout, self._transfer = layout, transfer
        self._ended: dict[Result, float] = {}
        self._free: list[float] = [0] * layout.num_ranks
        self.spans: list[list[Span]] = [[] for _ in range(layout.num_ranks)]

    def run(self, rank: int, steps: deque[tuple[Unit, float]]) -> bool:
        """The first ones, as many as have what they need; whether there were any."""
        moved = False
        while steps:
            unit, cost = steps[0]
            needed = [result for action in unit for result in needs(action, self._layout.num_stages)]
            if any(result not in self._ended for result in needed):
                break
            self._do(rank, unit, cost, needed)
            steps.popleft()
            moved = True
        return moved

    def _do(self, rank: int, unit: Unit, cost: float, needed: Sequence[Result]) -> None:
        start = max([self._free[rank], *(self._there(rank, result) for result in needed)])
        self._free[rank] = start + cost
        for action in unit:
            self.spans[rank].append(Span(action, start, start + cost))
            if action.kind is not Kind.WEIGHT:
                self._ended[result_of(action)] = start + cost

    def _there(self, rank: int, result: Result) -> float:
        return self._ended[result] + (self._transfer if self._layout.rank_of(result[1]) != rank else 0)


def result_of(action: Action) -> Result:
    """What others wait for: the stage's output, or the gradient of its input."""
    return (Kind.FORWARD if action.kind is Kind.FORWARD else Kind.INPUT, action.stage, action.microbatch)


def needs(action: Action, num_stages: int) -> list[Result]:
    """The results without which the action cannot begin."""
    kind, stage, microbatch = action
    if kind is Kind.FORWARD:
        return [(Kind.FORWARD, stage - 1, microbatch)] if stage else []
    if kind is Kind.WEIGHT:
        return [(Kind.INPUT, stage, microbatch)]
    own: list[Result] = [(Kind.FORWARD, stage, microbatch)]
    return own if stage == num_stages - 1 else [*own, (Kind.INPUT, stage + 1, microbatch)]
