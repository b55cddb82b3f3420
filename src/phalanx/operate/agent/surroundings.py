"""What an attempt's ranks run in: the platform's Python, an environment built from the job's lock, or a container."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from phalanx.core.devices import NodeShape
from phalanx.core.errors import SetupError, SpecError, StoreUnavailable
from phalanx.core.messages import Launch
from phalanx.core.training_data import CACHE_LIMIT_VARIABLE, CACHE_VARIABLE, cache_folder, data_of, in_store
from phalanx.operate.agent import environments, images
from phalanx.operate.agent.attempts import AttemptFolder
from phalanx.operate.agent.environments import Environment
from phalanx.operate.agent.images import Container, Mount
from phalanx.operate.agent.logged import quiet_code, run_logged, say
from phalanx.operate.agent.sweeping import sweep
from phalanx.operate.agent.together import to_its_end
from phalanx.storage.atomic import fsync_folder

TIDY_S_MAX: Final = 30.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """python: of the environment; of no meaning in a container. origin: of the lock, for the lineage; '' without one."""

    python: str
    container: Container | None = None
    origin: str = ""


async def surroundings(
    folder: AttemptFolder, shape: NodeShape, agent_socket: Path, packed: bytes | None, outer: Mapping[str, str]
) -> Surroundings:
    """Made ready now where they are not yet. `packed`: the attempt's workdir, which is laid out already.

    Raises SpecError for what would be refused again, and whatever `environments.ready` does. May be cancelled.
    """
    launch = folder.accepted.launch
    if launch.image:
        return Surroundings("", await _container(folder, shape, agent_socket, outer))
    if launch.lock:
        made = await _environment(folder, packed, outer)
        return Surroundings(str(made.python), origin=made.origin)
    return Surroundings(sys.executable)


async def _environment(folder: AttemptFolder, packed: bytes | None, outer: Mapping[str, str]) -> Environment:
    launch = folder.accepted.launch
    wanted = environments.Wanted(launch.lock, folder.work, launch.code, packed or b"", folder.path, first_log(folder))
    made = await environments.ready(_beside(folder, "environments"), wanted, outer, environments.find_uv())
    module = _own_module(launch)
    if module and not await environments.has_module(made.python, module):
        fix = "has no phalanx in it, which a recipe needs; add it to the lock, or leave environment out"
        raise SpecError("environment.lock", launch.lock, fix)
    return made


async def _container(folder: AttemptFolder, shape: NodeShape, agent_socket: Path, outer: Mapping[str, str]) -> Container:
    launch, runtime = folder.accepted.launch, images.find_runtime()
    if runtime is None:
        raise SetupError("environment.image", launch.image, "this node has none of podman, apptainer and enroot; install one")
    data, cache = data_of(launch.env), _node_cache(folder, outer)
    mounts = [Mount(launch.folder), Mount(str(folder.path)), Mount(str(agent_socket.parent))]
    if data is not None:
        mounts += [Mount(path, read_only=True) for path in data.folders]
        mounts += [Mount(_made(data.cache.folder))] if data.cache.folder else []
    mounts += [Mount(cache[CACHE_VARIABLE])] if cache else []
    container = Container(
        runtime,
        launch.image,
        images.name_of(launch, str(agent_socket)),
        str(folder.work),
        tuple(mounts),
        images.gpus_of(launch, shape),
        launch.secrets,
        (os.getuid(), os.getgid()),
        _beside(folder, "images"),
        cache,
    )
    await _fetched(container, folder, outer)
    return container


def _node_cache(folder: AttemptFolder, outer: Mapping[str, str]) -> dict[str, str]:
    """Where this node keeps what jobs read from stores, as ranks hear of it: each container would make one of its own, in a layer
    that goes with it. Empty for a job that needs none, names one, or finds none here."""
    env = folder.accepted.launch.env
    data = data_of(env)
    if data is None or data.cache.folder or not any(in_store(path) for path in data.paths.values()):
        return {}
    place = cache_folder({**outer, **env}).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        say(first_log(folder), f"keeps data from stores in its container alone: {place} cannot be made ({error.strerror})")
        return {}
    limit = outer.get(CACHE_LIMIT_VARIABLE)
    return {CACHE_VARIABLE: str(place.absolute()), **({CACHE_LIMIT_VARIABLE: limit} if limit else {})}


def _made(cache: str) -> str:
    """The folder of a cache, which has to be there before a container sees it."""
    try:
        Path(cache).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError("data.cache.folder", cache, f"cannot be made on this node ({error.strerror}); name another") from error
    return cache


async def _fetched(container: Container, folder: AttemptFolder, outer: Mapping[str, str]) -> None:
    """Brings the image here, once for all attempts; its progress is in the log."""
    file, log = images.image_file(container), first_log(folder)
    if container.image.startswith("/"):
        if not Path(container.image).exists():
            raise SpecError("environment.image", container.image, "is not on this node; put it there, or name one of a registry")
        return
    container.images.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = container.images / f"{hashlib.sha256(container.image.encode()).hexdigest()[:32]}.lock"
    async with environments.alone(lock, lambda: say(log, "waits for its image, which another fetches")):
        env = {name: value for name, value in outer.items() if not name.startswith("PHALANX_")}
        if not await _is_here(container, file, env):
            say(log, f"fetches image {container.image}")
            await _fetch(container, file, env, log, f"PHALANX_BUILD={lock}")


async def _is_here(container: Container, file: Path | None, env: Mapping[str, str]) -> bool:
    if file is not None:
        return file.exists()
    return await quiet_code(images.look_command(container), env) == 0


async def _fetch(container: Container, file: Path | None, env: Mapping[str, str], log: Path, mark: str) -> None:
    """The caller holds the image's lock: what carries `mark` already fetches it for an agent that was killed, and would write into
    what we fetch."""
    await to_its_end(sweep, (mark,))
    half = file.with_suffix(".half") if file else None
    if half is not None:
        half.unlink(missing_ok=True)
    name, _, value = mark.partition("=")
    command = images.fetch_command(container, half)
    outcome = await run_logged(command, container.images, {**env, name: value}, log, mark)
    if outcome.code and outcome.mends:
        raise StoreUnavailable(f"environment.image: {container.image!r}: cannot be fetched now: {outcome.reason}")
    if outcome.code:
        raise SpecError("environment.image", container.image, f"cannot be fetched: {outcome.reason}")
    if file is not None and half is not None:
        await to_its_end(_keep, half, file)


def _keep(half: Path, file: Path) -> None:
    """The image is whole or absent, also after a power cut. Raises OSError."""
    with half.open("rb") as fetched:
        os.fsync(fetched.fileno())
    half.replace(file)
    fsync_folder(file.parent)


def tidy(launch: Launch, agent_socket: Path) -> None:
    """After the attempt's end, as often as you like. What cannot be removed now is told about, and costs only disk."""
    runtime = images.find_runtime() if launch.image else None
    ranks = range(launch.first_rank, launch.first_rank + len(launch.devices))
    command = images.tidy_command(runtime, images.name_of(launch, str(agent_socket)), ranks) if runtime else None
    if command is None:
        return
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIDY_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("containers_not_removed", attempt=launch.attempt, error=str(error))


def first_log(folder: AttemptFolder) -> Path:
    """Of the node's first rank: where people look for what became of the attempt."""
    return folder.stream("log", folder.ranks[0])


def _own_module(launch: Launch) -> str:
    """Ours that the ranks run, or ''."""
    words = launch.argv
    return words[2] if len(words) > 2 and words[:2] == ("", "-m") and words[2].startswith("phalanx.") else ""


def _beside(folder: AttemptFolder, name: str) -> Path:
    """node/<name>, for node/attempts/<attempt id>."""
    return folder.path.parent.parent / name
