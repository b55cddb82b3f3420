"""The numbers of a replay."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from phalanx.core.policy import Policy
from phalanx.core.sim_report import EtaView, NeverView, SimReport, Spread, TenantView
from phalanx.operate.sim.replay.cluster import describe
from phalanx.operate.sim.replay.outcome import Life, Outcome, Series, TenantShare
from phalanx.operate.sim.traces.trace import Trace, TraceJob
from phalanx.record.telemetry.ledger.categories import DRAINING, PRODUCTIVE, RECOMPUTE, RESTART, RUNNING_UNMEASURED

HOUR_MS: Final = 3_600_000
NEVER_SHOWN: Final = 20
STEPS: Final = 120
"""Of the allocation over time."""

SIZES: Final[Sequence[tuple[int, str]]] = (
    (1, "1 device"), (8, "2-8 devices"), (64, "9-64 devices"), (10**15, "over 64 devices"),
)  # fmt: skip
"""Classes of jobs by devices, as they are shown."""


def report(
    outcome: Outcome,
    trace: Trace,
    policy: Policy,
    *,
    policy_name: str,
    limits: str,
    seed: int,
    wall_s: float,
    through: Literal["schedule", "control"] = "schedule",
    notes: Sequence[str] = (),
    written: str = "",
    jobs_written: str = "",
) -> SimReport:
    """Everything that `phalanx sim run` says."""
    lives = outcome.lives
    devices = sum(len(node.devices) for node in outcome.nodes)
    until_ms = max(trace.jobs[-1].submit_ms, 1)
    never = [life for life in lives if life.never]
    lost = sum(outcome.ledger.get(name, 0) for name in (RESTART, RECOMPUTE, DRAINING))
    normalised = {name: share for name, one in outcome.shares.items() if (share := _normalised(one)) is not None}
    return SimReport(
        trace=trace.name,
        source=trace.source,
        cluster=describe(outcome.nodes),
        nodes=len(outcome.nodes),
        devices=devices,
        policy=policy_name,
        order=policy.order,
        limits=limits,
        seed=seed,
        through=through,
        interval_s=outcome.interval_ms / 1000,
        days=outcome.ended_ms / (24 * HOUR_MS),
        jobs=len(lives),
        finished=sum(life.ended_ms is not None for life in lives),
        skipped=trace.skipped,
        skipped_for=trace.skipped_for,
        start_ms=outcome.start_ms,
        never_fitting=sum(not life.fits for life in never),
        never_started=sum(life.fits for life in never),
        never=tuple(NeverView(job=life.job.name, devices=life.job.devices, why=life.never) for life in never[:NEVER_SHOWN]),
        utilisation=sum(outcome.ledger.get(name, 0) for name in (PRODUCTIVE, RUNNING_UNMEASURED)) / max(1, outcome.capacity),
        allocation=outcome.held_submitting / (until_ms * devices * 1000),
        allocation_bound=bound([life.job for life in lives if life.fits], devices, until_ms),
        allocation_over_time=_steps(outcome.series, devices, outcome.ended_ms),
        fragmentation=_stranded(outcome),
        fragmentation_waiting=_blocked(outcome),
        jct=spread(life.jct_ms for life in lives),
        wait=spread(life.wait_ms for life in lives),
        wait_by_class=_waits(lives, lambda life: class_of(life, policy)),
        wait_by_size=dict(sorted(_waits(lives, size_of).items(), key=lambda item: [name for _, name in SIZES].index(item[0]))),
        tenants=_tenants(lives, outcome.shares),
        evictions=sum(outcome.evictions.values()),
        evicted_for=dict(sorted(outcome.evictions.items())),
        failures=outcome.num_failures,
        lost_gpu_hours=lost / 1000 / HOUR_MS,
        jain=_jain(list(normalised.values())),
        max_min=min(normalised.values()) / max(normalised.values()) if normalised and max(normalised.values()) > 0 else None,
        ledger=outcome.ledger,
        capacity=outcome.capacity,
        blocked_by=dict(sorted(outcome.blocked_by.items(), key=lambda item: -item[1])),
        eta=eta_of(lives),
        decisions=outcome.decisions,
        decide_ms=1000 * outcome.decide_s / max(1, outcome.decisions),
        wall_s=wall_s,
        notes=tuple(notes),
        report=written,
        jobs_written=jobs_written,
    )


def spread(times_ms: Iterable[int | None]) -> Spread:
    """Of those that are known; zeros when none is."""
    known = sorted(ms / 1000 for ms in times_ms if ms is not None)
    if not known:
        return Spread(count=0, mean=0.0, p50=0.0, p99=0.0, max=0.0)
    return Spread(count=len(known), mean=sum(known) / len(known), p50=rank(known, 0.5), p99=rank(known, 0.99), max=known[-1])


def rank(ordered: Sequence[float], share: float) -> float:
    """The percentile by nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def size_of(life: Life) -> str:
    """Its class by devices."""
    return next(name for most, name in SIZES if life.job.devices <= most)


def class_of(life: Life, policy: Policy) -> str:
    """The class of its priority."""
    known = [(one.priority, name) for name, one in policy.classes.items() if one.priority <= life.job.priority]
    return max(known)[1] if known else f"priority {life.job.priority}"


def bound(jobs: Iterable[TraceJob], devices: int, until_ms: int) -> float:
    """Most of the fleet that any scheduler could have held until then: what had been done at some moment by a fleet so large that
    nobody waits, and everything from there on by this one, at the worst such moment."""
    changes = sorted((at, change) for job in jobs for at, change in _changes(job.submit_ms, job.duration_ms, job.devices))
    done = least = 0
    load, last_ms = 0, 0
    for at_ms, change in changes:
        if at_ms >= until_ms:
            break
        done += load * (at_ms - last_ms)
        load, last_ms = load + change, at_ms
        least = min(least, done - devices * at_ms)
    done += load * (until_ms - last_ms)
    least = min(least, done - devices * until_ms)
    return (least + devices * until_ms) / (devices * until_ms)


def _changes(submit_ms: int, duration_ms: int, devices: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (submit_ms, devices), (submit_ms + duration_ms, -devices)


def eta_of(lives: Sequence[Life]) -> EtaView | None:
    """Of those that `why` would show; None when nothing was predicted."""
    told = [(life.started_ms, life.eta) for life in lives if life.eta is not None and life.started_ms is not None]
    if not told:
        return None
    shown = [(started, eta) for started, eta in told if not eta.vague]
    widths = sorted((eta.high_ms - eta.low_ms) / 1000 for _, eta in shown)
    return EtaView(
        predicted=len(shown),
        coverage=sum(eta.low_ms <= started <= eta.high_ms for started, eta in shown) / max(1, len(shown)),
        width_s=rank(widths, 0.5) if widths else 0.0,
        without=1 - len(shown) / len(told),
    )


def _waits(lives: Sequence[Life], key: Callable[[Life], str]) -> Mapping[str, Spread]:
    groups: defaultdict[str, list[int | None]] = defaultdict(list)
    for life in lives:
        groups[key(life)].append(life.wait_ms)
    return {name: spread(times) for name, times in sorted(groups.items())}


def _tenants(lives: Sequence[Life], shares: Mapping[str, TenantShare]) -> Mapping[str, TenantView]:
    waits = _waits(lives, lambda life: life.job.tenant)
    counts: defaultdict[str, int] = defaultdict(int)
    for life in lives:
        counts[life.job.tenant] += 1
    none = TenantShare()
    return {
        name: TenantView(
            jobs=counts[name],
            wait=waits[name],
            gpu_hours=shares.get(name, none).served_ms / HOUR_MS,
            weight=shares.get(name, none).weight,
            normalised=_normalised(shares.get(name, none)),
        )
        for name in sorted(counts, key=lambda one: (-counts[one], one))
    }


def _normalised(share: TenantShare) -> float | None:
    return share.held_ms / share.fair_ms if share.fair_ms > 0 else None


def _jain(values: Sequence[float]) -> float | None:
    """Jain's index: 1 when all are equal, 1 / n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def _of(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _integral(series: Series, column: Sequence[int], until_ms: int) -> int:
    """Of a column that stays as it is until its next entry."""
    total = 0
    for index, at_ms in enumerate(series.at_ms):
        if at_ms >= until_ms:
            break
        following = series.at_ms[index + 1] if index + 1 < len(series.at_ms) else until_ms
        total += column[index] * (min(following, until_ms) - at_ms)
    return total


def _stranded(outcome: Outcome) -> float:
    """Of the idle time, what lay on nodes too full for the typical job."""
    series, until_ms = outcome.series, outcome.ended_ms
    return _of(_integral(series, series.stranded_milli, until_ms), _integral(series, series.idle_milli, until_ms))


def _blocked(outcome: Outcome) -> float:
    """Of the idle time while anybody waited, what lay on nodes too full for the first in line."""
    series, until_ms = outcome.series, outcome.ended_ms
    return _of(_integral(series, series.blocked_milli, until_ms), _waiting_idle(series, until_ms))


def _waiting_idle(series: Series, until_ms: int) -> int:
    """Idle while anybody waited."""
    return _integral(
        series, [idle if waits else 0 for idle, waits in zip(series.idle_milli, series.waiting, strict=True)], until_ms
    )


def _steps(series: Series, devices: int, until_ms: int) -> tuple[tuple[float, float], ...]:
    points = buckets(series.at_ms, series.held_milli, until_ms, STEPS)
    return tuple((round(at_ms / HOUR_MS, 3), round(held / (1000 * devices), 4)) for at_ms, held in points)


def buckets(times: Sequence[int], values: Sequence[int], until_ms: int, count: int) -> list[tuple[float, float]]:
    """Time-weighted means of a step function in `count` equal spans, by the middle of each."""
    if not times or until_ms <= 0:
        return []
    width = until_ms / count
    sums = [0.0] * count
    for index, at_ms in enumerate(times):
        end_ms = min(times[index + 1] if index + 1 < len(times) else until_ms, until_ms)
        first, last = int(at_ms / width), min(count - 1, int(end_ms / width))
        for bucket in range(first, last + 1):
            overlap = min(end_ms, (bucket + 1) * width) - max(at_ms, bucket * width)
            sums[bucket] += values[index] * max(0.0, overlap)
    return [((bucket + 0.5) * width, total / width) for bucket, total in enumerate(sums)]
