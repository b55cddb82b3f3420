"""Sealed attempts: one Parquet file (zstd) each, written whole or not at all, read through DuckDB."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy.typing as npt

from phalanx.core.errors import StoreUnavailable
from phalanx.core.records import StepRecord
from phalanx.record.telemetry.columns import SCHEMA, Measurement, from_rows
from phalanx.storage.atomic import write_atomic

_CONFIG: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "threads": "1",
    "temp_directory": "",
}
"""No extension is fetched from anywhere, nothing spills into the working folder, and one thread: a page is small, and the machine
belongs to the ranks."""


class Segments:
    """Reads segment files. Not for several threads at once: the store holds its lock."""

    def __init__(self) -> None:
        self._database = duckdb.connect(":memory:", config=dict(_CONFIG))

    def write(self, path: Path, table: Mapping[str, npt.NDArray[Any]]) -> None:
        """Put `table` (arrays by SCHEMA's names) at `path`, durable, in place of what was there."""
        columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in SCHEMA.items())
        with tempfile.TemporaryDirectory(prefix=".seal-", dir=path.parent) as folder:
            made = Path(folder) / "segment.parquet"
            self._database.register("head", dict(table))
            try:
                # Only names of ours are put into the text; the path is one that we made, under the store's root.
                target = str(made).replace("'", "''")
                query = f"COPY (SELECT {columns} FROM head) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"  # noqa: S608  # see above
                self._execute(query, [])
            finally:
                self._database.unregister("head")
            write_atomic(path, made.read_bytes(), 0o600)

    def count(self, path: Path) -> int:
        """Measurements in the segment."""
        return int(self._rows("SELECT count(*) AS n FROM read_parquet(?)", [_literal(path)])[0]["n"])

    def records(self, path: Path, start: int = 0, limit: int = 2**62, rank: int | None = None) -> list[tuple[int, Measurement]]:
        """(arrival, record) from arrival `start` on, of one rank or of all, at most `limit`."""
        rows = self._rows(
            "SELECT * FROM read_parquet(?) WHERE arrival >= ? AND (? IS NULL OR rank = ?) ORDER BY arrival LIMIT ?",
            [_literal(path), start, rank, rank, limit],
        )
        return from_rows(rows)

    def newest_step(self, path: Path) -> StepRecord | None:
        """The highest step; of its ranks the lowest."""
        rows = self._rows("SELECT * FROM read_parquet(?) WHERE name = '' ORDER BY step DESC, rank LIMIT 1", [_literal(path)])
        found = from_rows(rows)
        return found[0][1] if found and isinstance(found[0][1], StepRecord) else None

    def close(self) -> None:
        """Let go of DuckDB's memory."""
        self._database.close()

    def _rows(self, query: str, values: list[Any]) -> list[dict[str, Any]]:
        answer = self._execute(query, values)
        names = [column[0] for column in answer.description or []]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def _execute(self, query: str, values: list[Any]) -> duckdb.DuckDBPyConnection:
        try:
            return self._database.execute(query, values)
        except duckdb.IOException as error:
            raise StoreUnavailable(f"a series segment: {error}") from error


def _literal(path: Path) -> str:
    """DuckDB reads a path as a glob; a home folder may well be called `runs[1]`."""
    return "".join(f"[{char}]" if char in "[*?" else char for char in str(path))
