"""Brings one held attempt to its end: prepares it, starts its shim once, watches, and cleans up after a shim that died.

Level, not edge: `run` may begin at any point of the attempt's life, so adopting after a restart is the same code as starting.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec

import structlog

from phalanx.core.devices import NodeShape
from phalanx.core.errors import PhalanxError, UserError, WorldError
from phalanx.operate.agent import code, shim
from phalanx.operate.agent.attempts import STOPPED_EARLY, AttemptFolder, Seen, ShimProcess, clear
from phalanx.operate.agent.launch_env import marks
from phalanx.operate.agent.ports import is_taken
from phalanx.operate.agent.together import cancelled

CLAIM_S_MAX: Final = 30.0
RETRY_S: Final = 0.5
_log = structlog.get_logger()
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Node:
    """What an attempt needs to know of the node it runs on."""

    shape: NodeShape
    agent_socket: Path
    shim_socket: Path
    now_ms: Callable[[], int]
    fetch: Callable[[str], Awaitable[bytes]]


class StartFailed(PhalanxError):
    """The ranks cannot be started, and trying again would not help."""


class AttemptRun:
    """One attempt in the agent's memory. `changed` is called in the loop whenever `seen` is new."""

    def __init__(self, folder: AttemptFolder, node: Node, changed: Callable[["AttemptRun"], None]) -> None:
        self.folder = folder
        self.seen = Seen()
        self.drained = False
        self._node = node
        self._changed = changed
        self._stop_asked = asyncio.Event()
        self._grace_ms: int | None = None  # asked for of this agent, durable or not
        self._control: asyncio.StreamWriter | None = None
        self._child: subprocess.Popen[bytes] | None = None

    async def run(self) -> None:
        """Returns when the attempt has ended on disk. A machine short of anything only delays us: the files say where we are."""
        try:
            while True:
                try:
                    await self._bring_to_end()
                    break
                except OSError as error:
                    _log.warning("attempt_not_followed_now", attempt=self.folder.attempt, error=str(error))
                    await asyncio.sleep(RETRY_S)
            if self._child is not None:
                await asyncio.to_thread(self._child.wait)
        finally:
            if self._child is not None and self._child.returncode is None:
                self._child.returncode = 0  # the shim outlives this agent on purpose, so Popen need not warn of it

    async def stop(self, grace_ms: int) -> None:
        """SIGTERM, then SIGKILL after `grace_ms`; returns once the wish is durable.

        Raises PhalanxError or OSError when the disk does not take it: the ranks are stopped all the same, only an agent after
        this one would not know unless the wish comes again.
        """
        self._grace_ms = grace_ms if self._grace_ms is None else min(grace_ms, self._grace_ms)
        self._stop_asked.set()
        self._tell_stop()
        await asyncio.to_thread(self.folder.ask_stop, grace_ms)
        await self.refresh()

    async def refresh(self) -> None:
        """Reads the files again and tells about a difference."""
        seen = await asyncio.to_thread(self.folder.read)
        if seen != self.seen:
            self.seen = seen
            self._changed(self)

    async def _bring_to_end(self) -> None:
        await self.refresh()
        if not self.seen.ended and self.folder.shim_process() is None:
            await self._start()
        if not self.seen.ended and (process := self.folder.shim_process()) is not None:
            await self._watch(process)

    async def _start(self) -> None:
        try:
            if not await self._prepared():
                await self._fail("stopped before its ranks were started", STOPPED_EARLY)
                return
            await self._spawn()
        except StartFailed as error:
            await self._fail(str(error), shim.CANNOT_START)

    async def _prepared(self) -> bool:
        """Lays out the work folder, waiting for the control plane where it must. False when asked to stop meanwhile."""
        if self.seen.stop_grace_ms is not None:
            return False
        prepare = asyncio.create_task(self._prepare())
        stopped = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({prepare, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not prepare.done():
                return False
            await prepare
            return not stopped.done()
        finally:
            await cancelled([prepare, stopped])

    async def _prepare(self) -> None:
        launch = self.folder.accepted.launch
        if not launch.argv or not launch.devices:
            raise StartFailed(f"cannot start the ranks: no {'devices' if launch.argv else 'command'} given")
        try:
            data = await self._code(launch.code) if launch.code else None
            await _to_its_end(self._lay_out, data)
            node = self._node
            await asyncio.to_thread(
                self.folder.order_shim, node.shape, node.agent_socket, node.shim_socket, sys.executable, dict(os.environ)
            )
        except (UserError, WorldError, OSError) as error:
            raise StartFailed(f"cannot prepare the attempt: {error}") from error
        if launch.node_rank == 0 and is_taken(launch.master_port):
            raise StartFailed(f"cannot start the gang: MASTER_PORT {launch.master_port} is already taken on this node")

    def _lay_out(self, data: bytes | None) -> None:
        clear(self.folder.code)  # half of it may be there already
        code.lay_out(data, self.folder.code, self.folder.work)

    async def _code(self, sha256: str) -> bytes:
        while True:
            try:
                return await self._node.fetch(sha256)
            except WorldError as error:
                _log.warning("code_not_fetched_yet", attempt=self.folder.attempt, error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _spawn(self) -> None:
        """Starts the shim and waits for its claim. A second shim, started after a crash of ours, sees the first's and leaves."""
        try:
            self._child = await asyncio.to_thread(_start_shim, self.folder.path)
        except OSError as error:
            raise StartFailed(f"cannot start the process that starts ranks: {error}") from error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLAIM_S_MAX):
                while not self._claimed() and self._child.poll() is None:
                    await asyncio.sleep(0.005)
        if self._claimed():
            return
        self._child.kill()
        await asyncio.to_thread(self._child.wait)
        if self.folder.shim_process() is None:  # from here on it cannot claim any more
            raise StartFailed(f"the process that starts ranks did not come up; see {self.folder.path / 'shim.log'}")

    def _claimed(self) -> bool:
        try:
            return self.folder.shim_process() is not None
        except OSError:
            return False  # not known now

    async def _watch(self, process: ShimProcess) -> None:
        """Follows the shim until it is gone; ends the attempt for it when it died early."""
        listening = asyncio.create_task(self._listen())
        try:
            await _gone(process)
        finally:
            await cancelled([listening])
        await self.refresh()
        if not self.seen.ended:
            await self._lost(process)

    async def _listen(self) -> None:
        """Reads the files whenever the shim says that they changed. Connects as often as needed."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                reader, self._control = await asyncio.open_unix_connection(str(self._node.shim_socket), limit=shim.LINE_BYTES_MAX)
                try:
                    self._tell_stop()
                    async for _ in _first_and_each_line(reader):
                        await self.refresh()
                finally:
                    self._control.close()
                    self._control = None
            await asyncio.sleep(0.02)

    def _tell_stop(self) -> None:
        asked = [grace_ms for grace_ms in (self._grace_ms, self.seen.stop_grace_ms) if grace_ms is not None]
        if self._control is not None and asked:
            self._control.write(json.dumps({"stop": min(asked)}).encode() + b"\n")

    async def _lost(self, process: ShimProcess) -> None:
        """The kernel killed the ranks with their shim; their children may be alive still."""
        attempt_marks = marks(self.folder.accepted.launch, str(self._node.agent_socket))
        swept = await asyncio.to_thread(shim.sweep, attempt_marks)
        _log.warning("shim_died", attempt=self.folder.attempt, pid=process.pid, swept=len(swept))
        why = f"the shim (pid {process.pid}) died without exit records; its ranks were killed"
        await self._end(self.folder.lose, why, self._node.now_ms())

    async def _fail(self, why: str, exit_code: int) -> None:
        _log.warning("attempt_not_started", attempt=self.folder.attempt, why=why)
        await self._end(self.folder.fail, why, exit_code, self._node.now_ms())

    async def _end(self, write: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """An end that the disk does not take yet is no end: tries until it does."""
        while True:
            try:
                await asyncio.to_thread(write, *args, **kwargs)
                break
            except OSError as error:
                _log.warning("end_not_written_yet", attempt=self.folder.attempt, error=str(error))
                await asyncio.sleep(RETRY_S)
        await self.refresh()


async def _first_and_each_line(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    yield b""  # something may have changed before we connected
    while line := await reader.readline():
        yield line


def _start_shim(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "shim.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", shim.__file__, str(folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
        )  # fmt: skip


async def _gone(process: ShimProcess) -> None:
    """Returns when that very process is no more. Raises OSError when that cannot be known now."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not process.lives():
            return
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)
    finally:
        os.close(handle)


async def _to_its_end(call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """In a thread, which no cancellation ends: whoever is cancelled meanwhile still waits for it, since the folder it works on
    belongs to later attempts too."""
    thread = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})
        raise
