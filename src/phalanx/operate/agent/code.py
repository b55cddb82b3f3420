"""Brings a job's packed workdir onto this node: by hash, checked, unpacked into the attempt's folder."""

import hashlib
from pathlib import Path
from typing import Final

import httpx

from phalanx.core.errors import Conflict, ServerUnreachable, SpecError
from phalanx.storage import workdir
from phalanx.storage.hashes import is_sha256

BLOB_BYTES_MAX: Final = 256 * 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)


async def fetch(url: str, token: str, sha256: str) -> bytes:
    """The blob of that hash. Raises ServerUnreachable when it may be tried again, SpecError when it never will work."""
    if not is_sha256(sha256):
        raise SpecError("code", sha256, "is not a SHA-256")
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, trust_env=False) as client,
            client.stream("GET", f"/api/v1/blobs/{sha256}", headers={"Authorization": f"Bearer {token}"}) as response,
        ):
            data = await _body(response, sha256)
    except httpx.HTTPError as error:
        raise ServerUnreachable(f"cannot fetch the packed workdir: {str(error) or type(error).__name__}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Conflict("code", sha256, "the control plane's copy of the packed workdir is damaged; submit the job again")
    return data


async def _body(response: httpx.Response, sha256: str) -> bytes:
    if response.status_code == httpx.codes.NOT_FOUND:
        raise SpecError("code", sha256, "the control plane has no such packed workdir; submit the job again")
    if response.status_code != httpx.codes.OK:
        raise ServerUnreachable(f"cannot fetch the packed workdir: the control plane answered {response.status_code}")
    data = bytearray()
    async for part in response.aiter_bytes():
        data += part
        if len(data) > BLOB_BYTES_MAX:
            raise SpecError("code", sha256, f"the packed workdir is over {BLOB_BYTES_MAX} bytes")
    return bytes(data)


def lay_out(data: bytes | None, work: Path) -> None:
    """Makes `work` hold exactly the packed workdir, or nothing. Raises what `storage.workdir.unpack` does."""
    if data is None:
        work.mkdir(exist_ok=True)
    else:
        workdir.unpack(data, work)
