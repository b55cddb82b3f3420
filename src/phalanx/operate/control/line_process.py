"""A child process that answers one JSON line with another, in order: how the server reaches the scheduler and the tracker.

The child ends when its stdin does, so it never outlives a killed server for longer than its present line.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from phalanx.core.errors import WorldError

LINE_BYTES_MAX: Final = 256 * 1024 * 1024
log = structlog.get_logger(__name__)


class NoAnswer(WorldError):
    """The child died over the question, or took too long: the question may be what it cannot bear."""


class LineProcess:
    """One such child, started at the first question and again after it died. One question at a time."""

    def __init__(self, name: str, argv: Sequence[str], answer_s_max: float, env: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._argv = tuple(argv)
        self._answer_s_max = answer_s_max
        self._env = env
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def ask(self, line: str) -> bytes:
        """The child's answer to `line`. Raises NoAnswer when it died or took too long; the child is ended then."""
        try:
            async with asyncio.timeout(self._answer_s_max):
                answer = await self._exchange(line)
        except (OSError, ValueError, TimeoutError) as error:
            await self.close()
            raise NoAnswer(f"the {self._name} process gave no answer: {type(error).__name__} {error}") from error
        if not answer.endswith(b"\n"):
            await self.close()
            raise NoAnswer(f"the {self._name} process ended")
        return answer

    async def _exchange(self, line: str) -> bytes:
        child = await self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(line.encode() + b"\n")
        await child.stdin.drain()
        return await child.stdout.readline()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._child is None or self._child.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._child = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=pipe, limit=LINE_BYTES_MAX, env=self._env
            )
            log.info("process_started", process=self._name, pid=self._child.pid)
        return self._child

    async def close(self) -> None:
        """Ends the child; the next question starts another."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
