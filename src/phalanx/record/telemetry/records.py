"""Bytes of a rank's record file to facts. What a rank writes is not trusted: a bad line is reported and skipped, never raised."""

import json
import re
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.checkpoints import is_store_url
from phalanx.core.health import ReadTrouble
from phalanx.core.records import CheckpointCommitted, Metric, ModelSaved, RankFact, RankRecord, Recovered, Resumed, StepRecord

LINE_BYTES_MAX: Final = 64 * 1024
"""A step record is about 500 bytes; a model's lineage a few thousand. A longer line is not a record."""

INTEGER_MAX: Final = 2**53
"""Beyond it JSON readers disagree about integers, and no count or Unix time of ours comes near."""

PROBLEMS_MAX: Final = 20
"""Bad lines described one by one; a file full of garbage must not fill the log as well."""

_RANKS_MAX: Final = 8192
"""Of a list in one record: about as many as a line has room for."""

_PID_MAX: Final = 2**22
"""Linux gives no larger one."""

_FROM_ZERO: Final = Metric | Resumed | Recovered | ReadTrouble
"""A held-out loss, and a start from nothing, are at step 0."""

_NAME_CHARS_MAX: Final = 200
_PATH_CHARS_MAX: Final = 4096
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_HEX: Final = re.compile(r"[-+.0-9A-Za-z]{0,32}")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Complete lines of a byte range. `consumed`: bytes up to where decoding goes on when more has arrived.

    num_bad: lines that were no record; `problems` describes the first of them.
    """

    records: tuple[RankRecord, ...]
    consumed: int
    num_bad: int
    problems: tuple[str, ...]

    @property
    def measurements(self) -> tuple[StepRecord | Metric, ...]:
        """What belongs into the series."""
        return tuple(record for record in self.records if isinstance(record, StepRecord | Metric))

    @property
    def facts(self) -> tuple[RankFact, ...]:
        """What becomes an event of the job."""
        return tuple(record for record in self.records if not isinstance(record, StepRecord | Metric))


def decode(data: bytes, rank: int, line_bytes_max: int = LINE_BYTES_MAX) -> Decoded:
    """Records of `rank` in the complete lines of `data`, which starts at a line's beginning.

    An incomplete last line is left for later, unless it is already too long to be a record: then it is dropped.
    """
    complete = data.rfind(b"\n") + 1
    records: list[RankRecord] = []
    problems: list[str] = []
    for line in data[:complete].split(b"\n"):
        if line.strip():
            found = _decode_line(line, rank, line_bytes_max)
            if isinstance(found, str):
                problems.append(found)
            else:
                records.append(found)
    if len(data) - complete > line_bytes_max:
        problems.append(f"a line over {line_bytes_max} bytes without an end")
        complete = len(data)
    return Decoded(tuple(records), complete, len(problems), tuple(problems[:PROBLEMS_MAX]))


def _decode_line(line: bytes, rank: int, line_bytes_max: int) -> RankRecord | str:
    """The record, or what is wrong with it."""
    if len(line) > line_bytes_max:
        return f"a line of {len(line)} bytes, over {line_bytes_max}"
    try:
        record: RankRecord = wire.loads(RankRecord, _with_nan(line))
    except (ValueError, RecursionError) as error:
        return f"{error}: {_shown(line)}"
    if record.rank != rank:
        return f"rank {record.rank} in the file of rank {rank}: {_shown(line)}"
    problem = _out_of_range(record)
    return f"{problem}: {_shown(line)}" if problem else record


_NAN_FIELDS: Final = ("loss", "grad_norm", "lr", "tokens_per_s", "mfu", "value")


def _with_nan(line: bytes) -> bytes:
    """A loss that is no number is written as null by JSON writers that know no NaN; a diverged run is exactly when it matters."""
    if b"null" not in line:
        return line
    data = json.loads(line)
    if not isinstance(data, dict):
        return line
    return json.dumps({key: "NaN" if value is None and key in _NAN_FIELDS else value for key, value in data.items()}).encode()


def _out_of_range(record: RankRecord) -> str:
    for name, value in _values(record):
        if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX:
            return f"{name}: beyond 2**53"
    least = 0 if isinstance(record, _FROM_ZERO) else 1
    if record.step < least:
        return f"step {record.step}: the first is {least}"
    if isinstance(record, Recovered):
        return _odd_recovery(record)
    if isinstance(record, Metric) and not 0 < len(record.name) <= _NAME_CHARS_MAX:
        return f"name: {len(record.name)} characters, at most {_NAME_CHARS_MAX}"
    if isinstance(record, StepRecord) and not _HEX.fullmatch(record.loss_hex):
        return "loss_hex: not a number as float.hex writes it"
    if isinstance(record, ModelSaved) and not _is_path(record.path):
        return "path: not an absolute path"
    if isinstance(record, CheckpointCommitted) and not (_is_path(record.path) or _is_url(record.path)):
        return "path: neither an absolute path nor a URL of a store"
    return ""


def _odd_recovery(record: Recovered) -> str:
    if len(record.replaced) != len(record.pids):
        return f"pids: {len(record.pids)} for {len(record.replaced)} replaced ranks"
    for name, ranks in (("replaced", record.replaced), ("absent", record.absent)):
        if len(ranks) > _RANKS_MAX or len(set(ranks)) != len(ranks):
            return f"{name}: {len(ranks)} ranks, at most {_RANKS_MAX} and each once"
        if any(not 0 <= rank <= INTEGER_MAX for rank in ranks):
            return f"{name}: a rank below 0 or beyond 2**53"
    if any(not 0 < pid <= _PID_MAX for pid in record.pids):
        return f"pids: one outside 1 to {_PID_MAX}"
    return ""


def _is_path(text: str) -> bool:
    """Absolute, of a length that a file system takes, without '..' and control characters: others read it as it stands."""
    path = PurePosixPath(text)
    return path.is_absolute() and ".." not in path.parts and len(text) <= _PATH_CHARS_MAX and not _CONTROL.search(text)


def _is_url(text: str) -> bool:
    return len(text) <= _PATH_CHARS_MAX and is_store_url(text)


def _values(record: RankRecord) -> list[tuple[str, Any]]:
    return [(part.name, getattr(record, part.name)) for part in fields(record)]


def _shown(line: bytes) -> str:
    return repr(line[:80])
