"""Environments that jobs bring with their lock: built by uv once for a node, found again by their content.

node/environments/<key>/ has `source` (what uv read), `venv`, and `ready.json`, which is written last and durably: a folder
without it is half a build, of which nothing is used. `<key>.lock` is held from the look to the use, so that one builds what two
want, and what is being removed is not begun with. The time of `ready.json` says when the environment was last given to an attempt.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from phalanx.core.errors import SetupError, SpecError, StoreUnavailable
from phalanx.operate.agent.attempts import clear
from phalanx.operate.agent.locks import Lock, environment_key, read_lock
from phalanx.operate.agent.logged import quiet_code, run_logged, say
from phalanx.operate.agent.sweeping import sweep
from phalanx.operate.agent.together import to_its_end
from phalanx.storage import workdir
from phalanx.storage.atomic import fsync_folder, write_atomic
from phalanx.storage.hashes import sha256_bytes

READY: Final = "ready.json"
NOTE: Final = "environment.json"
"""In an attempt's folder: which environment it uses, so that nobody removes that one."""
POLL_S: Final = 0.1
_OTHER_PYTHONS: Final = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "CONDA_PREFIX")
"""What the agent was started with says nothing of the job's environment."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an attempt asks for. lock: its name in the workdir. work: where that is laid out. code, packed: SHA-256 and bytes of the
    packed workdir. attempt: its folder. log: where uv's words go while it builds."""

    lock: str
    work: Path
    code: str
    packed: bytes
    attempt: Path
    log: Path


@dataclass(frozen=True, slots=True)
class Environment:
    """One that is complete. origin: the lock by name and content, for the lineage of what is trained in it."""

    key: str
    python: Path
    origin: str


def find_uv() -> str | None:
    """uv of the platform's own environment, else of PATH."""
    own = Path(sys.executable).parent / "uv"
    return str(own) if os.access(own, os.X_OK) else shutil.which("uv")


async def ready(root: Path, wanted: Wanted, outer: Mapping[str, str], uv: str | None) -> Environment:
    """The environment, built now if the node has none like it. `outer`: the agent's own environment variables.

    Raises SpecError when uv refuses the lock: it would again. SetupError without uv; StoreUnavailable and OSError when the network,
    the disk or the machine failed, which may be mended the next time. May be cancelled; then nothing is left running.
    """
    if uv is None:
        raise SetupError("uv", "uv", "is not installed on this node, and builds the environment; run `pip install uv`")
    lock = await asyncio.to_thread(read_lock, wanted.work, wanted.lock)
    key = environment_key(lock, _own_python(), sysconfig.get_platform(), wanted.code)
    path, short = root / key, key[:12]
    await asyncio.to_thread(root.mkdir, 0o700, parents=True, exist_ok=True)
    async with alone(root / f"{key}.lock", lambda: say(wanted.log, f"waits for environment {short}, which another attempt builds")):
        if not await asyncio.to_thread(is_ready, path):
            say(wanted.log, f"builds environment {short} of {wanted.lock}")
            await _build(path, key, lock, wanted, outer, uv)
            say(wanted.log, f"environment {short} is ready")
        await to_its_end(_note_use, path, key, wanted)
    return Environment(key, python_of(path), f"{wanted.lock} sha256:{sha256_bytes(lock.files[lock.name])}, environment {short}")


def is_ready(path: Path) -> bool:
    """Whether it is complete and its Python is still there, which a system's update may have taken away."""
    return (path / READY).is_file() and os.access(python_of(path), os.X_OK)


def remove(path: Path) -> bool:
    """Removes an environment, complete or not; the caller holds its lock. The marker goes first and durably, so that at no moment
    what is left passes for complete. True when nothing is left. Raises OSError while the marker is there."""
    try:
        (path / READY).unlink()
    except (FileNotFoundError, NotADirectoryError):
        return clear(path)
    fsync_folder(path)
    return clear(path)


def python_of(path: Path) -> Path:
    return path / "venv" / "bin" / "python"


def short_key(attempt: Path) -> str:
    """Of the environment that the attempt uses, or ''."""
    try:
        return str(json.loads((attempt / NOTE).read_bytes())["key"])[:12]
    except FileNotFoundError:
        return ""


async def has_module(python: Path, module: str) -> bool:
    """Whether that Python finds the module, whose parents are imported for it."""
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    return await quiet_code([str(python), "-I", "-c", program, module]) == 0


async def _build(path: Path, key: str, lock: Lock, wanted: Wanted, outer: Mapping[str, str], uv: str) -> None:
    """Leaves a complete environment or none."""
    mark = f"PHALANX_BUILD={path}"
    try:
        await to_its_end(_lay_out, path, lock, wanted)
        project = path / "source" / PurePosixPath(lock.name).parent
        for command in commands(uv, path, lock):
            outcome = await run_logged(command, project, build_env(outer, path, mark), wanted.log, mark)
            if outcome.code and outcome.mends:
                raise StoreUnavailable(f"environment.lock: {wanted.lock!r}: uv cannot build it now: {outcome.reason}")
            if outcome.code:
                raise SpecError("environment.lock", wanted.lock, f"uv cannot build it: {outcome.reason}")
        if lock.kind == "requirements":
            await _check_whole(uv, path, outer, mark, wanted)
        await to_its_end(_seal, path, {"key": key, "lock": wanted.lock, "python": lock.python or _own_python()})
    except BaseException:
        await to_its_end(remove, path)  # half a build helps nobody and fills the disk
        raise


async def _check_whole(uv: str, path: Path, outer: Mapping[str, str], mark: str, wanted: Wanted) -> None:
    """A list of the packages that somebody thought of is no lock: what they need in turn would be found missing in the job."""
    command = [uv, "pip", "check", "--python", str(python_of(path))]
    outcome = await run_logged(command, path, build_env(outer, path, mark), wanted.log, mark)
    missing = [line for line in outcome.said.splitlines() if line.endswith("it's not installed")]
    if missing:  # versions that do not agree may be the author's will
        fix = "list what its packages need too: `uv pip compile` makes such a file"
        raise SpecError("environment.lock", wanted.lock, f"{missing[0].strip()}; {fix}")


def commands(uv: str, path: Path, lock: Lock) -> list[list[str]]:
    """What uv is asked for, in order, in the lock's folder of `source`."""
    made = [uv, "venv", "--quiet", "--no-project", f"--python={lock.python or sys.executable}", str(path / "venv")]
    if lock.kind == "uv":
        return [made, [uv, "sync", "--frozen", "--no-dev", "--no-install-project"]]
    hashes = ["--require-hashes"] if lock.hashed else []
    return [made, [uv, "pip", "sync", "--python", str(python_of(path)), *hashes, "--", PurePosixPath(lock.name).name]]


def build_env(outer: Mapping[str, str], path: Path, mark: str) -> dict[str, str]:
    """uv's configuration of this node counts: its index, its cache, its proxies."""
    kept = {name: value for name, value in outer.items() if not name.startswith("PHALANX_") and name not in _OTHER_PYTHONS}
    name, _, value = mark.partition("=")
    return {**kept, name: value, "UV_PROJECT_ENVIRONMENT": str(path / "venv"), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def _own_python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _lay_out(path: Path, lock: Lock, wanted: Wanted) -> None:
    """Begins a build where one may have been cut off. Raises OSError and what `workdir.unpack` does."""
    sweep((f"PHALANX_BUILD={path}",))  # of an agent before this one: we hold the lock, so nobody else builds this
    if not remove(path):
        raise SetupError("path", str(path), "has files that cannot be removed; remove them")
    path.mkdir(mode=0o700)
    if lock.local:
        workdir.unpack(wanted.packed, path / "source")
        return
    for name, content in lock.files.items():
        target = path / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _seal(path: Path, facts: Mapping[str, str]) -> None:
    """After this it is complete, also after a power cut: everything on that disk is flushed before the marker says so."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(opened):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(opened)
    write_atomic(path / READY, json.dumps(facts).encode())


def _note_use(path: Path, key: str, wanted: Wanted) -> None:
    os.utime(path / READY)
    write_atomic(wanted.attempt / NOTE, json.dumps({"key": key, "lock": wanted.lock}).encode())


@contextlib.asynccontextmanager
async def alone(path: Path, wait: Callable[[], None]) -> AsyncIterator[None]:
    """Holds the file's lock, in this process and among all."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _taken(handle):
            wait()
            while not _taken(handle):
                await asyncio.sleep(POLL_S)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
