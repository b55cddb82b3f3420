"""Brings a job's packed workdir onto this node: by hash, checked, unpacked into the attempt's folder."""

import hashlib
import shutil
from pathlib import Path
from typing import Final

import httpx

from phalanx.core.errors import ServerUnreachable, SpecError
from phalanx.operate.agent.asking import open_http
from phalanx.storage import workdir
from phalanx.storage.blobs import BLOB_BYTES_MAX
from phalanx.storage.hashes import is_sha256

_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_GONE: Final = "the packed workdir is gone or damaged in the control plane; submit the job again"


async def fetch(url: str, token: str, sha256: str) -> bytes:
    """The blob of that hash. Raises ServerUnreachable when it may be tried again, SpecError when it never will work."""
    if not is_sha256(sha256):
        raise SpecError("code", sha256, "is not a SHA-256")
    try:
        async with (
            open_http(url, _TIMEOUT) as client,
            client.stream("GET", f"/api/v1/blobs/{sha256}", headers={"Authorization": f"Bearer {token}"}) as response,
        ):
            data = await _body(response, sha256)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachable(f"cannot fetch the packed workdir: {str(error) or type(error).__name__}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SpecError("code", sha256, _GONE)
    return data


async def _body(response: httpx.Response, sha256: str) -> bytes:
    if response.status_code == httpx.codes.NOT_FOUND:
        raise SpecError("code", sha256, _GONE)
    if response.is_server_error:
        raise ServerUnreachable(f"cannot fetch the packed workdir: the control plane answered {response.status_code}")
    if response.status_code != httpx.codes.OK:
        raise SpecError("code", sha256, f"the control plane refuses to hand it out: it answered {response.status_code}")
    data = bytearray()
    async for part in response.aiter_bytes():
        data += part
        if len(data) > BLOB_BYTES_MAX:
            raise SpecError("code", sha256, f"the packed workdir is over {BLOB_BYTES_MAX} bytes")
    return bytes(data)


def lay_out(data: bytes | None, fresh: Path, work: Path) -> None:
    """Puts the packed workdir over what `work` holds, by way of `fresh` beside it on the same disk. What a script made in
    `work` and the workdir lacks stays. Raises OSError and what `storage.workdir.unpack` does."""
    work.mkdir(parents=True, exist_ok=True)
    if data is not None:
        workdir.unpack(data, fresh)
        _renew(fresh, work)


def _renew(fresh: Path, work: Path) -> None:
    """Moves each entry over its like. Links in `work` are replaced, never followed."""
    for entry in fresh.iterdir():
        target = work / entry.name
        if _is_folder(entry) and _is_folder(target):
            _renew(entry, target)
            continue
        if _is_folder(target):
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        entry.rename(target)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
