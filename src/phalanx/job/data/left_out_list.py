"""The file of `phalanx data prepare --left-out`: one from before stays until the new one is whole."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from phalanx.core.errors import DataError, SetupError
from phalanx.job.data.place import check_apart, not_made

BEGIN: Final = b'{"source": '
_FIELD: Final = "left_out"


@contextlib.contextmanager
def listed(path: Path | None, out: Path, paths: Sequence[str]) -> Iterator[IO[str] | None]:
    """The file, open to be written; what is no regular file, such as a pipe or a terminal, is written as it is.

    Raises DataError for one that would be among the inputs, or go with the folder `out`, or that is something else; SetupError
    where none can be made.
    """
    if path is None:
        yield None
        return
    real = Path(os.path.realpath(path))
    _check_out(path, real, out)
    check_apart(real, paths, _FIELD)
    file: IO[str]
    with contextlib.ExitStack() as stack:
        try:
            if path.exists() and not path.is_file():
                file = stack.enter_context(path.open("w", encoding="utf-8"))
            else:
                file = stack.enter_context(_replacing(real))
        except OSError as error:
            if not real.parent.exists():
                raise SetupError(_FIELD, str(path), f"its folder {real.parent} is not there; make it") from error
            raise not_made(_FIELD, path, error) from error
        yield file


def _check_out(path: Path, real: Path, out: Path) -> None:
    whole = Path(os.path.realpath(out))
    if whole in (real, *real.parents):
        raise DataError(_FIELD, str(path), f"lies inside --out {out}, which is replaced as a whole; name a place beside it")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[str]]:
    """A file beside it, which takes its name at the end. Raises OSError."""
    mode = 0o644
    if path.exists():
        mode = path.stat().st_mode & 0o777
        if not _is_list(path):
            raise DataError(_FIELD, str(path), "is a file that no `--left-out` made; name another")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            yield file
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _is_list(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(len(BEGIN))
    return not begin or begin == BEGIN
