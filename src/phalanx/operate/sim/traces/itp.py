"""Microsoft's ITP clusters, 2021 (ElasticFlow, ASPLOS 2023): one row a job, times in seconds."""

from pathlib import Path
from typing import Final

from phalanx.operate.sim.traces.rows import rows
from phalanx.operate.sim.traces.trace import Trace, TraceJob

COLUMNS: Final = ("job_id", "submission_time", "duration", "num_gpu")
SOURCE: Final = "microsoft/elasticflow-traces, MIT"


def read(file: Path) -> Trace:
    """Raises TraceError for a row that is no job, by its line. The trace names no users: one tenant."""
    jobs = (
        TraceJob(
            name=row.text("job_id") or f"itp-{row.line}",
            submit_ms=row.whole("submission_time", scale=1000),
            duration_ms=row.whole("duration", least=1, scale=1000),
            devices=row.count("num_gpu", least=1),
            line=row.line,
        )
        for row in rows(file, COLUMNS)
    )
    return Trace.of(f"itp/{file.name.partition('.')[0]}", jobs, SOURCE).must_have_jobs(file)
