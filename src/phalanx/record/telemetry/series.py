"""The series of steps and metrics of every attempt.

While an attempt runs its newest measurements are in memory as columns (the head) and appended to `<attempt>.head`, a head file,
in arrival order. Whenever there are PART_MAX of them, and when the attempt is over (`seal`), they become a Parquet part and leave
the memory, so neither memory nor what a restart reads grows with an attempt's age. Nothing acknowledged can be lost: the journal
holds the raw bytes first. A killed server finds the head file again; after a crash of the whole machine, which may cost that
file its unsynced end or leave garbage there, it is cut at its first bad line and `rebuild` appends each unsealed attempt's
journal anew; what is already here is dropped by its key (attempt, rank, step, metric name).
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice, takewhile
from pathlib import Path
from threading import RLock
from typing import Any, Final

from phalanx.core.errors import PhalanxError, StoreUnavailable
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.core.records import Metric, StepRecord
from phalanx.core.views import StepPage
from phalanx.record.telemetry import cursor, head_file
from phalanx.record.telemetry.columns import Columns, Key, Measurement, key_of
from phalanx.record.telemetry.head_file import disk
from phalanx.record.telemetry.journal import Journal, attempt_folder
from phalanx.record.telemetry.records import LINE_BYTES_MAX, decode
from phalanx.record.telemetry.segments import Segments
from phalanx.storage.atomic import write_atomic

PART_MAX: Final = 200_000
"""Measurements of one attempt in memory, at about 400 B each."""

PAGE_MAX: Final = 5_000
"""Measurements in one page, about 2 MB of JSON."""

_READ_BYTES: Final = 1024 * 1024
_BATCH: Final = 10_000
_NEVER: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class _Head:
    """What an attempt measured after its parts. Of the parts: the highest step of each (rank, name), and the newest step."""

    rows: Columns
    highest: Mapping[tuple[int, str], int]
    newest: StepRecord | None


class SeriesStore:
    """Measurements under `root`. Every method may be called from any thread."""

    def __init__(self, root: Path, on_progress: Callable[[], None] = lambda: None, part_max: int = PART_MAX) -> None:
        """`on_progress` is called now and then while a long head file is read."""
        self._root = root
        self._part_max = part_max
        self._on_progress = on_progress
        self._lock = RLock()
        self._segments = Segments()
        self._heads: dict[AttemptId, _Head] = {}
        self._cut: set[AttemptId] = set()
        root.mkdir(parents=True, exist_ok=True)

    def append(self, attempt: AttemptId, records: Iterable[Measurement]) -> int:
        """Add what is new; returns how many were. Also for a sealed attempt: what came late is sealed in at once."""
        with self._lock:
            sealed = self._is_sealed(attempt)
            head = self._open(attempt)
            fresh = [record for record in self._beyond(attempt, head, tuple(records)) if head.rows.add(record)]
            try:
                if fresh:
                    head_file.append(self._head_file(attempt), fresh)
            except StoreUnavailable:
                self._heads.pop(attempt, None)  # memory must not know what the disk does not: it is read again next time
                raise
            if sealed:
                self._settle(attempt)
            elif len(head.rows) >= self._part_max:
                self._roll(attempt)
            return len(fresh)

    def seal(self, attempt: AttemptId) -> None:
        """The attempt is over: write its last part and free its memory. Answers stay what they were. May be repeated."""
        with self._lock:
            if attempt in self._heads or self._head_file(attempt).exists():
                self._open(attempt)
                self._settle(attempt)

    def forget(self, attempt: AttemptId) -> None:
        """Removes everything of an attempt that is over. The newest part first, so that a crash leaves what reads as a series.
        Raises StoreUnavailable."""
        with self._lock:
            self._heads.pop(attempt, None)
            self._cut.discard(attempt)
            for path in (self._head_file(attempt), *reversed(self._parts(attempt))):
                with disk(path):
                    path.unlink(missing_ok=True)

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
            head = self._head(attempt)
            found = (head.newest, head.rows.newest_step()) if head else (self._segments.newest_step(self._parts(attempt)),)
            return max((one for one in found if one), key=lambda one: (one.step, -one.rank), default=None)

    def step_before(self, attempt: AttemptId, newest: StepRecord, steps: int) -> StepRecord | None:
        """The record of the same rank that is `steps` before `newest`, or the nearest after that; None where no other is in
        memory, as of an attempt that is over."""
        with self._lock:
            head = self._head(attempt)
            if head is None:
                return None
            since = newest.step - steps
            last = head.newest  # of the parts: the only one of them that is at hand
            at_hand = last if last is not None and last.rank == newest.rank and last.step >= since else None
            found = at_hand or head.rows.oldest_step(newest.rank, since)
        return found if found is not None and found.step < newest.step else None

    def steps(self, attempt: AttemptId) -> list[StepRecord]:
        """Every step record in arrival order, as the ledger wants them."""
        return [record for record in self._all(attempt) if isinstance(record, StepRecord)]

    def metrics(self, attempt: AttemptId) -> list[Metric]:
        """Every named metric in arrival order."""
        return [record for record in self._all(attempt) if isinstance(record, Metric)]

    def asked(self, attempt: AttemptId, query: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        """What a query in SQL, of ours, answers of an attempt's measurements, which it calls `rows`, by SCHEMA's names."""
        with self._lock:
            head = self._head(attempt)
            return self._segments.asked(self._parts(attempt), head.rows.table() if head and len(head.rows) else None, query, values)

    def is_sealed(self, attempt: AttemptId) -> bool:
        """Whether nothing of the attempt is in memory any more."""
        with self._lock:
            return self._is_sealed(attempt)

    def parts_sealed(self, attempt: AttemptId) -> int:
        """Of how many parts it is, of an attempt of which nothing is in memory any more; else 0."""
        with self._lock:
            return len(self._parts(attempt)) if self._is_sealed(attempt) else 0

    def is_whole(self, attempt: AttemptId) -> bool:
        """Whether everything that was appended is still here; else the journal has it."""
        with self._lock:
            self._head(attempt)
            return attempt not in self._cut

    def is_of(self, boot: str) -> bool:
        """Whether `note_boot` was called in this boot of the machine, and for this very folder, not for one that it was copied
        from: then nothing that was written can have been lost."""
        try:
            return bool(boot) and self._boot_file().read_text(encoding="utf-8") == self._boot_mark(boot)
        except (OSError, UnicodeDecodeError):
            return False

    def note_boot(self, boot: str) -> None:
        """Everything that the journal had is here now. Without space for this line the next start reads more, no more."""
        with suppress(PhalanxError, OSError):
            write_atomic(self._boot_file(), self._boot_mark(boot).encode(), 0o600)

    def _boot_file(self) -> Path:
        return self._root / "boot"

    def _boot_mark(self, boot: str) -> str:
        folder = self._root.stat()
        return f"{boot} {folder.st_dev} {folder.st_ino}\n"

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
        head, parts = self._head(attempt), self._parts(attempt)
        base = head.rows.base if head else self._segments.count(parts)
        records = self._segments.records(parts, start, limit, rank) if start < base else []
        if head and len(records) < limit:
            records += head.rows.records(max(start, base), rank=rank, limit=limit - len(records))
        end = base + (len(head.rows) if head else 0)
        cut = len(records) == limit
        return records, records[-1][0] + 1 if cut else max(start, end)

    def _is_sealed(self, attempt: AttemptId) -> bool:
        return attempt not in self._heads and self._part(attempt, 0).exists() and not self._head_file(attempt).exists()

    def _head(self, attempt: AttemptId) -> "_Head | None":
        """The attempt's columns in memory, read from disk when it has a head file; None when nothing was ever appended."""
        if attempt not in self._heads and not self._head_file(attempt).exists():
            return None
        return self._open(attempt)

    def _open(self, attempt: AttemptId) -> "_Head":
        if attempt not in self._heads:
            head = self._after(self._parts(attempt))
            records = head_file.read(self._head_file(attempt), self._on_progress, lambda: self._cut.add(attempt))
            while batch := tuple(islice(records, _BATCH)):
                for record in self._beyond(attempt, head, batch):
                    head.rows.add(record)
            self._heads[attempt] = head
        return self._heads[attempt]

    def _after(self, parts: Sequence[Path]) -> "_Head":
        """An empty head behind `parts`."""
        rows = Columns(self._segments.count(parts))
        return _Head(rows, self._segments.highest(parts), self._segments.newest_step(parts))

    def _beyond(self, attempt: AttemptId, head: "_Head", records: Sequence[Measurement]) -> list[Measurement]:
        """Those of `records` that no part has. Records come in the order of their steps but for repeats, so few are looked up."""
        doubtful: dict[int, list[int]] = {}
        for record in records:
            rank, step, name = key_of(record)
            if step <= head.highest.get((rank, name), _NEVER):
                doubtful.setdefault(rank, []).append(step)
        known: set[Key] = set()
        for rank, steps in doubtful.items():
            known |= self._segments.keys(self._parts(attempt), rank, min(steps), max(steps))
        return [record for record in records if key_of(record) not in known]

    def _write_part(self, attempt: AttemptId) -> None:
        """Part first, then the head file goes: a crash in between leaves both, and a key counts once."""
        rows = self._heads[attempt].rows
        if len(rows):
            self._segments.write(self._part(attempt, len(self._parts(attempt))), rows.table())

    def _roll(self, attempt: AttemptId) -> None:
        """The head is long enough to become a part. Its file stays, empty: the attempt goes on."""
        self._write_part(attempt)
        self._heads.pop(attempt)
        with disk(self._head_file(attempt)):
            os.truncate(self._head_file(attempt), 0)
        self._heads[attempt] = self._after(self._parts(attempt))

    def _settle(self, attempt: AttemptId) -> None:
        self._write_part(attempt)
        self._heads.pop(attempt)
        with disk(self._head_file(attempt)):
            self._head_file(attempt).unlink(missing_ok=True)

    def _parts(self, attempt: AttemptId) -> list[Path]:
        """In order of arrival."""
        return list(takewhile(Path.exists, (self._part(attempt, number) for number in count())))

    def _part(self, attempt: AttemptId, number: int) -> Path:
        return attempt_folder(self._root, attempt).with_name(f"{attempt}.part{number}.parquet" if number else f"{attempt}.parquet")

    def _head_file(self, attempt: AttemptId) -> Path:
        return attempt_folder(self._root, attempt).with_name(f"{attempt}.head")


def rebuild(
    series: SeriesStore,
    journal: Journal,
    attempts: Iterable[AttemptId],
    boot: str = "",
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Bring the series of unsealed `attempts` up to the journal: to be called once at the server's start.

    boot: names the present boot of the machine. Within one boot only what was torn is read again; what a killed server had not yet
    taken in at all, the ingest does.
    """
    nothing_lost = series.is_of(boot)
    for attempt in attempts:
        if series.is_sealed(attempt) or (nothing_lost and series.is_whole(attempt)):
            continue
        for rank in journal.ranks("records", attempt):
            offset = 0
            while data := journal.read("records", attempt, rank, offset, _READ_BYTES + LINE_BYTES_MAX):
                on_progress()
                decoded = decode(data, rank)
                series.append(attempt, decoded.measurements)
                if not decoded.consumed:
                    break
                offset += decoded.consumed
    if boot:
        series.note_boot(boot)


def _page(found: Sequence[tuple[AttemptId, Measurement]], following: str) -> StepPage:
    steps = [(attempt, record) for attempt, record in found if isinstance(record, StepRecord)]
    return StepPage(
        steps=tuple(record for _, record in steps),
        metrics=tuple(record for _, record in found if isinstance(record, Metric)),
        attempts=tuple(attempt for attempt, _ in steps),
        next=following,
    )
