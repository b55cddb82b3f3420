"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, -1 for what is not known, ';' before
remarks, of which the first ones describe the machine. A processor counts as a device.

https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from phalanx.operate.sim.traces.errors import TraceError
from phalanx.operate.sim.traces.rows import LINE_CHARS_MAX, opened, whole
from phalanx.operate.sim.traces.trace import Trace, TraceJob

FIELDS: Final = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "executable", "queue", "partition",
    "preceding job", "think time",
)  # fmt: skip
UNKNOWN: Final = -1
UNIX_MAX_S: Final = 2**32
"""The year 2106: a later start is no date."""

_REMARK: Final = re.compile(r"\s*;\s*([A-Za-z]+)\s*:\s*(.*)")


def read(file: Path) -> Trace:
    """Raises TraceError for a line that is no job. Jobs that never ran are skipped, and counted."""
    remarks: dict[str, str] = {}
    jobs: list[TraceJob] = []
    skipped = 0
    for line, numbers in _lines(file, remarks):
        job = _job(file, line, numbers)
        skipped += job is None
        if job is not None:
            jobs.append(job)
    source = " ".join(remarks[name] for name in ("Computer", "Installation") if name in remarks)
    processors = remarks.get("MaxProcs", "")
    machine = int(processors) if processors.isascii() and processors.isdecimal() else 0
    name, epoch_ms = file.name.partition(".")[0], _epoch_ms(remarks.get("UnixStartTime", ""))
    return Trace.of(name, jobs, source, skipped, machine, epoch_ms=epoch_ms).must_have_jobs(file)


def _epoch_ms(text: str) -> int | None:
    """From when its times count: seconds of Unix time, 0 where nobody knows."""
    seconds = int(text) if text.isascii() and text.isdecimal() else 0
    return seconds * 1000 if 0 < seconds <= UNIX_MAX_S else None


def _lines(file: Path, remarks: dict[str, str]) -> Iterator[tuple[int, list[str]]]:
    with opened(file) as text:
        for line, content in enumerate(text, start=1):
            if len(content) > LINE_CHARS_MAX:
                raise TraceError.at(file, line, None, f"is longer than {LINE_CHARS_MAX} characters; it is no job")
            if found := _REMARK.match(content):
                remarks.setdefault(found[1], found[2].strip())
            if content.strip() and not content.lstrip().startswith(";"):
                yield line, content.split()


def _job(file: Path, line: int, cells: Sequence[str]) -> TraceJob | None:
    """None for a job that was cancelled before it ran."""
    if len(cells) != len(FIELDS):
        raise TraceError.at(file, line, " ".join(cells)[:80], f"has {len(cells)} numbers; a job has {len(FIELDS)}, -1 for unknown")
    number = {
        name: whole(file, line, name, cell, UNKNOWN * scale, scale)
        for name, cell in zip(FIELDS, cells, strict=True)
        for scale in (1000 if name in ("submit time", "run time", "requested time") else 1,)
    }
    for name in ("allocated processors", "requested processors"):
        if not (cell := cells[FIELDS.index(name)]).isdecimal() and number[name] != float(cell):
            raise TraceError.at(file, line, cell, f"{name}: write a whole number")
    if number["submit time"] < 0:
        raise TraceError.at(file, line, cells[1], "submit time: write 0 or more")
    devices = max(number["requested processors"], 0) or number["allocated processors"]
    if number["run time"] <= 0 or devices <= 0:
        return None
    limit_ms = number["requested time"]
    return TraceJob(
        name=f"swf-{number['job number']}",
        submit_ms=number["submit time"],
        duration_ms=number["run time"],
        devices=devices,
        tenant=_tenant(number),
        limit_ms=limit_ms if limit_ms > 0 else None,
        line=line,
    )


def _tenant(number: dict[str, int]) -> str:
    """The group where the trace tells it, else the user, else the queue."""
    for name, prefix in (("group", "group"), ("user", "user"), ("queue", "queue")):
        if number[name] > 0:
            return f"{prefix}-{number[name]}"
    return "default"
