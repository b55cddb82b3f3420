"""Steps and metrics of one attempt as columns: a NumPy buffer that grows, and back to records. One schema holds both kinds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, get_type_hints

import numpy as np
import numpy.typing as npt

from phalanx.core.records import Metric, StepRecord

Measurement = StepRecord | Metric
Key = tuple[int, int, str]
"""(rank, step, metric name; '' for the step record): one measurement of an attempt."""

_STEP_TYPES: Final = {part.name: get_type_hints(StepRecord)[part.name] for part in fields(StepRecord) if part.name != "kind"}
_NUMPY: Final = {int: np.dtype("i8"), float: np.dtype("f8"), str: np.dtype("S32")}
_METRIC_ONLY: Final = {"name": str, "value": float, "at_ms": int}
_ROW: Final = np.dtype(
    [(name, _NUMPY[kind]) for name, kind in _STEP_TYPES.items()] + [("name", "i4"), ("value", "f8"), ("at_ms", "i8")]
)
_TYPES: Final = {**_STEP_TYPES, **_METRIC_ONLY}

_SQL: Final = {int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}

SCHEMA: Final = {"arrival": "BIGINT", **{name: _SQL[kind] for name, kind in _TYPES.items()}}
"""Columns of a segment and their SQL types. `arrival` counts from 0; `name` is '' for a step, and what belongs to the other kind
is then unused. A float that is NULL was no number."""


class Columns:
    """Measurements of one attempt in arrival order, each key once; the first of them is arrival `base`."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self._rows: npt.NDArray[np.void] = np.zeros(64, dtype=_ROW)
        self._size = 0
        self._keys: set[Key] = set()
        self._names: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return self._size

    def add(self, record: Measurement) -> bool:
        """Take `record`, unless its key is already here. The first one wins, as it did in every answer given so far."""
        key = key_of(record)
        if key in self._keys:
            return False
        if self._size == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._fill(self._rows[self._size], record)
        self._keys.add(key)
        self._size += 1
        return True

    def records(
        self, start: int = 0, stop: int | None = None, rank: int | None = None, limit: int | None = None
    ) -> list[tuple[int, Measurement]]:
        """(arrival, record) of arrivals [start, stop), of one rank or of all, the first `limit` of them."""
        start = max(0, start - self.base)
        rows = self._rows[: self._size][start : None if stop is None else max(0, stop - self.base)]
        chosen = np.arange(len(rows)) if rank is None else np.flatnonzero(rows["rank"] == rank)
        chosen = chosen[:limit]
        names = list(self._names)
        return [(self.base + start + int(at), _record(dict(zip(_TYPES, rows[at].item(), strict=True)), names)) for at in chosen]

    def newest_step(self) -> StepRecord | None:
        """The highest step; of its ranks the lowest."""
        rows = self._rows[: self._size]
        steps = np.flatnonzero(rows["name"] == 0)
        if not len(steps):
            return None
        best = steps[np.lexsort((rows["rank"][steps], -rows["step"][steps]))[0]]
        found = self.records(self.base + int(best), self.base + int(best) + 1)[0][1]
        return found if isinstance(found, StepRecord) else None

    def oldest_step(self, rank: int, since: int) -> StepRecord | None:
        """Of a rank, the lowest step from `since` on."""
        rows = self._rows[: self._size]
        steps = np.flatnonzero((rows["name"] == 0) & (rows["rank"] == rank) & (rows["step"] >= since))
        if not len(steps):
            return None
        best = int(steps[np.argmin(rows["step"][steps])])
        found = self.records(self.base + best, self.base + best + 1)[0][1]
        return found if isinstance(found, StepRecord) else None

    def table(self) -> dict[str, npt.NDArray[Any]]:
        """The same as arrays by SCHEMA's names."""
        rows = self._rows[: self._size]
        names = np.array(list(self._names), dtype=object)
        columns: dict[str, npt.NDArray[Any]] = {"arrival": np.arange(self.base, self.base + self._size)}
        for name, kind in _TYPES.items():
            if name == "name":
                columns[name] = names[rows[name]]
            else:
                columns[name] = rows[name].astype("U32").astype(object) if kind is str else np.ascontiguousarray(rows[name])
        return columns

    def _fill(self, row: Any, record: Measurement) -> None:
        if isinstance(record, Metric):
            row["rank"], row["step"] = record.rank, record.step
            row["name"] = self._names.setdefault(record.name, len(self._names))
            row["value"], row["at_ms"] = record.value, record.at_ms
            return
        for name in _STEP_TYPES:
            row[name] = getattr(record, name)


def key_of(record: Measurement) -> Key:
    """What makes two measurements of an attempt the same one."""
    return record.rank, record.step, record.name if isinstance(record, Metric) else ""


def from_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Measurement]]:
    """(arrival, record) of rows with SCHEMA's names."""
    return [(row["arrival"], _record({name: _value(name, row.get(name)) for name in _TYPES}, None)) for row in rows]


def _value(name: str, value: Any) -> Any:
    """A NULL is no number, or of a column that came later than the part."""
    if value is not None:
        return value
    return math.nan if _TYPES[name] is float else _TYPES[name]()


def _record(values: dict[str, Any], names: Sequence[str] | None) -> Measurement:
    """`names` resolves the number of a metric's name; None when the row has the name itself."""
    name = values["name"] if names is None else names[values["name"]]
    if name:
        return Metric(rank=values["rank"], step=values["step"], name=name, value=values["value"], at_ms=values["at_ms"])
    step: dict[str, Any] = {key: value.decode() if isinstance(value := values[key], bytes) else value for key in _STEP_TYPES}
    return StepRecord(**step)
