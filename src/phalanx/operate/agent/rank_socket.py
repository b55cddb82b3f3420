"""Where ranks ring: a line on this socket says that a record file grew. Ranks are user code, so anything may arrive."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from phalanx.core import wire
from phalanx.core.records import Ring
from phalanx.operate.agent.processes import peer_uid

LINE_BYTES_MAX: Final = 4096
BAD_LINES_MAX: Final = 16
CALLERS_MAX: Final = 1024

_log = structlog.get_logger()


class RankSocket:
    """Calls `on_ring` for each well-formed ring; drops garbage, and a caller that sends much of it."""

    def __init__(self, path: Path, on_ring: Callable[[Ring], None], uid: int | None = None) -> None:
        """uid: only that user may call; else this process's own."""
        self._path = path
        self._on_ring = on_ring
        self._uid = uid
        self._callers = 0

    async def open(self) -> asyncio.Server:
        """Replaces the socket of an agent before us: ranks redial."""
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._called, path=str(self._path), limit=LINE_BYTES_MAX)
        self._path.chmod(0o600)
        if self._uid is not None:
            os.chown(self._path, self._uid, self._uid)
        return server

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers += 1
        try:
            if self._callers <= CALLERS_MAX and self._may_call(writer):
                await self._listen(reader)
        except (OSError, ValueError) as error:  # ValueError: a line without an end
            _log.warning("rank_socket_dropped", error=str(error))
        except asyncio.CancelledError:
            pass  # the agent ends; a handler that ends cancelled would be logged as a failure by asyncio's streams
        finally:
            self._callers -= 1
            writer.close()

    def _may_call(self, writer: asyncio.StreamWriter) -> bool:
        """By the kernel's word for who it is."""
        caller = peer_uid(writer.get_extra_info("socket"))
        if caller == (os.geteuid() if self._uid is None else self._uid):
            return True
        _log.warning("rank_socket_refused", caller=caller)
        return False

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        bad = 0
        while bad < BAD_LINES_MAX and (line := await reader.readline()):
            try:
                ring = wire.loads(Ring, line)
            except ValueError:
                bad += 1
                continue
            self._on_ring(ring)
