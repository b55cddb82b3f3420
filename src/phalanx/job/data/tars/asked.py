"""What the command line asks for, done."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from phalanx.core.data_asked import IndexAsked, PackAsked
from phalanx.core.errors import DataError
from phalanx.job.data.tars.ingest import index
from phalanx.job.data.tars.pack import ENDINGS, pack

_CLASSES_BYTES_MAX: Final = 64 * 2**20


def make(asked: IndexAsked | PackAsked, progress: Callable[[str, int, int], None]) -> Path:
    """The folder of the data set that was made. progress: told the stage, and how many bytes are done, of how many."""
    match asked:
        case IndexAsked():
            classes = None if asked.classes is None else _names(asked.classes)
            return index(asked.paths, asked.out, asked.processes, lambda *at: progress("indexing", *at), asked.force, classes)
        case PackAsked():
            endings = tuple(ending.lower().lstrip(".") for ending in asked.endings) or ENDINGS
            return pack(
                asked.folder, asked.out, asked.shard_mib * 2**20, endings, lambda *at: progress("packing", *at), asked.force
            )


def _names(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _CLASSES_BYTES_MAX:
            raise DataError("classes", str(path), "is too large for a list of names; write one class on a line")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise DataError("classes", str(path), f"cannot be read ({reason}); name a file with one class on a line") from error
