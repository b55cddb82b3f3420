"""The process that makes a node's shims: it has imported what they need once, and forks itself for each attempt.

An interpreter's start and imports took 26 to 100 ms of CPU an attempt; a fork takes two. A shim made this way is alone with its
attempt as any other: a session of its own, its own descriptors, and it outlives this process, which ends with its agent.

Standard input is a socket of the agent's, SOCK_SEQPACKET. A message is the attempt's folder; with it come two descriptors: the
shim's standard input, and where it says that it has its attempt. The answer is the shim's pid with a pidfd, "0" when that shim is
gone already, or "!" and why there is none. Standard library only, one thread. It never holds a secret: values go through the
descriptor.
"""

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from phalanx.operate.agent import own_pids
from phalanx.operate.agent.gang import ranks  # noqa: F401 - for the shims of gangs, which would take 15 ms to import it each
from phalanx.operate.agent.shim import CANNOT_START, serve

PATH_BYTES_MAX: Final = 8192
NAME: Final = b"phalanx-shims"
SHIM: Final = b"phalanx-shim"
_STDIN: Final = 0


def command(attempts: Path) -> list[str]:
    """How to start one for the attempts below that folder, which its shims show in their command line."""
    root, shim = Path(__file__).parents[3], Path(__file__).with_name("shim.py")
    start = f"import sys; sys.path.append({str(root)!r}); from phalanx.operate.agent.fork_server import main; main()"
    return [sys.executable, "-I", "-S", "-c", start, str(shim), f"{attempts}/"]


def main() -> None:
    """Until the agent's end of the socket closes."""
    own_pids.set_name(NAME)
    agent = socket.socket(fileno=os.dup(_STDIN))
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, _STDIN)
    os.close(nothing)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects them; the agent holds a pidfd
    gc.freeze()  # else the first collection in each shim would copy all that was imported
    while True:
        path, given, _, _ = socket.recv_fds(agent, PATH_BYTES_MAX, 2, socket.MSG_CMSG_CLOEXEC)
        if not path:
            return
        try:
            _answer(agent, Path(os.fsdecode(path)), given)
        finally:
            for one in given:
                os.close(one)


def _answer(agent: socket.socket, folder: Path, given: Sequence[int]) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        agent.send(f"!{error.strerror}".encode())
        return
    if pid == 0:
        agent.close()
        _become_shim(folder, *given)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        agent.send(b"0")
        return
    socket.send_fds(agent, [str(pid).encode()], [handle])
    os.close(handle)


def _become_shim(folder: Path, stdin: int, claimed: int) -> NoReturn:
    code = CANNOT_START
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        own_pids.set_name(SHIM)
        os.dup2(stdin, _STDIN)
        os.close(stdin)
        log = os.open(folder / "shim.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        serve(folder, claimed)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may come back into the server's loop
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)
