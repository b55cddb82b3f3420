"""MDS to samples of ours: a tar whose samples have a field for each column."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from phalanx.core.errors import DataError
from phalanx.job.data.checked import path_of, whole
from phalanx.job.data.mds.encodings import ending, file_bytes
from phalanx.job.data.mds.read import MdsFolder, Row
from phalanx.job.data.place import building, check_out, move_into_place
from phalanx.job.data.standing import check_same
from phalanx.job.data.tars.ingest import Report
from phalanx.job.data.tars.manifest import FORMAT, commit
from phalanx.job.data.tars.writer import SHARD_BYTES_MAX, TarWriter
from phalanx.storage.atomic import refused

_ODD: Final = re.compile(r"[^a-z0-9_-]")


def import_samples(
    mds: Path, out: Path, shard_bytes_max: int = SHARD_BYTES_MAX, progress: Report | None = None, force: bool = False
) -> Path:
    """Makes the folder `out` of the samples of an MDS folder, in its order, keyed by their number. A column becomes the field
    COLUMN.ENDING, by its encoding.

    Raises DataError, also for damage by any hash that the index gives, StoreUnavailable (disk full), Conflict.
    """
    mds, out = path_of("mds", mds), Path(os.path.realpath(path_of("out", out)))
    whole("shard_bytes_max", shard_bytes_max)
    check_out(out, [mds], force)
    source = MdsFolder(mds)
    fields = _fields(source)
    parameters: dict[str, str | int] = {"made_by": "import-mds", "shard_bytes_max": shard_bytes_max}
    wanted = {"kind": "samples", "format": FORMAT, "parameters": parameters, "samples": source.index.samples}
    check_same(out, force, wanted)
    report, number, done = progress or (lambda *_: None), 0, 0
    try:
        with building(out, fresh=True) as folder, TarWriter(folder, shard_bytes_max) as writer:
            for data, rows in source.shards():
                for row in rows:
                    writer.add(f"{number:09d}", _converted(row, number, fields))
                    number += 1
                done += len(data)
                report(done, source.size_bytes)
            commit(folder, writer.finish((), {}, parameters))
            move_into_place(folder, out, force)
    except OSError as error:
        raise refused(out, error) from error
    return out


def _fields(source: MdsFolder) -> dict[str, tuple[str, Callable[[bytes], bytes]]]:
    """Of each column, the name of its field and what makes the field's bytes."""
    names: dict[str, str] = {}
    for column, encoding in source.columns.items():
        name = f"{_ODD.sub('_', column.lower())}.{ending(encoding)}"
        if name in names:
            fix = f"becomes the field {name}, as {names[name]} does; write the folder again with other names of columns"
            raise DataError("column", column, fix)
        names[name] = column
    return {column: (name, file_bytes(source.columns[column])) for name, column in names.items()}


def _converted(row: Row, number: int, fields: dict[str, tuple[str, Callable[[bytes], bytes]]]) -> dict[str, bytes]:
    made = {}
    for column, value in row.items():
        name, convert = fields[column]
        try:
            made[name] = convert(value)
        except ValueError as error:
            raise DataError(f"column {column}", f"sample {number}", f"is not what its encoding says ({error})") from error
    return made
