"""Small files by which ranks are told something, in folders that ranks can write to: whatever lies there may be a rank's doing.

Nothing that a rank puts there holds the agent up or ends it: no pipe is waited at, no link followed, nothing large read.
"""

import functools
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, Final

import structlog

from phalanx.core import wire
from phalanx.core.errors import SetupError
from phalanx.storage.atomic import write_atomic

TOLD_BYTES_MAX: Final = 2**16
"""The longest plan, of FAULTS_MAX faults, is about 40 KiB, and the longest request for traces 10."""
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

_log = structlog.get_logger()


def told(what: str, kind: Any, path: Path) -> Any | None:
    """The `kind` that lies there; None where nothing does, or nothing that could be one, which is noted once as `what`."""
    try:
        return wire.loads(kind, read_told(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _note(f"{what}_unreadable", path, str(error))
        return None


def tell(what: str, path: Path, data: bytes) -> None:
    """Durable, in place of whatever lies there. Where ranks let nothing be put there, that is noted once. Raises
    StoreUnavailable."""
    try:
        if path.is_dir() and not path.is_symlink():  # put aside at once, however much is in it; it goes with the attempt
            path.rename(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        write_atomic(path, data)
    except (SetupError, OSError) as error:
        _note(f"{what}_unwritable", path, str(error))


def read_told(path: Path) -> bytes:
    """Raises OSError, and ValueError for what is no regular file or over TOLD_BYTES_MAX."""
    handle = os.open(path, _READ)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is no regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(TOLD_BYTES_MAX + 1)
    finally:
        os.close(handle)
    if len(data) > TOLD_BYTES_MAX:
        raise ValueError(f"it has more than {TOLD_BYTES_MAX} bytes")
    return data


@functools.lru_cache(maxsize=256)
def _note(event: str, path: Path, error: str) -> None:
    """Once: it is looked at again and again."""
    _log.warning(event, path=str(path), error=error)
