"""What a trace says, in numbers: exposed communication, waits for data, what most of the time went into. Pure, but for its end: run
as a file it packs a trace and sums it up, in a process that imports no torch, beside a training that goes on.

Events are those of a Chrome trace (the trace event format's complete events, in microseconds). On a GPU communication is NCCL's
kernels, and it is exposed while no other kernel runs. On a CPU it is gloo's operations, and it is exposed while the thread that
trains runs no other operator.
"""

import gzip
import json
import os
import re
import resource
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

STEP: Final = "step "
DATA_WAIT: Final = "data wait"
FORWARD_BACKWARD: Final = "forward and backward"
AGREEMENT: Final = "agreement"
OPTIMIZER: Final = "optimizer"
CHECKPOINT: Final = "checkpoint"
COPY: Final = "checkpoint copy"
OF_PIPELINE: Final = "pass "
"""Marks: of a step and a pipeline's pass followed by which, such as `step 7` and `pass 0F3`."""
TOP: Final = 10
SECONDS_MAX: Final = 600
MEMORY_BYTES_MAX: Final = 8 << 30
"""Of the process that sums up: a trace of some hundred megabytes takes a few gigabytes."""
Span = tuple[float, float]
_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_FROM_AND_TO_HOST: Final = ("DtoH", "HtoD")
"""Copies of batches and checkpoints go beside all else."""
_PLAIN: Final = ("c10d::", "record_param_comms", "gloo:", "nccl:")
"""Operators that stand for communication, or wait for it."""
_OWN_OPTIMIZER: Final = "Optimizer.step#"
"""torch marks every optimizer's step by this and its class."""
_PASS_NAME: Final = re.compile(rf"{OF_PIPELINE}[0-9]+([FBIW])[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """As `core.profile.StepTrace`."""

    step: int
    wall_ms: float
    data_wait_ms: float
    communication_ms: float
    exposed_communication_ms: float
    optimizer_ms: float
    checkpoint_ms: float
    copy_ms: float
    bubble_ms: float
    mfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Busiest:
    """As `core.profile.BusyOperator`."""

    name: str
    calls: int
    total_ms: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """As `core.profile.RankTrace`."""

    rank: int
    on_gpu: bool
    steps: tuple[StepSummary, ...]
    busiest: tuple[Busiest, ...]
    passes: Mapping[str, float]
    pipeline: Mapping[str, Any] | None

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """For people."""
        heads = ("step", "wall", "data wait", "comm.", "exposed", "optimizer", "checkpoint", "bubble")
        rows = [f"rank {self.rank}: " + " ".join(f"{head:>10}" for head in heads) + "  (ms)"]
        for one in self.steps:
            times = (
                one.wall_ms, one.data_wait_ms, one.communication_ms, one.exposed_communication_ms, one.optimizer_ms,
                one.checkpoint_ms, one.bubble_ms,
            )  # fmt: skip
            rows.append(f"{'':7} {one.step:>10} " + " ".join(f"{time:>10.2f}" for time in times))
        rows += [f"{one.share:7.1%} {one.total_ms:10.2f} ms {one.calls:6} x  {one.name[:80]}" for one in self.busiest]
        return "\n".join(rows) + "\n"


def summarised(events: Iterable[Mapping[str, Any]], rank: int, facts: Mapping[str, Any] | None = None) -> Summary:
    """facts: what no event says, `mfu` by step and the `pipeline`, if there is one."""
    known = facts or {}
    complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    on_gpu = any(event.get("cat") == "kernel" for event in complete)
    marks = [event for event in complete if event.get("cat") == "user_annotation"]
    steps = sorted((event for event in marks if _step(event) is not None), key=lambda event: float(event["ts"]))
    of_training = {_thread(event) for event in steps}
    communication = union(_span(event) for event in complete if _communicates(event, on_gpu))
    computing = union(_span(event) for event in complete if _computes(event, on_gpu, of_training))
    passes = _passes(complete, on_gpu)
    spent = {
        "data_wait_ms": _marked(marks, lambda name: name == DATA_WAIT),
        "communication_ms": communication,
        "exposed_communication_ms": without(communication, computing),
        "optimizer_ms": _marked(marks, lambda name: name == OPTIMIZER or name.startswith(_OWN_OPTIMIZER)),
        "checkpoint_ms": _marked(marks, lambda name: name == CHECKPOINT),
        "copy_ms": _marked(marks, lambda name: name == COPY),
    }
    mfu: Mapping[str, float] = known.get("mfu", {})
    return Summary(
        rank=rank, on_gpu=on_gpu, busiest=_busiest(complete, on_gpu), passes=_means(passes), pipeline=known.get("pipeline"),
        steps=tuple(_of_step(step, spent, passes, mfu) for step in steps),
    )  # fmt: skip


def _of_step(
    mark: Mapping[str, Any], spent: Mapping[str, Sequence[Span]], passes: Sequence[tuple[str, Span]], mfu: Mapping[str, float]
) -> StepSummary:
    number, within = _step(mark) or 0, [_span(mark)]
    times = {name: _ms(overlap(spans, within)) for name, spans in spent.items()}
    mine = union(span for _, span in passes if within[0][0] <= span[0] < within[0][1])
    bubble = without([(mine[0][0], mine[-1][1])], mine) if mine else []
    return StepSummary(step=number, wall_ms=_ms(within), bubble_ms=_ms(bubble), mfu=mfu.get(str(number), 0.0), **times)


def _marked(marks: Sequence[Mapping[str, Any]], is_meant: Callable[[str], bool]) -> list[Span]:
    return union(_span(event) for event in marks if is_meant(str(event["name"])))


def _passes(events: Sequence[Mapping[str, Any]], on_gpu: bool) -> list[tuple[str, Span]]:
    """(kind, when) of a pipeline's passes. On a GPU when their kernels ran, in the stream that computes most: what a pass gathers
    and sends is marked in others."""
    wanted = "gpu_user_annotation" if on_gpu else "user_annotation"
    by_stream: dict[tuple[Any, Any], list[tuple[str, Span]]] = defaultdict(list)
    computed: dict[tuple[Any, Any], float] = defaultdict(float)
    for event in events:
        if event.get("cat") == wanted and (found := _PASS_NAME.fullmatch(str(event["name"]))):
            by_stream[_thread(event)].append((found[1], _span(event)))
        elif on_gpu and _computes(event, on_gpu, frozenset()):
            computed[_thread(event)] += float(event["dur"])
    return by_stream[max(by_stream, key=lambda stream: computed[stream])] if by_stream else []


def _means(passes: Sequence[tuple[str, Span]]) -> dict[str, float]:
    """Kind -> mean milliseconds."""
    by_kind: dict[str, list[Span]] = defaultdict(list)
    for kind, span in passes:
        by_kind[kind].append(span)
    return {kind: _ms(spans) / len(spans) for kind, spans in sorted(by_kind.items())}


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
    """Instants of a union that are not in another one. One sweep over both: a trace has a hundred thousand of each."""
    found, at = [], 0
    for begin, end in some:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        look, since = at, begin
        while look < len(others) and others[look][0] < end:
            if others[look][0] > since:
                found.append((since, others[look][0]))
            since = others[look][1]
            look += 1
        if end > since:
            found.append((since, end))
        at = max(at, look - 1)  # the last one may reach into the next span
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
        by_thread[_thread(event)].append(event)
    found = []
    for several in by_thread.values():
        open_ones: list[list[Any]] = []  # [end, name, own time]
        for event in sorted(several, key=lambda event: (float(event["ts"]), -float(event["dur"]))):
            begin, end = _span(event)
            while open_ones and open_ones[-1][0] <= begin:
                _, name, own_us = open_ones.pop()
                found.append((name, own_us))
            if open_ones:
                open_ones[-1][2] -= min(end, open_ones[-1][0]) - begin  # one kernel may begin before another ends
            open_ones.append([end, str(event["name"]), end - begin])
        found += [(name, own_us) for _, name, own_us in open_ones]
    return found


def _communicates(event: Mapping[str, Any], on_gpu: bool) -> bool:
    name = str(event["name"])
    if on_gpu:
        return event.get("cat") == "kernel" and "nccl" in name.lower()
    return name.startswith("gloo:")


def _computes(event: Mapping[str, Any], on_gpu: bool, of_training: Set[tuple[Any, Any]]) -> bool:
    name = str(event["name"])
    if on_gpu:
        return event.get("cat") in _GPU and "nccl" not in name.lower() and not any(one in name for one in _FROM_AND_TO_HOST)
    return event.get("cat") == "cpu_op" and _thread(event) in of_training and not name.startswith(_PLAIN)


def _thread(event: Mapping[str, Any]) -> tuple[Any, Any]:
    """Or stream."""
    return event.get("pid"), event.get("tid")


def _step(event: Mapping[str, Any]) -> int | None:
    number = str(event["name"]).removeprefix(STEP)
    return int(number) if str(event["name"]).startswith(STEP) and number.isdecimal() else None


def _span(event: Mapping[str, Any]) -> Span:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])


def _ms(spans: Sequence[Span]) -> float:
    return sum(end - begin for begin, end in spans) / 1e3


def write(raw: Path, rank: int, to: str, facts: Mapping[str, Any]) -> Summary:
    """TO.trace.json.gz and TO.summary.* of the trace `raw`, which is removed; each is whole or absent. The trace comes first: it is
    there also where its summary is too much."""
    try:
        packed = raw.with_suffix(".gz")
        with raw.open("rb") as file, gzip.open(packed, "wb", compresslevel=6) as out:
            shutil.copyfileobj(file, out, 1 << 20)
        packed.rename(f"{to}.trace.json.gz")
        with raw.open("rb") as file:
            summary = summarised(json.load(file)["traceEvents"], rank, facts)
    finally:
        raw.unlink(missing_ok=True)
    for kind, text in (("json", json.dumps(summary.plain(), indent=1)), ("txt", summary.text())):
        whole = raw.with_suffix(f".{kind}")
        whole.write_text(text)
        whole.rename(f"{to}.summary.{kind}")
    return summary


def _limited() -> None:
    """Training has the processors and the memory first, and who waits for this does not wait for ever."""
    os.nice(19)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX if most < 0 else min(most, MEMORY_BYTES_MAX), most))
    signal.alarm(SECONDS_MAX)


if __name__ == "__main__":
    _limited()
    sys.stdout.write(write(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])).text())
