"""Sealed measurements: Parquet files (zstd), each written whole or not at all, the parts of one attempt read as one by DuckDB."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy.typing as npt

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.core.records import StepRecord
from phalanx.record.telemetry.columns import SCHEMA, Key, Measurement, from_rows
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
        """Put `table` (arrays by SCHEMA's names) at `path`, durable, in place of what was there.

        Raises StoreUnavailable; then what was there still is.
        """
        columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in SCHEMA.items())
        with _disk(path), tempfile.TemporaryDirectory(prefix=".seal-", dir=path.parent) as folder:
            made = Path(folder) / "segment.parquet"
            self._database.register("head", dict(table))
            try:
                # Only names of ours are put into the text; the path is one that we made, under the store's root.
                target = str(made).replace("'", "''")
                query = f"COPY (SELECT {columns} FROM head) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"  # noqa: S608  # see above
                self._database.execute(query)
            finally:
                self._database.unregister("head")
            write_atomic(path, made.read_bytes(), 0o600)

    def count(self, parts: Sequence[Path]) -> int:
        """Measurements in the parts of an attempt."""
        return (
            int(self._rows("SELECT count(*) AS n FROM read_parquet(?, union_by_name = true)", [_literals(parts)])[0]["n"])
            if parts
            else 0
        )

    def records(
        self, parts: Sequence[Path], start: int = 0, limit: int = 2**62, rank: int | None = None
    ) -> list[tuple[int, Measurement]]:
        """(arrival, record) from arrival `start` on, of one rank or of all, at most `limit`."""
        if not parts:
            return []
        rows = self._rows(
            "SELECT * FROM read_parquet(?, union_by_name = true) "
            "WHERE arrival >= ? AND (? IS NULL OR rank = ?) ORDER BY arrival LIMIT ?",
            [_literals(parts), start, rank, rank, limit],
        )
        return from_rows(rows)

    def highest(self, parts: Sequence[Path]) -> dict[tuple[int, str], int]:
        """(rank, name) -> its highest step: what lies beyond is new."""
        if not parts:
            return {}
        query = "SELECT rank, name, max(step) AS step FROM read_parquet(?) GROUP BY rank, name"
        return {(row["rank"], row["name"]): row["step"] for row in self._rows(query, [_literals(parts)])}

    def keys(self, parts: Sequence[Path], rank: int, first: int, last: int) -> set[Key]:
        """Keys of a rank's measurements of the steps first to last."""
        query = "SELECT step, name FROM read_parquet(?) WHERE rank = ? AND step BETWEEN ? AND ?"
        return {(rank, row["step"], row["name"]) for row in self._rows(query, [_literals(parts), rank, first, last])}

    def newest_step(self, parts: Sequence[Path]) -> StepRecord | None:
        """The highest step; of its ranks the lowest."""
        query = "SELECT * FROM read_parquet(?, union_by_name = true) WHERE name = '' ORDER BY step DESC, rank LIMIT 1"
        if not parts:
            return None
        rows = self._rows(query, [_literals(parts)])
        found = from_rows(rows)
        return found[0][1] if found and isinstance(found[0][1], StepRecord) else None

    def asked(
        self, parts: Sequence[Path], head: Mapping[str, npt.NDArray[Any]] | None, query: str, values: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """What `query` answers of an attempt, whose measurements it calls `rows`. head: those that are in no part yet, by SCHEMA's
        names."""
        of_parts = "SELECT * FROM read_parquet(?, union_by_name = true)" if parts else ""
        sources = " UNION ALL BY NAME ".join(filter(None, (of_parts, "SELECT * FROM head" if head else "")))
        if not sources:
            return []
        if head:
            self._database.register("head", dict(head))
        try:
            first = [_literals(parts)] if parts else []
            return self._rows(f"WITH rows AS ({sources}) {query}", [*first, *values], parts[0] if parts else "head")
        finally:
            if head:
                self._database.unregister("head")

    def close(self) -> None:
        """Let go of DuckDB's memory."""
        self._database.close()

    def _rows(self, query: str, values: list[Any], where: object = None) -> list[dict[str, Any]]:
        with _disk(values[0][0] if where is None else where):
            answer = self._database.execute(query, values)
            names = [column[0] for column in answer.description or []]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


@contextmanager
def _disk(path: object) -> Iterator[None]:
    """A disk that is full or gone, and whatever DuckDB makes of it, is the world's and not a bug."""
    try:
        yield
    except (OSError, SetupError, duckdb.Error) as error:
        raise StoreUnavailable(f"series {path}: {error}") from error


def _literals(paths: Sequence[Path]) -> list[str]:
    """DuckDB reads a path as a glob; a home folder may well be called `runs[1]`."""
    return ["".join(f"[{char}]" if char in "[*?" else char for char in str(path)) for path in paths]
