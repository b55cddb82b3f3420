"""When each waiting job is expected to start: an interval that holds 80 % of starts. Pure: a snapshot and its plan in.

First a likely start, by counting (`turnover`): a job starts when as many devices of its pool have been let go of as it and those
before it ask for. That knows nothing of geometry, of jobs yet to come, or of backfill. So the interval around it is not computed
but learnt: how far starts were off that were predicted like this one (`history.History.misses`), as wide as the last starts show
that it must be. This is split conformal prediction by class, with the level adapted as in Gibbs and Candes, "Adaptive conformal
inference under distribution shift" (2021).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from phalanx.core.ids import JobId
from phalanx.core.reasons import Backoff, MakingRoom, NoRoom, OutsideWindow, OverBudget, OverLimit, OverQuota, Reason
from phalanx.decide.scheduler.plan import Eta, Plan, Wait
from phalanx.decide.scheduler.room.ends import SOON_MS
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.decide.scheduler.why import turnover
from phalanx.decide.scheduler.why.history import MISS_BINS, SOFT_MS, History, Predicted, run_class, size_class
from phalanx.decide.scheduler.why.latest import latest_starts
from phalanx.decide.scheduler.why.reach import Reaches
from phalanx.decide.scheduler.why.runtimes import usual_wait_ms

_TRUST: Final = 15.0
"""Of so many starts in a class, what was learnt of all like it counts as much as what was learnt of the class itself."""

_EDGES: Final = np.exp((np.arange(MISS_BINS + 1) - MISS_BINS // 2) / 5)
"""Of the bins of `History.misses`, as factors."""

_FIRST_GUESS: Final = np.exp(-np.abs(np.arange(MISS_BINS) - MISS_BINS / 2 + 0.5) / 5)
"""Before anything was learnt: starts are off by a factor of e, more or less."""

_SPANNED_MAX: Final = 0.97
"""Of all misses; an interval that has to be wider still is stretched."""

_STRETCH: Final = 3.0
"""A level of a hundredth more stretches it by 3 %."""

_LONG_MS: Final = (60_000, 300_000, 1_200_000, 3_600_000, 14_400_000, 57_600_000)
"""Between predicted waits that are judged apart: short ones are off by other factors than long ones."""

SLACK: Final = 2.0
"""By how much a job may start later than if all that are before it run to their limits: counting knows nothing of geometry, nor of
jobs yet to come. Of 300 jobs of Philly whose times were known 5 % started later than that."""

_COUNTED: Final = (NoRoom, OverLimit, OverQuota)
"""Reasons of jobs that count for something: of the others enough devices are free, but not for them."""

_VAGUE_MS: Final = 7 * 86_400_000
_VAGUE_TIMES: Final = 50
"""An interval wider than this, and so many times as wide as it is away, tells nobody anything."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is shown, and what it was made of."""

    eta: Eta
    told: Predicted


def predict(snapshot: Snapshot, plan: Plan, only: Collection[JobId] | None = None) -> dict[JobId, Eta]:
    """An interval for each job that the plan lets wait, or for those of them in `only`; none for jobs of which nothing can be said:
    that never fit, or wait for other jobs or for nodes; and none for those that start as soon as gangs have let go for them."""
    return {job: forecast.eta for job, forecast in forecasts(snapshot, plan, only).items()}


def forecasts(snapshot: Snapshot, plan: Plan, only: Collection[JobId] | None = None) -> dict[JobId, Forecast]:
    """The same with how it was come by, for `lessons` to learn from."""
    waits = [one for one in plan.decisions if isinstance(one, Wait) and (only is None or one.job in only)]
    if not waits:
        return {}
    reaches = Reaches(snapshot, plan)
    likely, at_limits = turnover.likely_waits(snapshot, plan, only, reaches)
    jobs = {job.facts.job: job for job in snapshot.pending}
    latest = latest_starts(snapshot, plan, reaches) if likely else {}
    spans: dict[tuple[str, ...], tuple[float, float]] = {}
    usual: dict[str, float] = {}
    found = {}
    for wait in waits:
        if wait.job not in likely or isinstance(wait.reason, MakingRoom):
            continue
        job = jobs[wait.job].facts
        num_devices = job.shape.num_devices
        runs, size = run_class(job.queue, num_devices), size_class(num_devices)
        if runs not in usual:
            usual[runs] = usual_wait_ms(snapshot.history, job.queue, num_devices)
        views = (*likely[wait.job], usual[runs])
        likely_ms = _blend(views, snapshot.history.views.get(size, ()))
        names = _classes(size, wait.reason, likely_ms)
        if names not in spans:
            spans[names] = _span(snapshot.history, names)
        eta = _not_before(wait.reason, snapshot.now_ms, _eta(snapshot.now_ms, likely_ms, *spans[names]))
        if wait.job in latest:
            eta = not_after(latest[wait.job], snapshot.now_ms, eta)
        elif wait.job in at_limits and isinstance(wait.reason, _COUNTED):
            eta = _at_most(snapshot.now_ms + round(SLACK * at_limits[wait.job] + SOFT_MS), snapshot.now_ms, eta)
        first_ms = reaches.first_ms(jobs[wait.job])
        if first_ms > snapshot.now_ms:
            eta = _from(first_ms, eta)
        found[wait.job] = Forecast(eta, Predicted(likely_ms, views, runs, size, names))
    return found


def _blend(views: Sequence[float], off: Sequence[float]) -> float:
    """Mean of their logarithms, each by how little it was off of late. What counts heads in line and what counts on yesterday are
    off in different hours."""
    weights = [1.0 / max(0.05, one) ** 2 for one in off] or [1.0] * len(views)
    logs = (weight * math.log(view + SOFT_MS) for view, weight in zip(views, weights, strict=True))
    return max(0.0, math.exp(sum(logs) / sum(weights)) - SOFT_MS)


def _classes(size: str, reason: Reason, likely_ms: float) -> tuple[str, ...]:
    """Of predictions that are off alike, from all to the narrowest: by how long the wait is, the reason, the gang's size."""
    long = sum(likely_ms >= bound for bound in _LONG_MS)
    return "all", f"{long}", f"{long}/{reason.kind}/{size}"


def _eta(now_ms: int, likely_ms: float, low: float, high: float) -> Eta:
    """`low` and `high` are factors of the likely wait, as `history.miss_bin` compares waits."""
    low_ms = max(0, round((likely_ms + SOFT_MS) * low - SOFT_MS))
    return Eta(now_ms + low_ms, now_ms + max(low_ms, round((likely_ms + SOFT_MS) * high - SOFT_MS)), now_ms + round(likely_ms))


def _not_before(reason: Reason, now_ms: int, eta: Eta) -> Eta:
    """A shut window, a spent budget and a restart that is put off let nothing start before their time, whatever was learnt of
    waits. A booking need not: others may let go of other devices (`Reaches.first_ms` tells where they cannot)."""
    match reason:
        case OutsideWindow(opens_ms=int(first_ms)) | OverBudget(resets_ms=int(first_ms)):
            return _from(first_ms, eta)
        case Backoff(wait_ms=wait_ms):
            return _from(now_ms + wait_ms, eta)
    return eta


def not_after(latest_ms: int, now_ms: int, eta: Eta) -> Eta:
    """Nor after the time by which what is in its way is gone, with a little for gangs that have to end. Of an interval that was
    thought to begin later nothing is left but that. A time beyond a week bounds it, and is no news."""
    if eta.latest_ms is not None and eta.latest_ms <= latest_ms:
        return eta
    found = _at_most(max(latest_ms, now_ms) + SOON_MS, now_ms, eta)
    return found if latest_ms > now_ms + _VAGUE_MS else replace(found, latest_ms=latest_ms)


def _at_most(high_ms: int, now_ms: int, eta: Eta) -> Eta:
    low_ms = eta.low_ms if eta.low_ms < high_ms - SOON_MS else now_ms
    return replace(eta, low_ms=low_ms, high_ms=min(eta.high_ms, high_ms), likely_ms=min(eta.likely_ms, high_ms))


def is_vague(eta: Eta, now_ms: int) -> bool:
    """Whether it is too wide to be shown to anybody."""
    return eta.high_ms - eta.low_ms > max(_VAGUE_MS, _VAGUE_TIMES * (eta.low_ms - now_ms))


def _from(first_ms: int, eta: Eta) -> Eta:
    latest_ms = None if eta.latest_ms is None else max(eta.latest_ms, first_ms)
    return Eta(max(eta.low_ms, first_ms), max(eta.high_ms, first_ms), max(eta.likely_ms, first_ms), latest_ms)


def _span(history: History, names: Sequence[str]) -> tuple[float, float]:
    """The narrowest factors between which `history.level` of the realised waits of the class lie."""
    expected = _FIRST_GUESS / _FIRST_GUESS.sum()
    for name in names:
        counts = np.array(history.misses.get(name, (0.0,) * MISS_BINS)) + _TRUST * expected
        expected = counts / counts.sum()
    reached = np.concatenate([[0.0], np.cumsum(expected)])
    level = min(history.level, _SPANNED_MAX)
    ends = np.searchsorted(reached, reached[:-1] + level - 1e-9)
    widths = np.where(ends <= MISS_BINS, _EDGES[np.minimum(ends, MISS_BINS)] - _EDGES[:-1], np.inf)
    best = int(np.argmin(widths))
    stretch = math.exp(_STRETCH * max(0.0, history.level - _SPANNED_MAX))
    return float(_EDGES[best]) / stretch, float(_EDGES[min(int(ends[best]), MISS_BINS)]) * stretch
