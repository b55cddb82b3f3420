"""What a trace says, in numbers: exposed communication, waits for data, what most of the time went into. Pure, but for its end: run
as a file it packs a trace and sums it up, in a process that imports no torch, beside a training that goes on.

Events are those of a Chrome trace (the trace event format's complete events, in microseconds). On a GPU communication is NCCL's
kernels, and it is exposed while no other kernel runs. On a CPU it is gloo's operations, and it is exposed while no other operator
runs.
"""

import gzip
import json
import os
import resource
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

STEP: Final = "step "
TOP: Final = 10
SECONDS_MAX: Final = 600
MEMORY_BYTES_MAX: Final = 8 << 30
"""Of the process that sums up: a trace of some hundred megabytes takes a few gigabytes."""
Span = tuple[float, float]
_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_PLAIN: Final = ("c10d::", "record_param_comms", "gloo:", "nccl:")
"""Operators that stand for communication, or wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """Of one step of one rank, in milliseconds."""

    step: int
    wall_ms: float
    data_wait_ms: float
    communication_ms: float
    exposed_communication_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Busiest:
    """A kernel, or of a CPU an operator without those that it calls. share: of the time of all of its kind."""

    name: str
    calls: int
    total_ms: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of the traced steps of one rank."""

    rank: int
    on_gpu: bool
    steps: tuple[StepSummary, ...]
    busiest: tuple[Busiest, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """For people."""
        rows = [f"rank {self.rank}: {'step':>8} {'wall':>10} {'data wait':>10} {'comm.':>10} {'exposed':>10}  (ms)"]
        for one in self.steps:
            times = (one.wall_ms, one.data_wait_ms, one.communication_ms, one.exposed_communication_ms)
            rows.append(f"{'':7} {one.step:>8} " + " ".join(f"{time:>10.2f}" for time in times))
        rows += [f"{one.share:7.1%} {one.total_ms:10.2f} ms {one.calls:6} x  {one.name[:80]}" for one in self.busiest]
        return "\n".join(rows) + "\n"


def summarised(events: Iterable[Mapping[str, Any]], rank: int, data_wait: str) -> Summary:
    """data_wait: the mark of such a wait."""
    complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    on_gpu = any(event.get("cat") == "kernel" for event in complete)
    marks = [event for event in complete if event.get("cat") == "user_annotation"]
    waits = union(_span(event) for event in marks if event["name"] == data_wait)
    communication = union(_span(event) for event in complete if _communicates(event, on_gpu))
    computing = union(_span(event) for event in complete if _computes(event, on_gpu))
    exposed = without(communication, computing)
    steps = []
    for mark in sorted((event for event in marks if _step(event) is not None), key=lambda event: float(event["ts"])):
        within = [_span(mark)]
        spent = [_ms(overlap(spans, within)) for spans in (waits, communication, exposed)]
        steps.append(StepSummary(
            step=_step(mark) or 0, wall_ms=_ms(within), data_wait_ms=spent[0], communication_ms=spent[1],
            exposed_communication_ms=spent[2],
        ))  # fmt: skip
    return Summary(rank=rank, on_gpu=on_gpu, steps=tuple(steps), busiest=_busiest(complete, on_gpu))


def union(spans: Iterable[Span]) -> list[Span]:
    """The same instants, as spans that do not touch."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def overlap(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Instants in both; each is a union."""
    found, at = [], 0
    for begin, end in some:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        look = at
        while look < len(others) and others[look][0] < end:
            found.append((max(begin, others[look][0]), min(end, others[look][1])))
            look += 1
    return found


def without(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Instants of a union that are not in another one."""
    found = []
    for begin, end in some:
        at = begin
        for cut_begin, cut_end in overlap([(begin, end)], others):
            if cut_begin > at:
                found.append((at, cut_begin))
            at = cut_end
        if end > at:
            found.append((at, end))
    return found


def _busiest(events: Sequence[Mapping[str, Any]], on_gpu: bool) -> tuple[Busiest, ...]:
    own = _own_times([event for event in events if event.get("cat") == ("kernel" if on_gpu else "cpu_op")])
    calls: dict[str, int] = defaultdict(int)
    total_us: dict[str, float] = defaultdict(float)
    for name, own_us in own:
        calls[name] += 1
        total_us[name] += own_us
    whole_us = sum(total_us.values()) or 1.0
    names = sorted(total_us, key=lambda name: -total_us[name])[:TOP]
    return tuple(
        Busiest(name=name, calls=calls[name], total_ms=total_us[name] / 1e3, share=total_us[name] / whole_us) for name in names
    )


def _own_times(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """(name, microseconds without those inside it on the same thread or stream)."""
    by_thread: dict[tuple[Any, Any], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        by_thread[event.get("pid"), event.get("tid")].append(event)
    found = []
    for several in by_thread.values():
        open_ones: list[list[Any]] = []  # [end, name, own time]
        for event in sorted(several, key=lambda event: (float(event["ts"]), -float(event["dur"]))):
            begin, end = _span(event)
            while open_ones and open_ones[-1][0] <= begin:
                _, name, own_us = open_ones.pop()
                found.append((name, own_us))
            if open_ones:
                open_ones[-1][2] -= end - begin
            open_ones.append([end, str(event["name"]), end - begin])
        found += [(name, own_us) for _, name, own_us in open_ones]
    return found


def _communicates(event: Mapping[str, Any], on_gpu: bool) -> bool:
    name = str(event["name"])
    if on_gpu:
        return event.get("cat") == "kernel" and "nccl" in name.lower()
    return name.startswith("gloo:")


def _computes(event: Mapping[str, Any], on_gpu: bool) -> bool:
    name = str(event["name"])
    if on_gpu:
        return event.get("cat") in _GPU and "nccl" not in name.lower()
    return event.get("cat") == "cpu_op" and not name.startswith(_PLAIN)


def _step(event: Mapping[str, Any]) -> int | None:
    number = str(event["name"]).removeprefix(STEP)
    return int(number) if str(event["name"]).startswith(STEP) and number.isdecimal() else None


def _span(event: Mapping[str, Any]) -> Span:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])


def _ms(spans: Sequence[Span]) -> float:
    return sum(end - begin for begin, end in spans) / 1e3


def write(raw: Path, rank: int, data_wait: str, to: str) -> Summary:
    """TO.trace.json.gz and TO.summary.* of the trace `raw`, which is removed. The trace comes first: it is there also where its
    summary is too much."""
    try:
        packed = raw.with_suffix(".gz")
        with raw.open("rb") as file, gzip.open(packed, "wb", compresslevel=6) as out:
            shutil.copyfileobj(file, out, 1 << 20)
        packed.rename(f"{to}.trace.json.gz")
        with raw.open("rb") as file:
            summary = summarised(json.load(file)["traceEvents"], rank, data_wait)
    finally:
        raw.unlink(missing_ok=True)
    Path(f"{to}.summary.json").write_text(json.dumps(summary.plain(), indent=1))
    Path(f"{to}.summary.txt").write_text(summary.text())
    return summary


def _limited() -> None:
    """Training has the processors and the memory first, and who waits for this does not wait for ever."""
    os.nice(19)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX if most < 0 else min(most, MEMORY_BYTES_MAX), most))
    signal.alarm(SECONDS_MAX)


if __name__ == "__main__":
    _limited()
    sys.stdout.write(write(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]).text())
