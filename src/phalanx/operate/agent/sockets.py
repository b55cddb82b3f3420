"""Where unix sockets live: in the home, or in a short private folder when the home's path is too long for an address."""

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError
from phalanx.core.ids import AttemptId

_FOLDER_BYTES_MAX: Final = 80
"""An address holds 107 bytes and a zero; our longest name below it has 22."""


def socket_folder(home: Path, short: Path = Path("/tmp")) -> Path:  # noqa: S108 - made private and checked below
    """The folder for this home's sockets, mode 0700, the same one each time. Raises SetupError when a stranger owns it."""
    folder = home / "run"
    if len(os.fsencode(folder)) > _FOLDER_BYTES_MAX:
        folder = short / f"phalanx-{os.getuid()}-{hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise SetupError("sockets", str(folder), "remove it: it is not a folder of this user")
    folder.chmod(0o700)
    return folder


def agent_socket(folder: Path) -> Path:
    return folder / "agent.sock"


def leave_sockets(folder: Path) -> None:
    """As an agent ends: its own is removed, and the folder unless shims still listen there. `socket_folder` makes it anew."""
    with contextlib.suppress(OSError):
        agent_socket(folder).unlink(missing_ok=True)
        folder.rmdir()


def shim_socket(folder: Path, attempt: AttemptId) -> Path:
    return folder / f"{hashlib.sha256(attempt.encode()).hexdigest()[:16]}.sock"


def door_folder(folder: Path, attempt: AttemptId) -> Path:
    """Of the sockets that ranks may reach which are kept apart: it alone is where they see it."""
    return folder / hashlib.sha256(attempt.encode()).hexdigest()[:16]


def door_socket(door: Path) -> Path:
    """Where the agent hears those ranks."""
    return door / "agent"


def door_gang(door: Path) -> Path:
    return door / "gang"


def gang_socket(shim: Path) -> Path:
    """Of the coordinator in that shim."""
    return shim.with_suffix(".gang")


def terminal_socket(shim: Path, name: str = "") -> Path:
    """Of the job's terminal, or of the command of that name which runs beside its ranks."""
    return shim.with_suffix(f".x{name}" if name else ".tty")


def remove_shim_sockets(shim: Path) -> None:
    """Of a shim that is gone."""
    for path in (shim, *shim.parent.glob(f"{shim.stem}.*")):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
