"""The bubble of a timeline that was measured, beside what the schedule makes of the same passes and what its formula says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phalanx.core.errors import DataError
from phalanx.fabric.pipeline.actions import Kind, flat, orders
from phalanx.fabric.pipeline.formulas import bubble_formula
from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.fabric.pipeline.timeline import PassCost, Timeline, replay


@dataclass(frozen=True, slots=True)
class Bubbles:
    """In the timeline's unit. measured: the most that a rank idled between its passes, with all waits for neighbours. replayed: of
    passes as long as these, each as soon as what it needs is there: more was measured where sending and calling take time. formula:
    where each takes the mean of its kind; more was replayed where stages or microbatches are uneven. None: there is none. cost: the
    means."""

    measured: float
    replayed: float
    formula: float | None
    measured_share: float
    cost: PassCost


def bubbles(layout: PipelineLayout, timeline: Timeline) -> Bubbles:
    """Raises DataError for a timeline that is not of this layout."""
    check_of(layout, timeline)
    took = {span.action: span.end - span.start for spans in timeline.ranks for span in spans}
    replayed = replay(layout, orders(layout), took.__getitem__)
    cost = mean_cost(timeline)
    formula = bubble_formula(layout, cost)
    return Bubbles(timeline.bubble, replayed.bubble, formula, timeline.bubble_share, cost)


def check_of(layout: PipelineLayout, timeline: Timeline) -> None:
    """Raises DataError unless each rank did what the schedule says, in its order."""
    if len(timeline.ranks) != layout.num_ranks:
        raise DataError("timeline", len(timeline.ranks), f"give one of {layout.num_ranks} ranks")
    for rank, (order, spans) in enumerate(zip(orders(layout), timeline.ranks, strict=True)):
        did, wanted = tuple(span.action for span in spans), flat(order)
        if did != wanted:
            raise DataError(f"timeline of rank {rank}", f"{len(did)} passes", f"give one step of schedule {layout.schedule}")


def mean_cost(timeline: Timeline) -> PassCost:
    """Of each kind of pass the mean. Where none is put off, the weight part counts as 0."""
    return cost_of({kind: _mean(_durations(timeline, kind)) for kind in Kind})


def cost_of(means: Mapping[Kind, float | None]) -> PassCost:
    """Of what passes of each kind took on average; None of a kind that there was none of."""
    weight = means[Kind.WEIGHT] or 0.0
    whole = means[Kind.BACKWARD]
    back = (means[Kind.INPUT] or 0.0) if whole is None else max(whole - weight, 0.0)
    return PassCost(means[Kind.FORWARD] or 0.0, back, weight)


def _durations(timeline: Timeline, kind: Kind) -> Iterator[float]:
    return (span.end - span.start for spans in timeline.ranks for span in spans if span.action.kind is kind)


def _mean(numbers: Iterator[float]) -> float | None:
    kept = list(numbers)
    return sum(kept) / len(kept) if kept else None
