"""Compressed texts as they are read: in little memory, never without an end, and never in part."""

from collections.abc import Iterator
from typing import IO, Any, Final, Literal

from phalanx.core.errors import DataError, SetupError

Packing = Literal["", "gzip", "zstd"]

_ENDINGS: Final[dict[str, Packing]] = {".gz": "gzip", ".zst": "zstd"}
_CHUNK_BYTES: Final = 2**20

RATIO_MAX: Final = 200
"""Text packs to a third or a tenth, and logs that say one thing over and over to a hundredth. What packs better is made to fill
memories: gzip reaches 1,000, zstd far more."""

FREE_BYTES: Final = 64 * 2**20
"""Below it no ratio is too high: a small file of one letter is no harm."""


def packing_of(ending: str) -> Packing:
    """By the ending of a file's name, in small letters."""
    return _ENDINGS.get(ending, "")


def unpacked(file: IO[bytes], packing: Packing, name: str, packed_bytes: int) -> Iterator[bytes]:
    """The text in pieces, of a file with one or more members or frames. Raises DataError where it is damaged, ends too early, or
    grows out of all measure; SetupError without pyarrow."""
    library = _arrow()
    stream = library.CompressedInputStream(library.PythonFile(file, mode="r"), packing)
    done, bytes_max = 0, RATIO_MAX * packed_bytes + FREE_BYTES
    while True:
        try:
            piece: bytes = stream.read(_CHUNK_BYTES)
        except OSError as error:
            good = f"at least its first {done} bytes of text are good; " if done else ""
            fix = f"is damaged or cut off ({error}); {good}fetch or pack it again"
            raise DataError("paths", name, fix) from error
        if not piece:
            return
        done += len(piece)
        if done > bytes_max:
            raise DataError("paths", name, f"grows to over {RATIO_MAX} times its size; if it is no bomb, unpack it yourself")
        yield piece


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise SetupError("pyarrow", "not installed", "compressed files need it; run: pip install pyarrow") from error
    return pyarrow
