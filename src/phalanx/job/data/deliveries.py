"""What a rank was really given, batch by batch, in a file that only grows: the evidence for `exactly_once`.

A file a rank and generation, of frames: a head that says whose it is, then a frame a batch with a row a sample: which one was asked
of the data, and the XXH3 of the tokens that came. A frame is one write, so that a kill at any point leaves whole ones and a torn
end, which readers drop. A disk that is full costs evidence, never the step: how much, is counted in a frame that has had its
place from the beginning.
"""

import contextlib
import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from phalanx.core import wire
from phalanx.core.errors import DataError, StoreUnavailable
from phalanx.core.training_data import DataSource
from phalanx.job.data.order import Indices
from phalanx.job.data.order_facts import OrderFacts
from phalanx.job.data.quarantine import SetAside
from phalanx.storage.atomic import make_folders, refused

FOLDER: Final = "deliveries"
"""Beside the job's checkpoints."""

Fields = tuple[str, ...] | None
"""Those that were read of samples in tars, sorted; None for all."""

FORMAT: Final = 1
ROW: Final = np.dtype([("source", "<u4"), ("sample", "<i8"), ("content", "<u8")])
_FRAME: Final = struct.Struct("<BIQ")  # kind, length, XXH3 of what follows
_BATCH: Final = struct.Struct("<qI")  # step, rows
_COUNT: Final = struct.Struct("<Q")
_HEAD, _ASIDE, _ROWS, _LOST = 1, 2, 3, 4
_ENDING: Final = ".rows"
_NONE: Final = (
    "ranks of a recipe record from their first step on, unless its `data` says `record: false`, and a script does what it gives a"
    " DeliveryLog; name the folder of a job that recorded"
)
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Whose deliveries these are. attempt, generation: later ones supersede the steps that they make again. start: the first step,
    counted from 0. data: manifest hash of each source. sequence, asked: how samples were made of it, and where it lay. Of samples
    in tars sequence is 0."""

    attempt: int
    generation: int
    rank: int
    world_size: int
    start: int
    order: OrderFacts
    data: Mapping[str, str]
    sequence: int
    asked: DataSource | None = None
    fields: Fields = None
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Of one rank in one generation. batches: rows of type `ROW` by step, counted from 0; of a step that was delivered again, the
    last. superseded: batches that were delivered again, or lie behind one that was. torn_bytes: of a frame that was cut short.
    lost: batches that were delivered and could not be recorded."""

    head: Head
    set_aside: tuple[SetAside, ...]
    batches: Mapping[int, NDArray[Any]]
    superseded: int = 0
    torn_bytes: int = 0
    lost: int = 0


class DeliveryLog:
    """Records one rank's deliveries. lost: batches that the disk did not take. told: of the first of them, why, and as of which
    step, counted from 0.

    Raises DataError where that very rank of that generation has recorded already, SetupError or StoreUnavailable where the folder
    cannot be written, or has no room for the head: nothing that follows would count without it.
    """

    def __init__(self, folder: Path, head: Head, told: Callable[[int, str], object] = lambda step, why: None) -> None:
        self.lost = 0
        self._told = told
        self._aside: tuple[SetAside, ...] = ()
        self._knows_aside = True
        path = folder / f"{head.attempt:05d}-{head.generation:05d}-{head.rank:05d}{_ENDING}"
        try:
            make_folders(folder)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError as error:
            fix = f"{path} has the deliveries of this rank already; give each attempt a number of its own"
            raise DataError("attempt", head.attempt, fix) from error
        except OSError as error:
            raise refused(path, error) from error
        self._end = 0
        self._why = ""
        if not self._append(_HEAD, wire.dumps(Head, head).encode()):
            self.close()
            path.unlink(missing_ok=True)
            raise StoreUnavailable(f"{path}: cannot be written ({self._why}); free space there")
        self._counted_at = self._end
        self._has_count = self._append(_LOST, _COUNT.pack(0))

    def delivered(self, step: int, source: Indices, sample: Indices, content: NDArray[np.uint64]) -> None:
        """A batch, before it is used. step: counted from 0. content: `content_of` what came.

        Where the disk did not take what was set aside before it, the batch is lost too: it would look like one read wrongly.
        """
        rows = np.empty(len(sample), dtype=ROW)
        rows["source"], rows["sample"], rows["content"] = source, sample, content
        if not self._knows_aside or not self._append(_ROWS, _BATCH.pack(step, len(rows)) + rows.tobytes()):
            self._lose(step)

    def set_aside(self, aside: tuple[SetAside, ...]) -> None:
        """From now on these are not read; said before each batch. Nothing where that is known."""
        if aside != self._aside or not self._knows_aside:
            self._knows_aside = self._append(_ASIDE, wire.dumps(tuple[SetAside, ...], aside).encode())
            self._aside = aside

    def close(self) -> None:
        """May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, kind: int, payload: bytes) -> bool:
        frame = _framed(kind, payload)
        try:
            if os.pwrite(self._file, frame, self._end) == len(frame):
                self._end += len(frame)
                return True
            self._why = os.strerror(errno.ENOSPC)
        except OSError as error:
            self._why = str(error.strerror)
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._end)  # half a frame would hide all that follow
        return False

    def _lose(self, step: int) -> None:
        """One batch, which is counted where a full disk has room: in place of the count before."""
        self.lost += 1
        if self._has_count:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, _framed(_LOST, _COUNT.pack(self.lost)), self._counted_at)
        if self.lost == 1:
            _log.warning("deliveries cannot be recorded (%s): an audit will miss them", self._why)
            self._told(step, self._why)


def _framed(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload), xxh3_64_intdigest(payload)) + payload


def content_of(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """XXH3 of each sample's tokens, which are C-contiguous."""
    return np.array([xxh3_64_intdigest(row) for row in tokens], dtype=np.uint64)


def read_deliveries(folder: Path, none: str = "") -> list[Deliveries]:
    """All that is recorded below a folder, by attempt, generation and rank. Raises DataError for none, and for a damaged one.
    none: why there may be none, where that is known."""
    paths = sorted(folder.glob(f"*{_ENDING}")) if folder.is_dir() else []
    found = [one for path in paths if (one := read_file(path)) is not None]
    if not found:
        what = "holds no records of deliveries" + (", not even one whole head" if paths else "")
        raise DataError("deliveries", str(folder), f"{what}: {none or _NONE}")
    return found


def read_file(path: Path) -> Deliveries | None:
    """None where a kill left not even a head. The rows are read when they are asked for."""
    try:
        size = path.stat().st_size
        data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r") if size else np.zeros(0, dtype=np.uint8)
    except OSError as error:
        raise DataError(path.name, str(path), f"cannot be read ({error.strerror})") from error
    read = _Read(path, data.data)
    read.all()
    if read.head is None:
        return None
    return Deliveries(read.head, read.aside, _Lazy(data, read.places), read.superseded, read.torn_bytes, read.lost)


class _Read:
    """One file, frame by frame."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self._path, self._data = path, data
        self.head: Head | None = None
        self.aside: tuple[SetAside, ...] = ()
        self.places: dict[int, tuple[int, int]] = {}
        self.superseded = 0
        self.torn_bytes = 0
        self.lost = 0
        self._newest = -1

    def all(self) -> None:
        at = 0
        while at < len(self._data):
            end = self._frame(at)
            if end == at:
                self.torn_bytes = len(self._data) - at
                return
            at = end

    def _frame(self, at: int) -> int:
        """Where it ends; `at` where it is torn."""
        begin = at + _FRAME.size
        if begin > len(self._data):
            return at
        kind, length, wanted = _FRAME.unpack_from(self._data, at)
        end: int = begin + length
        payload = self._data[begin:end]
        if end > len(self._data) or xxh3_64_intdigest(payload) != wanted:
            if end < len(self._data):
                raise DataError(self._path.name, f"byte {at}", f"{self._path} is damaged there; restore it from a copy")
            return at
        match kind:
            case 1:
                self.head = _head(self._path, bytes(payload))
            case 2:
                self.aside = wire.loads(tuple[SetAside, ...], bytes(payload))
            case 3:
                self._rows(begin, *_BATCH.unpack_from(payload))
            case 4:
                (self.lost,) = _COUNT.unpack_from(payload)
        return end

    def _rows(self, begin: int, step: int, count: int) -> None:
        if step <= self._newest:
            again = [one for one in range(step, self._newest + 1) if one in self.places]
            self.superseded += len(again)
            for one in again:
                del self.places[one]
        self._newest = step
        self.places[step] = (begin + _BATCH.size, count)


def _head(path: Path, payload: bytes) -> Head:
    try:
        version: _Version = wire.loads(_Version, payload)
        if version.format > FORMAT:
            fix = f"{path} was written by a newer Phalanx (this one reads {FORMAT}); upgrade it"
            raise DataError("format of deliveries", version.format, fix)
        head: Head = wire.loads(Head, payload)
    except ValueError as error:
        raise DataError(path.name, str(path), f"is no record of deliveries ({error})") from error
    return head


@dataclass(frozen=True, slots=True)
class _Version:
    """Read before all else, since a newer format may have any other field."""

    format: int


class _Lazy(Mapping[int, NDArray[Any]]):
    """Rows by step, in the file until they are asked for."""

    def __init__(self, data: NDArray[np.uint8], places: Mapping[int, tuple[int, int]]) -> None:
        self._data, self._places = data, places

    def __getitem__(self, step: int) -> NDArray[Any]:
        begin, count = self._places[step]
        return np.frombuffer(self._data, dtype=ROW, count=count, offset=begin)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
