"""A blob on its way in or out: a small one in memory, a large one in a file, so that many at once, or slow ones, cost no memory."""

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import IO, Final

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from phalanx.storage.atomic import refused

IN_MEMORY_BYTES: Final = 2**20


@contextlib.asynccontextmanager
async def received(request: Request, folder: Path) -> AsyncIterator[bytes | Path]:
    """The whole body, or a file in `folder` that holds it and is gone afterwards. Raises StoreUnavailable for a full disk."""
    path = folder / f".upload-{secrets.token_hex(8)}.tmp"
    waiting, in_file = bytearray(), False
    try:
        async for piece in request.stream():
            waiting += piece
            if len(waiting) > IN_MEMORY_BYTES:
                await asyncio.to_thread(_append, path, bytes(waiting))
                waiting.clear()
                in_file = True
        if in_file:
            await asyncio.to_thread(_append, path, bytes(waiting))
        yield path if in_file else bytes(waiting)
    finally:
        path.unlink(missing_ok=True)


async def sent(fill: Callable[[IO[bytes]], Awaitable[None]], folder: Path) -> StreamingResponse:
    """A response with what `fill` writes into a file; nothing of it is sent before all is there. Raises as `fill` does, and
    StoreUnavailable for a full disk."""
    file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=str(folder))  # noqa: SIM115 (the response closes it)
    try:
        await fill(file)
        return _Sent(file)
    except OSError as error:
        file.close()
        raise refused(folder, error) from error
    except BaseException:
        file.close()
        raise


def _append(path: Path, data: bytes) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise refused(path, error) from error


class _Sent(StreamingResponse):
    """The content of a file, which is closed however the sending ends."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        super().__init__(self._pieces(), media_type="application/octet-stream", headers={"Content-Length": str(size_bytes)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(self._file.read, IN_MEMORY_BYTES):
            yield piece
