"""Where ranks ring: a line on this socket says that a record file grew. Ranks are user code, so anything may arrive."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from phalanx.core import wire
from phalanx.core.records import Ring

LINE_BYTES_MAX: Final = 4096
BAD_LINES_MAX: Final = 16
CALLERS_MAX: Final = 1024

_log = structlog.get_logger()


class RankSocket:
    """Calls `on_ring` for each well-formed ring; drops garbage, and a caller that sends much of it."""

    def __init__(self, path: Path, on_ring: Callable[[Ring], None]) -> None:
        self._path = path
        self._on_ring = on_ring
        self._callers = 0

    async def open(self) -> asyncio.Server:
        """Replaces the socket of an agent before us: ranks redial."""
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._called, path=str(self._path), limit=LINE_BYTES_MAX)
        self._path.chmod(0o600)
        return server

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers += 1
        try:
            if self._callers <= CALLERS_MAX:
                await self._listen(reader)
        except (OSError, ValueError) as error:  # ValueError: a line without an end
            _log.warning("rank_socket_dropped", error=str(error))
        except asyncio.CancelledError:
            pass  # the agent ends; a handler that ends cancelled would be logged as a failure by asyncio's streams
        finally:
            self._callers -= 1
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        bad = 0
        while bad < BAD_LINES_MAX and (line := await reader.readline()):
            try:
                ring = wire.loads(Ring, line)
            except ValueError:
                bad += 1
                continue
            self._on_ring(ring)
