"""What the traces of a job's ranks say together. Pure: names of artifacts and ranks' own summaries in, a view out.

Ranks wrote both, so anything may be in them: what is no summary is named and left out.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean
from typing import Any, Final

from phalanx.core.errors import PhalanxError
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.profile import (
    FOLDER,
    SUMMARY,
    TRACE,
    TRACED_STEPS_MAX,
    BubbleView,
    BusyOperator,
    ProfileView,
    RankProfile,
    RankTrace,
    StepTrace,
    TracedPipeline,
    trace_name,
)
from phalanx.fabric.pipeline.actions import Kind
from phalanx.fabric.pipeline.formulas import bubble_formula
from phalanx.fabric.pipeline.layout import SCHEDULES, PipelineLayout
from phalanx.fabric.pipeline.measured import cost_of

_NAME: Final = re.compile(rf"{FOLDER}/rank-([0-9]{{1,9}})-steps-([0-9]{{1,15}})-([0-9]{{1,15}}){re.escape(SUMMARY)}")
_TIMES: Final = tuple(one.name for one in fields(StepTrace) if one.name != "step")
ALL: Final = -1
BUSIEST: Final = 10
NAME_CHARS_MAX: Final = 500
"""Of an operator: templates have long names, and their ends say little."""
NUMBER_MAX: Final = 1e12
"""In milliseconds 31 years: sums of as many as there can be stay numbers."""
_SHARE_MAX: Final = 1.01
"""Rounded."""
Window = tuple[int, int]
"""First and last of the steps of a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeans:
    """What is kept of a rank's summary. bubbles: of a pipeline, by step."""

    on_gpu: bool
    means: Mapping[str, float]
    busiest: tuple[BusyOperator, ...]
    passes: Mapping[Kind, float]
    bubbles: Mapping[int, float]
    pipeline: TracedPipeline | None


def windows_of(names: Iterable[str], world_size: int) -> dict[Window, dict[int, str]]:
    """Window -> rank -> name of its summary."""
    found: dict[Window, dict[int, str]] = defaultdict(dict)
    for name in names:
        if match := _NAME.fullmatch(name):
            rank, first, last = map(int, match.groups())
            if rank < world_size:
                found[first, last][rank] = name
    return dict(found)


def means_of(trace: RankTrace) -> RankMeans | None:
    """None of a summary that no trace has: of no step or too many, or with a number that cannot be."""
    if not 1 <= len(trace.steps) <= TRACED_STEPS_MAX or len(trace.busiest) > BUSIEST:
        return None
    passes = {kind: trace.passes[kind] for kind in Kind if kind in trace.passes}
    numbers = [getattr(step, name) for step in trace.steps for name in _TIMES]
    numbers += [number for one in trace.busiest for number in (one.calls, one.total_ms)]
    if not all(0 <= number <= NUMBER_MAX for number in [*numbers, *passes.values()]):  # false of NaN too
        return None
    if not all(0 <= one.share <= _SHARE_MAX for one in trace.busiest):
        return None
    return RankMeans(
        on_gpu=trace.on_gpu, means=_mean(trace.steps), passes=passes, pipeline=trace.pipeline,
        busiest=tuple(replace(one, name=one.name[:NAME_CHARS_MAX]) for one in trace.busiest),
        bubbles={step.step: step.bubble_ms for step in trace.steps} if trace.pipeline is not None else {},
    )  # fmt: skip


def profile_of(
    job: JobId, attempt: AttemptId, window: Window, traces: Mapping[int, RankMeans], others: Sequence[Window], unread: Sequence[int]
) -> ProfileView:
    """traces: by rank, one at least. others: further windows. unread: ranks that are left out."""
    ranks: list[tuple[int, Mapping[str, Any]]] = [(rank, trace.means) for rank, trace in sorted(traces.items())]
    whole: dict[str, Any] = {name: fmean(means[name] for _, means in ranks) for name in _TIMES}
    return ProfileView(
        job=job, attempt=attempt, first=window[0], last=window[1], on_gpu=any(trace.on_gpu for trace in traces.values()),
        whole=RankProfile(rank=ALL, **whole), busiest=_busiest(list(traces.values())), bubble=_bubble(list(traces.values())),
        ranks=tuple(
            RankProfile(rank=rank, **means, trace=f"{FOLDER}/{trace_name(rank, *window)}{TRACE}") for rank, means in ranks
        ),
        others=tuple(sorted(others)), unread=tuple(sorted(unread)),
    )  # fmt: skip


def _mean(steps: Sequence[StepTrace]) -> dict[str, float]:
    return {name: fmean(getattr(step, name) for step in steps) for name in _TIMES}


def _busiest(traces: Sequence[RankMeans]) -> tuple[BusyOperator, ...]:
    """Sums over ranks; shares are of the time of all of them."""
    merged: dict[str, list[BusyOperator]] = defaultdict(list)
    for trace in traces:
        for one in trace.busiest:
            merged[one.name].append(one)
    several = [
        BusyOperator(
            name=name, calls=sum(one.calls for one in ones), total_ms=sum(one.total_ms for one in ones),
            share=sum(one.share for one in ones) / len(traces),
        )
        for name, ones in merged.items()
    ]  # fmt: skip
    return tuple(sorted(several, key=lambda one: (-one.total_ms, one.name))[:BUSIEST])


def _bubble(traces: Sequence[RankMeans]) -> BubbleView | None:
    """None where no rank had a pipeline, or one that cannot be."""
    piped = [trace for trace in traces if trace.pipeline is not None and trace.passes]
    asked = piped[0].pipeline if piped else None
    if asked is None:
        return None
    name = next((one for one in SCHEDULES if one == asked.schedule), None)
    if name is None:
        return None
    layout = PipelineLayout(**asdict(asked) | {"schedule": name})
    try:
        layout.check()
    except PhalanxError:
        return None
    worst: dict[int, float] = defaultdict(float)
    for trace in piped:
        for step, bubble_ms in trace.bubbles.items():
            worst[step] = max(worst[step], bubble_ms)
    means = {kind: _mean_pass(piped, kind) for kind in Kind}
    return BubbleView(**asdict(asked), measured_ms=fmean(worst.values()), formula_ms=bubble_formula(layout, cost_of(means)))


def _mean_pass(traces: Sequence[RankMeans], kind: Kind) -> float | None:
    known = [trace.passes[kind] for trace in traces if kind in trace.passes]
    return fmean(known) if known else None
