"""The series of steps and metrics of every attempt.

While an attempt runs its measurements are in memory as columns (the head) and appended to `<attempt>.head` as JSON lines in
arrival order; when it is over `seal` turns them into one Parquet segment and frees the memory. Nothing acknowledged can be
lost: the journal holds the raw bytes first. A killed server finds the head file again; after a crash of the whole machine,
which may cost that file its unsynced end, `rebuild` appends each unsealed attempt's journal anew, and what is already here
is dropped by its key (attempt, rank, step, metric name).
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import RLock
from typing import Final

from phalanx.core import wire
from phalanx.core.errors import StoreUnavailable
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.core.records import Metric, RankRecord, StepRecord
from phalanx.core.views import StepPage
from phalanx.record.telemetry import cursor
from phalanx.record.telemetry.columns import Columns, Measurement
from phalanx.record.telemetry.journal import Journal, attempt_folder
from phalanx.record.telemetry.records import LINE_BYTES_MAX, decode
from phalanx.record.telemetry.segments import Segments

PAGE_MAX: Final = 5_000
"""Measurements in one page, about 2 MB of JSON."""

_READ_BYTES: Final = 1024 * 1024


class SeriesStore:
    """Measurements under `root`. Every method may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = RLock()
        self._segments = Segments()
        self._heads: dict[AttemptId, Columns] = {}
        root.mkdir(parents=True, exist_ok=True)

    def append(self, attempt: AttemptId, records: Iterable[Measurement]) -> int:
        """Add what is new; returns how many were. Also for a sealed attempt: what came late is sealed in at once."""
        with self._lock:
            sealed = attempt not in self._heads and self._segment(attempt).exists()
            head = self._open(attempt)
            fresh = [record for record in records if head.add(record)]
            try:
                self._write_head(attempt, fresh)
            except OSError as error:
                self._heads.pop(attempt, None)  # memory must not know what the disk does not: it is read again next time
                raise StoreUnavailable(f"{self._head_file(attempt)}: {error.strerror or error}") from error
            if sealed:
                self._settle(attempt, bool(fresh))
            return len(fresh)

    def seal(self, attempt: AttemptId) -> None:
        """The attempt is over: write its segment and free its memory. Answers stay what they were. May be repeated."""
        with self._lock:
            if attempt in self._heads or self._head_file(attempt).exists():
                self._open(attempt)
                self._settle(attempt, True)

    def page(
        self,
        attempts: Sequence[AttemptId],
        after: str = "",
        rank: int | None = None,
        attempt: AttemptId | None = None,
        limit: int = PAGE_MAX,
    ) -> StepPage:
        """Measurements of a job's `attempts` (oldest first) in arrival order, from the cursor `after` on, at most `limit`.

        `rank` and `attempt` narrow what is shown. Ask again with `next`, at once when something came, later when nothing did.
        Raises UserError for a cursor that no page gave.
        """
        before = cursor.read(after)
        seen = dict(before)
        found: list[tuple[AttemptId, Measurement]] = []
        with self._lock:
            for one in attempts if attempt is None else (attempt,):
                number = split_attempt(one)[1]
                start = cursor.start_of(before, number)
                room = limit - len(found)
                if start is None or room <= 0:
                    continue
                records, seen[number] = self._records(one, start, room, rank)
                found += [(one, record) for _, record in records]
        return _page(found, cursor.write(seen))

    def last_step(self, attempt: AttemptId) -> StepRecord | None:
        """The record of the highest step, of its ranks the lowest."""
        with self._lock:
            if self._is_sealed(attempt):
                return self._segments.newest_step(self._segment(attempt))
            head = self._head(attempt)
            return head.newest_step() if head else None

    def steps(self, attempt: AttemptId) -> list[StepRecord]:
        """Every step record in arrival order, as the ledger wants them."""
        return [record for record in self._all(attempt) if isinstance(record, StepRecord)]

    def metrics(self, attempt: AttemptId) -> list[Metric]:
        """Every named metric in arrival order."""
        return [record for record in self._all(attempt) if isinstance(record, Metric)]

    def is_sealed(self, attempt: AttemptId) -> bool:
        """Whether nothing of the attempt is in memory any more."""
        with self._lock:
            return self._is_sealed(attempt)

    def close(self) -> None:
        """Let go of memory; what was appended stays on disk."""
        with self._lock:
            self._heads.clear()
            self._segments.close()

    def _all(self, attempt: AttemptId) -> list[Measurement]:
        with self._lock:
            return [record for _, record in self._records(attempt, 0, 2**62, None)[0]]

    def _records(self, attempt: AttemptId, start: int, limit: int, rank: int | None) -> tuple[list[tuple[int, Measurement]], int]:
        """At most `limit` measurements from arrival `start` on, and the arrival to go on from."""
        if self._is_sealed(attempt):
            records = self._segments.records(self._segment(attempt), start, limit, rank)
            end = self._segments.count(self._segment(attempt))
        else:
            head = self._head(attempt)
            records = head.records(start, rank=rank)[:limit] if head else []
            end = len(head) if head else 0
        cut = len(records) == limit
        return records, records[-1][0] + 1 if cut else max(start, end)

    def _is_sealed(self, attempt: AttemptId) -> bool:
        return attempt not in self._heads and self._segment(attempt).exists() and not self._head_file(attempt).exists()

    def _head(self, attempt: AttemptId) -> Columns | None:
        """The attempt's columns in memory, read from disk when it has a head file; None when nothing was ever appended."""
        if attempt not in self._heads and not self._head_file(attempt).exists():
            return None
        return self._open(attempt)

    def _open(self, attempt: AttemptId) -> Columns:
        if attempt not in self._heads:
            head = Columns()
            if self._segment(attempt).exists():
                for _, record in self._segments.records(self._segment(attempt)):
                    head.add(record)
            for record in _read_head(self._head_file(attempt)):
                head.add(record)
            self._heads[attempt] = head
        return self._heads[attempt]

    def _settle(self, attempt: AttemptId, changed: bool) -> None:
        """Segment first, then the head file goes: a crash in between leaves both, and a key counts once."""
        if changed and len(self._heads[attempt]):
            self._segments.write(self._segment(attempt), self._heads[attempt].table())
            self._head_file(attempt).unlink(missing_ok=True)
        self._heads.pop(attempt, None)

    def _write_head(self, attempt: AttemptId, records: Sequence[Measurement]) -> None:
        if not records:
            return
        lines = "".join(f"{json.dumps(wire.plain(RankRecord, record))}\n" for record in records).encode()  # json knows NaN
        fd = os.open(self._head_file(attempt), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)

    def _segment(self, attempt: AttemptId) -> Path:
        return attempt_folder(self._root, attempt).with_name(f"{attempt}.parquet")

    def _head_file(self, attempt: AttemptId) -> Path:
        return attempt_folder(self._root, attempt).with_name(f"{attempt}.head")


def rebuild(series: SeriesStore, journal: Journal, attempts: Iterable[AttemptId]) -> None:
    """Bring the series of unsealed `attempts` up to the journal: to be called once at the server's start."""
    for attempt in attempts:
        if series.is_sealed(attempt):
            continue
        for rank in journal.ranks("records", attempt):
            offset = 0
            while data := journal.read("records", attempt, rank, offset, _READ_BYTES + LINE_BYTES_MAX):
                decoded = decode(data, rank)
                series.append(attempt, decoded.measurements)
                if not decoded.consumed:
                    break
                offset += decoded.consumed


def _read_head(path: Path) -> list[Measurement]:
    """Records of a head file. A last line cut off by a crash is cut off for good, so that the next one starts cleanly: the
    journal has it whole."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        os.truncate(path, complete)
    return [wire.loads(RankRecord, line) for line in data[:complete].splitlines()]


def _page(found: Sequence[tuple[AttemptId, Measurement]], following: str) -> StepPage:
    steps = [(attempt, record) for attempt, record in found if isinstance(record, StepRecord)]
    return StepPage(
        steps=tuple(record for _, record in steps),
        metrics=tuple(record for _, record in found if isinstance(record, Metric)),
        attempts=tuple(attempt for attempt, _ in steps),
        next=following,
    )
