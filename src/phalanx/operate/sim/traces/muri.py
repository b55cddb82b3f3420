"""Job traces of the Muri paper (SIGCOMM 2022): one row a job, times in milliseconds, for a cluster of 8 nodes of 8 GPUs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phalanx.operate.sim.traces.rows import Row, rows
from phalanx.operate.sim.traces.trace import Trace, TraceJob

COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "iteration_time")
SOURCE: Final = "Rivendile/Muri, Apache-2.0"
NODE_DEVICES: Final = 8


@dataclass(frozen=True, slots=True)
class MuriJob:
    """A row. duration_ms: alone on its GPUs; `iterations` of `iteration_ms` each make about as much."""

    name: str
    devices: int
    submit_ms: int
    iterations: int
    model: str
    duration_ms: int
    iteration_ms: int
    line: int = field(default=0, compare=False)


def read_jobs(file: Path) -> tuple[MuriJob, ...]:
    """In the order of the file. Raises TraceError for a row that is no job, by its line."""
    jobs = tuple(_job(row) for row in rows(file, COLUMNS))
    Trace("", tuple(_plain(job) for job in jobs)).must_have_jobs(file)
    return jobs


def read(file: Path) -> Trace:
    """As any other trace. Raises TraceError; see `read_jobs`."""
    return Trace.of(f"muri/{file.name.partition('.')[0]}", map(_plain, read_jobs(file)), SOURCE)


def _plain(job: MuriJob) -> TraceJob:
    return TraceJob(job.name, job.submit_ms, job.duration_ms, job.devices, line=job.line)


def _job(row: Row) -> MuriJob:
    devices = row.count("num_gpu", least=1)
    if devices > NODE_DEVICES and devices % NODE_DEVICES:
        raise row.error("num_gpu", f"write up to {NODE_DEVICES}, or a multiple of it: a larger gang takes whole nodes")
    return MuriJob(
        name=row.text("job_id") or f"muri-{row.line}",
        devices=devices,
        submit_ms=row.whole("submit_time"),
        iterations=row.whole("iterations", least=1),
        model=row.text("model_name"),
        duration_ms=row.whole("duration", least=1),
        iteration_ms=row.whole("iteration_time", least=1),
        line=row.line,
    )
