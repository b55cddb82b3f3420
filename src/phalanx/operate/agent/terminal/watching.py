"""Looks at the jobs that people work in, tells the control plane of signs of work, and hands its warnings to who is there."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from phalanx.core import features
from phalanx.core.activity import Signal
from phalanx.core.devices import CPU_SLOT, NodeShape
from phalanx.core.ids import AttemptId
from phalanx.core.messages import Activity, IdleWord
from phalanx.core.units import show_duration
from phalanx.operate.agent.attempt_run import AttemptRun
from phalanx.operate.agent.sockets import terminal_socket
from phalanx.operate.agent.terminal import frames, jupyter, notebook, use
from phalanx.operate.agent.terminal.ways import Ways
from phalanx.operate.agent.together import cancelled

LOOK_S: Final = 15.0
ANSWER_S_MAX: Final = 5.0
FILES_MAX: Final = 1000


@dataclass(slots=True)
class _Meters:
    cpu: use.Meter = field(default_factory=use.Meter)
    gpu: use.Meter = field(default_factory=use.Meter)
    warned: bool = False


class Watching:
    """All that are held here."""

    def __init__(
        self,
        runs: Callable[[], Iterable[AttemptRun]],
        shape: Callable[[], NodeShape],
        shim_socket: Callable[[AttemptId], Path],
        ways: Ways,
        send: Callable[[Activity], None],
    ) -> None:
        self._runs, self._shape, self._shim_socket, self._ways, self._send = runs, shape, shim_socket, ways, send
        self._meters: dict[AttemptId, _Meters] = {}
        self._understood = False
        self._saying: set[asyncio.Task[None]] = set()
        self._looking: dict[AttemptId, asyncio.Task[None]] = {}

    def welcome(self, understood: Iterable[str]) -> None:
        """The control plane that is there now; an older one would hang up on what it does not know."""
        self._understood = features.ACTIVITY in understood

    async def run(self) -> None:
        """For ever. A job that answers slowly is looked at less often, and holds up no other."""
        try:
            while True:
                if self._understood:
                    for run in [one for one in self._runs() if one.folder.accepted.launch.session]:
                        self._begin_look(run)
                await asyncio.sleep(LOOK_S)
        finally:
            await cancelled(list(self._looking.values()))

    def _begin_look(self, run: AttemptRun) -> None:
        attempt = run.folder.attempt
        if run.seen.ranks and not run.seen.ended and attempt not in self._looking:
            looking = self._looking[attempt] = asyncio.create_task(self._look(run))
            looking.add_done_callback(lambda _: self._looking.pop(attempt, None))

    async def _look(self, run: AttemptRun) -> None:
        self._send(Activity(run.folder.attempt, await self._signals(run)))

    def heard(self, word: IdleWord) -> None:
        """Says to who is at the terminal what is new to them; nobody waits for that."""
        meters = self._meters.get(word.attempt)
        if meters is None or meters.warned == (word.left_ms is not None):
            return
        meters.warned = word.left_ms is not None
        text = "it is not idle any more, and goes on"
        if word.left_ms is not None:
            text = f"nothing was done here for long: this job is stopped in {show_duration(word.left_ms)}; press a key to keep it"
        saying = asyncio.create_task(_say(terminal_socket(self._shim_socket(word.attempt)), text))
        self._saying.add(saying)
        saying.add_done_callback(self._saying.discard)

    def drop(self, attempt: AttemptId) -> None:
        """It is forgotten here."""
        self._meters.pop(attempt, None)

    async def _signals(self, run: AttemptRun) -> tuple[Signal, ...]:
        launch, meters = run.folder.accepted.launch, self._meters.setdefault(run.folder.attempt, _Meters())
        asked: list[Awaitable[Signal | None]] = [self._cpu(run, meters), self._gpu(run, meters), self._connections(run)]
        asked += [self._terminal(run)] if launch.session == "shell" else [_kernels(run), _files(run)]
        return tuple(signal for signal in await asyncio.gather(*asked) if signal is not None)

    async def _cpu(self, run: AttemptRun, meters: _Meters) -> Signal:
        process = await asyncio.to_thread(run.folder.shim_process)
        used_s = await asyncio.to_thread(use.cpu_s, process.pid) if process else None
        if used_s is None:
            return Signal("cpu", None, "its processes cannot be seen")
        age_s = meters.cpu.look(used_s, time.monotonic())
        return Signal("cpu", int(age_s * 1000), f"{meters.cpu.share:.0%} of a core")

    async def _gpu(self, run: AttemptRun, meters: _Meters) -> Signal | None:
        known = {device.index: device for device in self._shape().devices}
        held = [known.get(index) for index in run.folder.accepted.launch.devices]
        if all(one is not None and one.type == CPU_SLOT for one in held):
            return None
        uuids = [one.uuid for one in held if one is not None and one.uuid]
        percent = await asyncio.to_thread(use.gpu_percent, uuids) if uuids else None
        if percent is None:
            return Signal("gpu", None, "the driver does not say")
        age_s = meters.gpu.saw(percent >= use.BUSY_PERCENT, time.monotonic())
        return Signal("gpu", int(age_s * 1000), f"{percent}%")

    async def _connections(self, run: AttemptRun) -> Signal | None:
        """By what goes over them. A browser asks a notebook server again and again, so that its own port says nothing."""
        launch = run.folder.accepted.launch
        own = launch.master_port if launch.session == "notebook" else -1
        seen = [one for (attempt, port), one in self._ways.traffic.items() if attempt == launch.attempt and port != own]
        if not seen:
            return None
        age_s = time.monotonic() - max(one.last_s for one in seen)
        return Signal("connections", int(age_s * 1000), f"{sum(one.open for one in seen)} open")

    async def _terminal(self, run: AttemptRun) -> Signal:
        try:
            answer = await _ask(terminal_socket(self._shim_socket(run.folder.attempt)), {"status": True}, answers=True)
            status = answer["status"]
            age_ms = min(int(status["input_ms"]), int(status["output_ms"]))
            return Signal("terminal", age_ms, f"{status['users']} attached")
        except (OSError, TimeoutError, ValueError, KeyError, TypeError):
            return Signal("terminal", None, "its terminal does not answer")


async def _say(socket: Path, text: str) -> None:
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        await _ask(socket, {"say": text}, answers=False)


async def _kernels(run: AttemptRun) -> Signal:
    place = await asyncio.to_thread(notebook.place, run.folder.path, run.folder.accepted.launch.master_port)
    if place is None:
        return Signal("kernel", None, "the notebook server has not come up")
    if await asyncio.to_thread(run.listens_at, place.port) != jupyter.HOST:
        return Signal("kernel", None, "the notebook server does not listen")  # whoever does is not given its token
    return await jupyter.kernels(place, time.time())


async def _files(run: AttemptRun) -> Signal | None:
    """Whoever edits without running anything is seen by what Jupyter saves for them."""
    newest = await asyncio.to_thread(newest_notebook_s, run.folder.work)
    return None if newest is None else Signal("files", max(0, int((time.time() - newest) * 1000)), "notebooks saved")


def newest_notebook_s(folder: Path) -> float | None:
    """Unix time at which one of the folder's own notebooks was last written; None where there is none."""
    times = []
    with contextlib.suppress(OSError):
        for number, one in enumerate(folder.iterdir()):
            if number >= FILES_MAX:
                break
            if one.suffix == ".ipynb":
                times.append(one.lstat().st_mtime)
    return max(times, default=None)


async def _ask(socket: Path, message: dict[str, Any], answers: bool) -> dict[str, Any]:
    """What a holder answers. Raises OSError, TimeoutError, ValueError."""
    async with asyncio.timeout(ANSWER_S_MAX):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        try:
            writer.write(frames.control(message))
            await writer.drain()
            if not answers:
                writer.write_eof()
                await reader.read()
                return {}
            _, length = frames.HEADER.unpack(await reader.readexactly(frames.HEADER.size))
            found = json.loads(await reader.readexactly(length))
            if not isinstance(found, dict):
                raise ValueError("no object")
            return found
        except asyncio.IncompleteReadError as error:
            raise OSError("it hung up") from error
        finally:
            writer.close()
