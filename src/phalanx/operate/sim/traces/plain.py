"""The format to write when no other one fits: a CSV file with the columns submit_s, duration_s, devices, and where they are known
name, tenant, limit_s, priority (0 to 100), types (as in 'H100|A100-80'), milli (thousandths of one device) and spot (never, allow
or prefer, as in a job's spec)."""

from pathlib import Path
from typing import Final, cast, get_args

from phalanx.core.spec import SpotUse
from phalanx.operate.sim.traces.rows import Row, rows
from phalanx.operate.sim.traces.trace import Trace, TraceJob

COLUMNS: Final = ("submit_s", "duration_s", "devices")
OPTIONAL: Final = ("name", "tenant", "limit_s", "priority", "types", "milli", "spot")


def read(file: Path) -> Trace:
    """Raises TraceError for a row that is no job, by its line, and for a column that nobody reads."""
    return Trace.of(file.name.partition(".")[0], (_job(row) for row in rows(file, COLUMNS, OPTIONAL))).must_have_jobs(file)


def _job(row: Row) -> TraceJob:
    def given(column: str) -> str:
        return row.cells.get(column, "")

    milli = row.count("milli", least=1) if given("milli") else 1000
    devices = row.count("devices", least=1)
    if milli > 1000 or (milli < 1000 and devices > 1):
        raise row.error("milli", "write 1 to 1000, and less than 1000 only for one device")
    return TraceJob(
        name=given("name") or f"job-{row.line}",
        submit_ms=row.whole("submit_s", scale=1000),
        duration_ms=row.whole("duration_s", least=1, scale=1000),
        devices=devices,
        tenant=given("tenant") or "default",
        limit_ms=row.whole("limit_s", least=1, scale=1000) if given("limit_s") else None,
        priority=_priority(row) if given("priority") else 50,
        types=_types(row) if given("types") else (),
        milli=milli,
        spot=_spot(row) if given("spot") else "never",
        line=row.line,
    )


def _types(row: Row) -> tuple[str, ...]:
    """'|' alone must not read as any type."""
    types = tuple(part.strip() for part in row.text("types").split("|"))
    if not all(types):
        raise row.error("types", "write types such as H100|A100-80, or nothing for any")
    return types


def _spot(row: Row) -> SpotUse:
    spot = row.text("spot").strip()
    if spot not in get_args(SpotUse):
        raise row.error("spot", f"write {', '.join(get_args(SpotUse))}, or nothing for never")
    return cast(SpotUse, spot)


def _priority(row: Row) -> int:
    priority = row.count("priority")
    if priority > 100:
        raise row.error("priority", "write 0 to 100")
    return priority
