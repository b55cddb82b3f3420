"""Brings one artifact's bytes to the control plane's blobs, as a stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import IO, Final

import httpx

from phalanx.core.errors import NotFound, ServerUnreachable, SpecError
from phalanx.core.ids import AttemptId, NodeId
from phalanx.operate.agent.asking import open_http

_TIMEOUT: Final = httpx.Timeout(60.0, connect=5.0)
_PART_BYTES: Final = 256 * 1024
ASK_BYTES: Final = 256 * 1024
"""From this size on it is worth a question whether the blob is there already, as after an agent's restart."""


async def upload(url: str, token: str, node: NodeId, attempt: AttemptId, sha256: str, size_bytes: int, source: IO[bytes]) -> None:
    """`source` at its start holds `size_bytes`. Raises ServerUnreachable when it may be tried again, NotFound when the attempt is
    not this node's any more, SpecError when the control plane will not have these bytes."""
    path, headers = f"/api/v1/blobs/{sha256}", {"Authorization": f"Bearer {token}"}
    try:
        async with open_http(url, _TIMEOUT, headers) as client:
            if size_bytes >= ASK_BYTES and (await client.head(path)).status_code == httpx.codes.OK:
                return
            length = {"Content-Length": str(size_bytes)}
            asks = {"node": node, "attempt": attempt}
            answer = await client.put(path, params=asks, content=_parts(source), headers=length)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachable(f"cannot send an artifact: {str(error) or type(error).__name__}") from error
    if answer.is_server_error:
        raise ServerUnreachable(f"cannot send an artifact: the control plane answered {answer.status_code}")
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise NotFound("attempt", attempt, "is not this node's any more")
    if not answer.is_success:
        raise SpecError("artifact", sha256, f"the control plane will not have it: it answered {answer.status_code}")


async def _parts(source: IO[bytes]) -> AsyncIterator[bytes]:
    source.seek(0)
    while part := await asyncio.to_thread(source.read, _PART_BYTES):
        yield part
