"""A head file: measurements as JSON lines in arrival order, written by one process at a time, read again after a crash."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from phalanx.core import wire
from phalanx.core.errors import StoreUnavailable
from phalanx.core.records import Metric, RankRecord, StepRecord
from phalanx.record.telemetry.columns import Measurement

_LINES_A_PROGRESS: Final = 10_000


def append(path: Path, records: Sequence[Measurement]) -> None:
    """Adds `records` at the end. Raises StoreUnavailable; then perhaps a part of them is there, the last line torn."""
    lines = "".join(f"{json.dumps(wire.plain(RankRecord, record))}\n" for record in records).encode()  # json knows NaN
    with disk(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)


def read(path: Path, on_progress: Callable[[], None], on_cut: Callable[[], None]) -> Iterator[Measurement]:
    """Its records; none when it does not exist. Raises StoreUnavailable.

    From the first line that is no record the file is cut off for good, so that the next one starts cleanly: a kill tears the last
    line, a power cut leaves blocks of zeros, and the journal has everything whole. `on_cut` is told.
    """
    if not path.exists():
        return
    good = 0
    with disk(path), path.open("rb") as file:
        for number, line in enumerate(file):
            if number % _LINES_A_PROGRESS == 0:
                on_progress()
            record = _record(line)
            if record is None:
                break
            good += len(line)
            yield record
    with disk(path):
        if good < path.stat().st_size:
            os.truncate(path, good)
            on_cut()


def _record(line: bytes) -> Measurement | None:
    try:
        record: RankRecord = wire.loads(RankRecord, line)
    except ValueError:
        return None
    return record if line.endswith(b"\n") and isinstance(record, StepRecord | Metric) else None


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """A disk that is full, read-only or gone is the world's, not a bug."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror or error}") from error
