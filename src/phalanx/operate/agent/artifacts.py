"""Sends what ranks leave in PHALANX_ARTIFACTS: every LOOK_S while they run, and all of it before their attempt counts as over.

A file is sent once it has been still for a moment, and one that never is, as it is at every second look. So what a dead node had
is at most two looks and an upload old here. Nothing is kept in memory that the folder does not say again.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import structlog

from phalanx.core import features
from phalanx.core.artifact_names import FILES_MAX
from phalanx.core.errors import NotFound, UserError, WorldError
from phalanx.core.ids import AttemptId
from phalanx.core.messages import ArtifactAck, ArtifactSaved
from phalanx.operate.agent import artifact_files
from phalanx.operate.agent.artifact_files import Found, Look, State
from phalanx.operate.agent.attempts import AttemptFolder

LOOK_S: Final = 2.0
STILL_NS: Final = 1_000_000_000
AGAIN_S: Final = 0.5
"""After the ranks are gone, until all has arrived."""

AT_ONCE: Final = 8
TRIES_MAX: Final = 20
"""A node whose disk is full must not keep an attempt, and its devices, for ever."""

BYTES_PER_S: Final = 8 * 1024 * 1024
"""Of one file that changes again and again: every version is kept until it is collected, and a large one is no log."""

_IN_MEMORY_BYTES: Final = 1024 * 1024
_log = structlog.get_logger()

Upload = Callable[[AttemptId, str, int, IO[bytes]], Awaitable[None]]
"""(attempt, SHA-256, size, bytes), as `uploading.upload`."""


@dataclass(slots=True)
class _File:
    """sent: its state in the copy that was sent last, or refused. seen: in the last look. looks: how often it was found changed
    and not sent. not_before_s: monotonic time of its next sending, but for the last."""

    sent: State | None = None
    seen: State | None = None
    looks: int = 0
    not_before_s: float = 0.0


@dataclass(slots=True)
class _Held:
    """One attempt's folder. names: of all files ever sent. over: no rank will write any more. complete: all of it is there, or
    nobody wants it."""

    folder: AttemptFolder
    files: dict[str, _File] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    unanswered: dict[str, ArtifactSaved] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    over: bool = False
    complete: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Artifacts:
    """Of all held attempts. Belongs to the agent's loop; files are read in threads."""

    def __init__(self, upload: Upload, say: Callable[[ArtifactSaved], None], on_end: Callable[[asyncio.Task[None]], None]) -> None:
        """`say` sends a message, or drops it while away. `on_end` is given each attempt's task when it has ended."""
        self._upload = upload
        self._say = say
        self._on_end = on_end
        self._held: dict[AttemptId, _Held] = {}
        self._tasks: dict[AttemptId, asyncio.Task[None]] = {}
        self._wanted: bool | None = None  # whether the control plane knows artifacts; None before the first welcome

    def add(self, folder: AttemptFolder) -> None:
        """Follows an attempt from now on."""
        held = self._held[folder.attempt] = _Held(folder)
        task = self._tasks[folder.attempt] = asyncio.create_task(self._follow(held))
        task.add_done_callback(self._on_end)

    def drop(self, attempt: AttemptId) -> None:
        """The attempt is forgotten."""
        if self._held.pop(attempt, None) is not None:
            self._tasks.pop(attempt).cancel()

    def close(self) -> list[asyncio.Task[None]]:
        """Its tasks, to be ended."""
        return list(self._tasks.values())

    def welcome(self, understood: tuple[str, ...]) -> None:
        """A new connection: what was not answered on the old one is in doubt, and is sent again."""
        self._wanted = features.ARTIFACTS in understood
        for held in self._held.values():
            for name in held.unanswered:
                if name in held.files:
                    held.files[name].sent = None
            held.unanswered.clear()
            held.woken.set()

    def answered(self, ack: ArtifactAck) -> None:
        """The control plane has that version."""
        held = self._held.get(ack.attempt)
        if held is not None and (asked := held.unanswered.get(ack.name)) is not None and asked.sha256 == ack.sha256:
            del held.unanswered[ack.name]
            if held.over:
                held.woken.set()

    def drained(self, attempt: AttemptId) -> bool:
        """Whether all of an attempt whose ranks are gone has arrived; asking is what tells us that they are."""
        held = self._held.get(attempt)
        if held is None or held.complete or self._wanted is False:
            return True
        if not held.over:
            held.over = True
            held.complete = not held.files and _is_empty(held.folder.artifacts)
            held.woken.set()
        return held.complete

    async def _follow(self, held: _Held) -> None:
        failures = 0
        while not held.complete:
            held.woken.clear()
            over, next_s = held.over, time.monotonic() + LOOK_S  # before the look: what is over does not change after it
            try:
                settled = self._wanted is True and await self._round(held, over)
                if over and settled and not held.unanswered:
                    held.complete = True
                failures = 0
            except (WorldError, OSError) as error:
                failures += 1
                if failures == 1:
                    _log.warning("artifacts_put_off", attempt=held.folder.attempt, error=str(error))
                if over and isinstance(error, OSError) and failures >= TRIES_MAX:
                    await self._tell(held, {f"not all could be sent, since this node cannot copy them ({error.strerror})"})
                    held.complete = True
            if not held.complete:
                await _first(held.woken, AGAIN_S if held.over else max(0.0, next_s - time.monotonic()))

    async def _round(self, held: _Held, over: bool) -> bool:
        """One look. Whether nothing is left to be sent. Raises WorldError, OSError."""
        seen = await asyncio.to_thread(artifact_files.look, held.folder.artifacts)
        held.files = {found.name: held.files.get(found.name) or _File() for found in seen.files}  # what is gone is forgotten
        due, settled = _due(held, seen, over)
        for some in _batches(due):
            sent = await asyncio.gather(*(self._send(held, found.name) for found in some), return_exceptions=True)
            for failure in sent:
                if failure is not None:
                    raise failure
            if held.complete:
                return True
        await self._tell(held, seen.problems)
        return settled

    async def _send(self, held: _Held, name: str) -> None:
        attempt, file = held.folder.attempt, held.files[name]
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=str(held.folder.path)) as copy:
            copied = await asyncio.to_thread(artifact_files.copy, held.folder.artifacts, name, copy)
            if copied is None:  # the next look, if there is one, says what became of it
                await self._tell(held, {f"{name!r} cannot be read"} if held.over else set())
                return
            at_ms = time.time_ns() // 1_000_000
            try:
                await self._upload(attempt, copied.sha256, copied.size_bytes, copy)
            except NotFound as error:
                _log.warning("artifacts_given_up", attempt=attempt, error=str(error))
                held.complete = True
                return
            except UserError as error:
                await self._tell(held, {f"{name!r} was refused: {error.fix}"})
            else:
                saved = ArtifactSaved(attempt, name, copied.sha256, copied.size_bytes, at_ms)
                held.unanswered[name] = saved
                self._say(saved)
        held.names.add(name)
        file.sent, file.looks = copied.state, 0
        file.not_before_s = time.monotonic() + copied.size_bytes / BYTES_PER_S

    async def _tell(self, held: _Held, problems: set[str]) -> None:
        """Each kind once: in our log, and in that of the attempt's first rank, where its author looks."""
        for problem in sorted(problems - held.told):
            held.told.add(problem)
            _log.warning("artifacts_left_out", attempt=held.folder.attempt, why=problem)
            await asyncio.to_thread(_write_into, held.folder.stream("log", held.folder.ranks[0]), problem)


def _due(held: _Held, seen: Look, over: bool) -> tuple[list[Found], bool]:
    """What to send now, and whether nothing else is left. `over`: everything that was not sent as it is."""
    due: list[Found] = []
    names, settled = set(held.names), True
    now_ns, now_s = time.time_ns(), time.monotonic()
    for found in seen.files:
        file = held.files[found.name]
        if found.name not in names and len(names) >= FILES_MAX:
            seen.problems.add(f"only {FILES_MAX} files of an attempt are kept")
        elif found.state == file.sent:
            file.looks = 0
        elif over or _is_due(file, found, now_ns, now_s):
            due.append(found)
            names.add(found.name)
        else:
            file.looks += 1
            settled = False
        file.seen = found.state
    return due, settled


def _batches(due: Sequence[Found]) -> Iterator[Sequence[Found]]:
    """Small files several at a time, since each waits for two disks to flush; large ones alone, since each fills the line."""
    small = [found for found in due if found.size_bytes <= _IN_MEMORY_BYTES]
    yield from (small[start : start + AT_ONCE] for start in range(0, len(small), AT_ONCE))
    yield from ([found] for found in due if found.size_bytes > _IN_MEMORY_BYTES)


def _is_due(file: _File, found: Found, now_ns: int, now_s: float) -> bool:
    """Still since the last look or for STILL_NS, or changed for so long that it may never be; and not sent too lately for its
    size."""
    still = found.state == file.seen or 0 <= found.changed_ns <= now_ns - STILL_NS
    return (still or file.looks > 0) and now_s >= file.not_before_s


def _is_empty(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _write_into(log: Path, problem: str) -> None:
    try:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(handle, f"phalanx: artifacts: {problem}\n".encode(errors="backslashreplace"))
    except OSError:
        return
    finally:
        os.close(handle)


async def _first(woken: asyncio.Event, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await woken.wait()
    except TimeoutError:
        return
