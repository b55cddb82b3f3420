"""A timeline for people: as lines of text, and as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from collections.abc import Iterator
from typing import Final

from phalanx.fabric.pipeline.actions import Action, Kind
from phalanx.fabric.pipeline.timeline import Span, Timeline

_WORDS: Final = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT: "input gradient",
    Kind.WEIGHT: "weight gradient",
}
_COLOURS: Final = {
    Kind.FORWARD: "good",
    Kind.BACKWARD: "thread_state_running",
    Kind.INPUT: "thread_state_iowait",
    Kind.WEIGHT: "grey",
}
"""Names that the trace viewer reserves."""


def timeline_lines(timeline: Timeline, width: int = 100) -> Iterator[str]:
    """A line a rank: each pass as F, B, I or W and its microbatch as far as there is room, small where it is not the rank's first
    stage, and dots where the rank idles."""
    scale = width / timeline.makespan if timeline.makespan else 0.0
    for rank, spans in enumerate(timeline.ranks):
        cells = ["."] * width
        for span in spans:
            first, last = int((span.start - timeline.start) * scale), int((span.end - timeline.start) * scale)
            label = _label(span.action, last - first, span.action.stage == spans[0].action.stage)
            for at, letter in zip(range(first, min(last, width)), label, strict=False):
                cells[at] = letter
        yield f"{rank:>3} {''.join(cells)}"


def _label(action: Action, room: int, is_first: bool) -> str:
    kind = str(action.kind) if is_first else str(action.kind).lower()
    return f"{kind}{action.microbatch}"[: max(room, 1)].ljust(room, "-")


def chrome_trace(timeline: Timeline, second: float = 1.0) -> dict[str, object]:
    """The JSON object of the Trace Event Format: a track a rank, a slice a pass. second: of the timeline's unit."""
    events: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "pipeline"}}]
    for rank, spans in enumerate(timeline.ranks):
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}})
        events += [_slice(rank, span, timeline.start, 1e6 / second) for span in spans]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _slice(rank: int, span: Span, zero: float, scale: float) -> dict[str, object]:
    """In microseconds, as the format wants."""
    kind, stage, microbatch = span.action
    return {
        "ph": "X", "name": f"{kind}{microbatch}", "cat": _WORDS[kind], "pid": 0, "tid": rank, "ts": (span.start - zero) * scale,
        "dur": (span.end - span.start) * scale, "cname": _COLOURS[kind],
        "args": {"stage": stage, "microbatch": microbatch, "pass": _WORDS[kind]},
    }  # fmt: skip
