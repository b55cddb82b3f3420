"""A shim started before there is anything to do: its interpreter is up and has imported everything when an attempt comes.

That start is most of what an attempt costs before its ranks run: 26 of 40 ms of CPU. The spare waits on its standard input for an
attempt's folder and ends when that closes, so it never outlives its agent. Without one a shim is started as ever.
"""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from phalanx.operate.agent import shim
from phalanx.operate.agent.together import to_its_end

SETTLE_S: Final = 0.2
"""From taking one to starting the next: the attempt that took it gets the CPU first."""

END_S_MAX: Final = 1.0
_log = structlog.get_logger()


class SpareShim:
    """At most one spare for the attempts below a folder. Belongs to the agent's loop."""

    def __init__(self, attempts: Path) -> None:
        self._attempts = attempts
        self._child: subprocess.Popen[bytes] | None = None
        self._taken = asyncio.Event()

    async def keep(self) -> None:
        """Sees to it that there is one. Until cancelled, which ends it."""
        try:
            while True:
                await self._prepare()
                await self._taken.wait()
                self._taken.clear()
                await asyncio.sleep(SETTLE_S)
        finally:
            self._end()

    def take(self) -> "subprocess.Popen[bytes] | None":
        """The spare, which is the caller's from now on and must be given an attempt, see `hand_over`. None when there is none."""
        child, self._child = self._child, None
        self._taken.set()
        return child

    async def _prepare(self) -> None:
        try:
            await to_its_end(self._start)
        except OSError as error:
            _log.warning("no_spare_shim", error=str(error))

    def _start(self) -> None:
        if self._child is None:
            command = shim.spare_command(self._attempts)
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/"
            )

    def _end(self) -> None:
        if self._child is None:
            return
        assert self._child.stdin is not None
        self._child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S_MAX)
        self._child.kill()
        self._child.wait()


def hand_over(spare: "subprocess.Popen[bytes]", folder: Path, secrets: Mapping[str, str]) -> bool:
    """Makes `spare` the shim of the attempt in `folder`; False when it is gone."""
    assert spare.stdin is not None
    order = json.dumps(str(folder)) + "\n" + (json.dumps(dict(secrets)) if secrets else "")
    try:
        with spare.stdin as to_shim:
            to_shim.write(order.encode())
    except BrokenPipeError:
        spare.wait()
        return False
    return True
