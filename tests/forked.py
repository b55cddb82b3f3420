"""Processes that are forked from one which has imported their program, for tests that start the same one dozens of times.

A forked process is one of its own in all else: memory, environment, standard error, signals, and an end in which Python looks for
what was left open. Where a command line or its start is what a test is about, the test starts it as users do.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

_ROOT: Final = Path(__file__).parents[1]
_ASKED_BYTES_MAX: Final = 1 << 20
_SERVE: Final = "import sys; sys.path.insert(0, sys.argv[1]); from tests.forked import serve; sys.exit(serve(*sys.argv[2:]))"


class Forked:
    """One process, with what a `Popen` is asked for in tests."""

    def __init__(self, pid: int, said: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._said = said

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or the negative number of the signal that ended it. Raises TimeoutExpired."""
        if self.returncode is None:
            self._said.settimeout(timeout)
            try:
                heard = self._said.recv(64)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from error
            self._said.close()
            self.returncode = int(heard)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing once it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Forks:
    """Starts processes of Python with `options` that call `function`, which is `module:name`, and have imported `modules`."""

    def __init__(self, function: str, modules: Sequence[str], options: Sequence[str]) -> None:
        self._function, self._modules, self._options = function, modules, options
        self._lock = threading.Lock()
        self._asking: socket.socket | None = None

    def start(
        self,
        words: Sequence[str],
        argv: Sequence[str],
        err: IO[bytes],
        out: IO[bytes] | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> Forked:
        """words: what the function is called with. argv: the command line that the process shall think it was started by. Without
        `out` it has our standard output."""
        asked = {"words": list(words), "argv": list(argv), "env": dict(env), "cwd": str(Path.cwd())}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with self._lock, theirs:
            descriptors = [theirs.fileno(), 1 if out is None else out.fileno(), err.fileno()]
            socket.send_fds(self._server(), [json.dumps(asked).encode()], descriptors)
        return Forked(int(ours.recv(64)), ours)

    def _server(self) -> socket.socket:
        """It ends with this process, whose end of the socket is closed then."""
        if self._asking is None:
            self._asking, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            words = [str(_ROOT), str(served.fileno()), self._function, *self._modules]
            with served:
                argv = [sys.executable, *self._options, "-c", _SERVE, *words]
                serving = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[served.fileno()])
            serving.returncode = 0  # nobody waits for it, and Popen need not warn of that
        return self._asking


def serve(descriptor: str, function: str, *modules: str) -> object:
    """In the process that others are forked from. In those it returns as well, once the function has."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # else a forked process's first collection copies every page of them
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that have ended
    with socket.socket(fileno=int(descriptor)) as asked:
        while True:
            words, (*descriptors,), _, _ = socket.recv_fds(asked, _ASKED_BYTES_MAX, 3)
            if not words:
                return 0
            if os.fork() == 0:
                break
            for one in descriptors:
                os.close(one)
    said, *streams = descriptors
    _wait_above(said, streams)
    return _become(json.loads(words), function, streams)


def _wait_above(said: int, streams: Sequence[int]) -> None:
    """Forks again. The parent tells the number of its child and how it ended; the child alone returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(said)
        return
    for one in streams:
        os.close(one)
    with socket.socket(fileno=said) as telling, contextlib.suppress(BrokenPipeError):  # whoever asked may be gone
        telling.send(b"%d" % pid)
        telling.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(asked: Mapping[str, Any], function: str, streams: Sequence[int]) -> object:
    for number, one in enumerate(streams, 1):
        os.dup2(one, number)
        os.close(one)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.orig_argv[:] = asked["argv"]
    module, _, name = function.partition(":")
    called = getattr(importlib.import_module(module), name)
    return called(*asked["words"])
