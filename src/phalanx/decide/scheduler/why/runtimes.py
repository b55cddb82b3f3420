"""How long jobs run, by what their class did before. Pure; arrays, since every running and waiting job is asked about."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.decide.scheduler.snapshot import JobFacts
from phalanx.decide.scheduler.why.history import RATIO_BINS, RUN_BINS, Counts, History, run_class

Numbers = NDArray[np.float64]

_TRUST: Final = 20.0
"""Of so many runs in a class, what all classes taught counts as much as what the class itself did."""

_RUN_EDGES: Final = np.exp2(np.arange(RUN_BINS + 1) / 2) * 1000.0
_RATIO_EDGES: Final = np.exp2((np.arange(RATIO_BINS + 1) - RATIO_BINS) / 4)


def over_by(history: History, jobs: Sequence[JobFacts], ages_ms: Numbers, done_ms: Numbers, later_ms: Numbers) -> Numbers:
    """Probability that each job (row), which has run for `ages_ms`, is over `later_ms` from now (one row for all, or one each).

    A job whose time is known runs for what is left of it after `done_ms`; none runs beyond its limit."""
    until = ages_ms[:, None] + np.maximum(later_ms, 0.0)
    if not jobs:
        return np.zeros(until.shape)
    names = [run_class(job.queue, job.shape.num_devices) for job in jobs]
    limits = np.array([np.inf if not job.limit_ms else job.limit_ms for job in jobs], np.float64)
    known = np.array([np.nan if job.expected_ms is None else job.expected_ms for job in jobs], np.float64)
    over = _over_by(history.runs, names, ages_ms, until, _RUN_EDGES)
    limited = np.isfinite(limits)
    if limited.any() and history.ratios:
        of = np.where(limited, limits, 1.0)
        ratios = _over_by(history.ratios, names, np.where(limited, ages_ms / of, 0.0), until / of[:, None], _RATIO_EDGES)
        over = np.where(limited[:, None], ratios, over)
    over = np.where(until >= limits[:, None], 1.0, over)
    sure = ~np.isnan(known)
    over = np.where(sure[:, None], until + done_ms[:, None] >= np.where(sure, known, 0.0)[:, None], over)
    return np.where(later_ms < 0, 0.0, over)


def over_at_limits(jobs: Sequence[JobFacts], ages_ms: Numbers, done_ms: Numbers, later_ms: Numbers) -> Numbers:
    """The same, 0 or 1, if each runs for as long as it may: to its limit, or for its time where that is known."""
    limits = np.array([job.limit_ms or np.inf for job in jobs], np.float64)
    known = np.array([np.inf if job.expected_ms is None else job.expected_ms for job in jobs], np.float64)
    ends_ms = np.maximum(0.0, np.minimum(limits, known - done_ms) - ages_ms)
    return np.where(later_ms < 0, 0.0, later_ms >= ends_ms[:, None])


def usual_wait_ms(history: History, queue: str, num_devices: int) -> float:
    """Median of how long jobs of the class waited, of late."""
    table = _tables(history.waits, [run_class(queue, num_devices)], RUN_BINS)
    return float(np.interp(0.5, np.concatenate([[0.0], np.cumsum(table[0])]), _RUN_EDGES))


def _over_by(classes: Mapping[str, Counts], names: Sequence[str], ages: Numbers, until: Numbers, edges: Numbers) -> Numbers:
    """Of those of each name's class that took longer than `ages`, the part that took no longer than `until`."""
    known = sorted(set(names))
    row_of = {name: row for row, name in enumerate(known)}
    table = _tables(classes, known, len(edges) - 1)
    reached = np.concatenate([np.zeros((len(known), 1)), np.cumsum(table, 1)], 1)
    rows = np.array([row_of[name] for name in names])
    before = _reached(table, reached, edges, rows, ages[:, None])
    after = _reached(table, reached, edges, rows, until)
    return np.asarray((after - before) / np.maximum(1.0 - before, 1e-9))


def _reached(table: Numbers, reached: Numbers, edges: Numbers, rows: NDArray[np.int64], at: Numbers) -> Numbers:
    inside = np.clip(np.searchsorted(edges, at, "right") - 1, 0, len(edges) - 2)
    part = np.clip((at - edges[inside]) / (edges[inside + 1] - edges[inside]), 0.0, 1.0)
    return np.asarray(reached[rows[:, None], inside] + part * table[rows[:, None], inside])


def _tables(classes: Mapping[str, Counts], names: Sequence[str], size: int) -> Numbers:
    """Distribution of each name's class, held to that of all where it knows little."""
    every = np.array(list(classes.values()), np.float64).sum(0) if classes else np.zeros(size)
    table = np.array([classes.get(name, (0.0,) * size) for name in names], np.float64)
    table += _TRUST * (every + 1.0) / (every.sum() + size)
    return np.asarray(table / table.sum(1, keepdims=True))
