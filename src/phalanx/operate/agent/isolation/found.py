"""What this machine allows for keeping jobs apart, found by trying each thing in a process that ends with it.

The trial is a program of its own, standard library only: whoever asks may have threads, and what it tries must not stick.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from phalanx.core import isolation as names
from phalanx.operate.agent import own_pids
from phalanx.operate.agent.isolation import calls, kernel

TRIAL_UID: Final = 199_999
"""Of nobody, and beside the pool."""
TRIAL_S_MAX: Final = 60.0


def found() -> Mapping[str, str]:
    """Each name of `core.isolation`, control groups left out, with '' where it is possible and else why not."""
    root = str(Path(__file__).parents[4])
    start = f"import sys; sys.path.append({root!r}); from phalanx.operate.agent.isolation.found import trial; trial()"
    try:
        ended = subprocess.run([sys.executable, "-I", "-S", "-c", start], stdin=subprocess.DEVNULL, capture_output=True,
                               timeout=TRIAL_S_MAX, check=True, cwd="/")  # fmt: skip
        said = json.loads(ended.stdout)
        return {name: str(said[name]) for name in _TRIALS}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        return dict.fromkeys(_TRIALS, f"cannot be tried: {error}")


def trial() -> None:
    """The program: writes the answers to standard output."""
    sys.stdout.write(json.dumps({name: _tried(one) for name, one in _TRIALS.items()}))


def _tried(one: Callable[[], None]) -> str:
    """'' when a child could do it, else what it says."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        said = "ended without a word"
        try:
            os.close(told)
            one()
            said = ""
        except OSError as error:
            said = error.strerror or str(error)
        finally:
            os.write(tell, said.encode() or b"\0")
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        said_bytes = pipe.read()
    os.waitpid(child, 0)
    return "" if said_bytes == b"\0" else said_bytes.decode(errors="replace") or "ended without a word"


def _uids() -> None:
    kernel.become(TRIAL_UID)


def _mounts() -> None:
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)  # noqa: S108 - of this process alone


def _pids() -> None:
    if own_pids.enter() is None:
        raise OSError("a PID namespace with a /proc of its own is not permitted")


def _calls() -> None:
    kernel.no_new_privileges()
    kernel.refuse_calls(calls.refusals())
    with contextlib.suppress(PermissionError):
        kernel.unshare(kernel.CLONE_NEWUSER)
        raise OSError("the filter does not hold")


def _devices() -> None:
    """A bound node must also be usable: not so where /dev is of another user namespace."""
    _mounts()
    place = tempfile.mkdtemp(dir="/tmp")
    node = f"{place}/null"
    Path(node).touch()
    kernel.mount("/dev/null", node, None, kernel.MS_BIND)
    Path(node).write_bytes(b"x")
    kernel.mount("devpts", place, "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")


def _users() -> None:
    kernel.unshare(kernel.CLONE_NEWUSER)


_TRIALS: Final[Mapping[str, Callable[[], None]]] = {
    names.UIDS: _uids,
    names.MOUNTS: _mounts,
    names.PIDS: _pids,
    names.CALLS: _calls,
    names.DEVICES: _devices,
    names.SCOPES: kernel.scope,
    names.USERS: _users,
}
