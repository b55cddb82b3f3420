"""The agent's side of the fork server: a shim for an attempt, in two milliseconds."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from phalanx.operate.agent import fork_server

ANSWER_S_MAX: Final = 30.0
"""A fork takes milliseconds; a machine that is short of memory, longer."""

END_S_MAX: Final = 1.0
_ANSWER_BYTES: Final = 1024
_log = structlog.get_logger()


class Shim:
    """One that was forked. `claimed` can be read once it has its attempt, and when it is gone without."""

    def __init__(self, pid: int, handle: int, claimed: int) -> None:
        self.pid = pid
        self._handle = handle
        self.claimed = claimed

    def is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(0))

    def wait(self) -> None:
        """Returns when it is gone."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        poll.poll()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """Lets go of it; it goes on."""
        os.close(self._handle)
        os.close(self.claimed)


class ShimForks:
    """The fork server of an agent, started when it is needed and again when it has died. Safe from several threads."""

    def __init__(self, attempts: Path) -> None:
        self._attempts = attempts
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def warm(self) -> None:
        """Starts it before there is an attempt."""
        try:
            await asyncio.to_thread(self._warm)
        except OSError as error:
            _log.warning("no_fork_server_yet", error=str(error))

    def fork(self, folder: Path, secrets: Mapping[str, str]) -> Shim:
        """A shim for the attempt in `folder`. Values of secrets go to it through a pipe, never through a file: one that does not
        get all of them, since this agent died, leaves before it claims the attempt, and the next agent has another forked.

        Raises OSError."""
        with self._lock:
            try:
                shim, values = self._ask(folder)
            except ConnectionError:  # it died, be it long ago
                self._end()
                shim, values = self._ask(folder)
            except TimeoutError:
                self._end()  # its answer would be taken for that to the next question
                raise
        with contextlib.suppress(BrokenPipeError), os.fdopen(values, "wb") as to_shim:
            to_shim.write(json.dumps(dict(secrets)).encode())
        return shim

    def close(self) -> None:
        """Ends the server. Its shims go on."""
        with self._lock:
            self._end()

    def _warm(self) -> None:
        with self._lock:
            self._connected()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.settimeout(ANSWER_S_MAX)
            try:
                self._server = _start(self._attempts, theirs)
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._socket = ours
        return self._socket

    def _ask(self, folder: Path) -> tuple[Shim, int]:
        """The shim, and where its secrets are to be written."""
        server = self._connected()
        stdin, values = os.pipe()
        claimed, tell = os.pipe()
        try:
            try:
                socket.send_fds(server, [os.fsencode(folder)], [stdin, tell])
                answer, handles, _, _ = socket.recv_fds(server, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            finally:
                os.close(stdin)
                os.close(tell)
            return _shim(answer, handles, claimed), values
        except BaseException:
            os.close(values)
            os.close(claimed)
            raise

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(END_S_MAX)
            self._server.kill()
            self._server.wait()
        self._server = self._socket = None


def _start(attempts: Path, agent: socket.socket) -> "subprocess.Popen[bytes]":
    command = fork_server.command(attempts)
    return subprocess.Popen(command, stdin=agent.fileno(), stdout=subprocess.DEVNULL, start_new_session=True, cwd="/")


def _shim(answer: bytes, handles: list[int], claimed: int) -> Shim:
    if not answer:
        raise ConnectionResetError("the process that forks shims has ended")
    if not handles:
        why = answer[1:].decode(errors="replace") if answer.startswith(b"!") else "it ended at once; see its shim.log"
        raise ChildProcessError(why)
    return Shim(int(answer), handles[0], claimed)
