"""Microsoft's Philly cluster, 2017 (Jeon et al., ATC 2019): one row a job, in no order, virtual clusters as tenants."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from phalanx.operate.sim.traces.rows import Row, rows
from phalanx.operate.sim.traces.trace import Trace, TraceJob

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
SOURCE: Final = "msr-fiddle/philly-traces, CC-BY-4.0"


def read(file: Path) -> Trace:
    """Raises TraceError for a row that is no job, by its line."""
    jobs = (
        TraceJob(
            name=f"philly-{row.line}",
            submit_ms=_submit_ms(row),
            duration_ms=row.whole("duration", least=1, scale=1000),
            devices=row.count("num_gpus", least=1),
            tenant=row.text("cluster") or "default",
            line=row.line,
        )
        for row in rows(file, COLUMNS)
    )
    return Trace.of("philly", jobs, SOURCE, epoch_ms=0).must_have_jobs(file)


def _submit_ms(row: Row) -> int:
    """The trace does not tell its time zone: taken as UTC, so that no hour is missing or double."""
    try:
        moment = datetime.fromisoformat(row.text("timestamp"))
    except ValueError:
        raise row.error("timestamp", "write a time such as 2017-10-09 07:01:55") from None
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
