"""Who started when: every job of a replay as a row of CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Final

from phalanx.operate.sim.replay.outcome import Life

COLUMNS: Final = (
    "job", "tenant", "devices", "submit_s", "start_s", "end_s", "evictions", "eta_low_s", "eta_high_s", "why_never",
)  # fmt: skip
"""Seconds since the first submission. start_s is of the first start, as is what was predicted of it; what did not happen, and an
interval too wide to be shown, is empty."""


def job_table(lives: Sequence[Life]) -> str:
    """With a head, in the order of the trace."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    out.writerows(_rows(lives))
    return text.getvalue()


def _rows(lives: Sequence[Life]) -> Iterator[tuple[object, ...]]:
    for life in lives:
        job, eta = life.job, None if life.eta is None or life.eta.vague else life.eta
        times = (job.submit_ms, life.started_ms, life.ended_ms)
        told = (None, None) if eta is None else (eta.low_ms, eta.high_ms)
        yield job.name, job.tenant, job.devices, *map(_seconds, times), life.evictions, *map(_seconds, told), life.never


def _seconds(ms: int | None) -> str:
    return "" if ms is None else f"{ms / 1000:.3f}".rstrip("0").rstrip(".")
