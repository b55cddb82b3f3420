"""Brings a job's packed workdir onto this node: by hash, checked, unpacked into the attempt's folder."""

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
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
    `work` and the workdir lacks stays. Raises OSError and what `storage.workdir.unpack` does.

    `work` is a job's doing, and the agent may be root: each step goes through a descriptor of the folder above, and links are
    replaced, never followed, `work` itself included.
    """
    work.parent.mkdir(parents=True, exist_ok=True)
    with _opened(work.parent, None) as job, _made(work.name, job) as target:
        if data is not None:
            workdir.unpack(data, fresh)
            with _opened(fresh, None) as source:
                _renew(source, target)


def _renew(source: int, target: int) -> None:
    """Moves each entry over its like."""
    with os.scandir(source) as entries:
        names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    for name, is_folder in names.items():
        there = _mode(name, target)
        if is_folder and stat.S_ISDIR(there):
            with _opened(name, source) as inner, _opened(name, target) as outer:
                _renew(inner, outer)
            continue
        _clear(name, target, there)
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _mode(name: str, folder: int) -> int:
    """Of what lies there, a link for itself; 0 where nothing does."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _clear(name: str, folder: int, mode: int) -> None:
    if stat.S_ISDIR(mode):
        shutil.rmtree(name, dir_fd=folder)
    elif mode:
        os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _opened(name: Path | str, folder: int | None) -> Iterator[int]:
    link = 0 if folder is None else os.O_NOFOLLOW  # the platform's own path may lead over links
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _made(name: str, folder: int) -> Iterator[int]:
    """The folder of that name, in place of anything else that has it."""
    mode = _mode(name, folder)
    if not stat.S_ISDIR(mode):
        _clear(name, folder, mode)
        os.mkdir(name, dir_fd=folder)
    with _opened(name, folder) as handle:
        yield handle
