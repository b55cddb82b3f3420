"""Commands that a shim starts beside its ranks for somebody: in a rank's environment, each with a holder. Standard library only."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, Final, Protocol

FOLDER: Final = "execs"
"""Of the attempt: NAME.json is what to start, NAME.error why it could not be."""
BESIDE_MAX: Final = 64
_NAME: Final = re.compile(r"[0-9a-f]{1,16}")


class Spawns(Protocol):
    """The shim, as far as it is needed here."""

    folder: Path

    def spawn(self, entry: dict[str, Any]) -> "subprocess.Popen[bytes]": ...
    def is_told(self) -> bool: ...


class Beside:
    """Those that live."""

    def __init__(self, shim: Spawns) -> None:
        self._shim = shim
        self._alive: dict[int, subprocess.Popen[bytes]] = {}

    def begin(self, name: str) -> None:
        """Twice is once: its order is taken away first. What cannot be started leaves a word for who asked."""
        if _NAME.fullmatch(name) is None:
            return
        path = self._shim.folder / FOLDER / f"{name}.json"
        try:
            entry = json.loads(path.read_bytes())
            path.unlink()
            if self._shim.is_told() or len(self._alive) >= BESIDE_MAX:
                raise OSError("the job is being stopped" if self._shim.is_told() else f"{BESIDE_MAX} commands run in it already")
            child = self._shim.spawn(entry)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            with contextlib.suppress(OSError):
                path.with_suffix(".error").write_text(f"{getattr(error, 'strerror', None) or error}")
            return
        self._alive[child.pid] = child

    def took(self, pid: int) -> bool:
        """Whether that one, which has ended, is of these."""
        child = self._alive.pop(pid, None)
        if child is not None:
            child.returncode = 0  # collected by the shim, so Popen need not look for it
        return child is not None

    def signal(self, number: signal.Signals) -> None:
        for pid in self._alive:  # not collected yet, so the number still names this group
            with contextlib.suppress(OSError):
                os.killpg(pid, number)


def listener(path: str) -> socket.socket:
    """A socket that listens there for this user alone."""
    Path(path).unlink(missing_ok=True)
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        heard.bind(path)
        Path(path).chmod(0o600)
        heard.listen(16)
    except OSError:
        heard.close()
        raise
    return heard
