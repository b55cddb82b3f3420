"""What the traces of a job's ranks say together. Pure: names of artifacts and ranks' own summaries in, a view out.

Ranks wrote both, so anything may be in them: what is no summary is named and left out.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from statistics import fmean
from typing import Any, Final

from phalanx.core.errors import PhalanxError
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.profile import (
    FOLDER,
    SUMMARY,
    TRACE,
    BubbleView,
    BusyOperator,
    ProfileView,
    RankProfile,
    RankTrace,
    StepTrace,
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
Window = tuple[int, int]
"""First and last of the steps of a trace."""


def windows_of(names: Iterable[str]) -> dict[Window, dict[int, str]]:
    """Window -> rank -> name of its summary."""
    found: dict[Window, dict[int, str]] = defaultdict(dict)
    for name in names:
        if match := _NAME.fullmatch(name):
            rank, first, last = map(int, match.groups())
            found[first, last][rank] = name
    return dict(found)


def profile_of(
    job: JobId, attempt: AttemptId, window: Window, traces: Mapping[int, RankTrace], others: Sequence[Window], unread: Sequence[int]
) -> ProfileView:
    """traces: by rank; one at least, each of one step or more. others: further windows. unread: ranks that are left out."""
    ranks = [(rank, _mean(trace.steps)) for rank, trace in sorted(traces.items())]
    whole: dict[str, Any] = {name: fmean(means[name] for _, means in ranks) for name in _TIMES}
    return ProfileView(
        job=job, attempt=attempt, first=window[0], last=window[1], on_gpu=any(trace.on_gpu for trace in traces.values()),
        whole=RankProfile(rank=ALL, **whole), busiest=_busiest(list(traces.values())), bubble=_bubble(list(traces.values())),
        ranks=tuple(
            RankProfile(rank=rank, **means, trace=f"{FOLDER}/{trace_name(rank, *window)}{TRACE}") for rank, means in ranks
        ),
        others=tuple(sorted(others)), unread=tuple(sorted(unread)),
    )  # fmt: skip


def _mean(steps: Sequence[StepTrace]) -> dict[str, Any]:
    return {name: fmean(getattr(step, name) for step in steps) for name in _TIMES}


def _busiest(traces: Sequence[RankTrace]) -> tuple[BusyOperator, ...]:
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


def _bubble(traces: Sequence[RankTrace]) -> BubbleView | None:
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
        for step in trace.steps:
            worst[step.step] = max(worst[step.step], step.bubble_ms)
    means = {kind: _mean_pass(piped, kind) for kind in Kind}
    return BubbleView(**asdict(asked), measured_ms=fmean(worst.values()), formula_ms=bubble_formula(layout, cost_of(means)))


def _mean_pass(traces: Sequence[RankTrace], kind: Kind) -> float | None:
    known = [trace.passes[kind] for trace in traces if kind in trace.passes]
    return fmean(known) if known else None
