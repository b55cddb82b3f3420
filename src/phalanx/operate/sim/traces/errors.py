"""What is wrong with a trace, by file and line."""

from pathlib import Path

from phalanx.core.errors import DataError


class TraceError(DataError):
    """A trace, or one of its rows, is not acceptable. The field is the file's name, with the row's line where one is to blame."""

    @classmethod
    def at(cls, file: Path, line: int, value: object, fix: str) -> "TraceError":
        """About the row that begins in `line`, counted from 1 with the head."""
        return cls(f"{file.name}:{line}", value, fix)
