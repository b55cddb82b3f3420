"""Ranks inside a container image: from how a rank would be started to the command of podman, apptainer or enroot. Pure but for
`find_runtime`.

A container here is a file system and nothing else: network, IPC, processes and the user are the node's, so that NCCL, MASTER_PORT,
signals and the sweep by marks work as for any rank. Values of variables go through the environment of the container tool and
never through its arguments, which every user of the node can read.
"""

import csv
import hashlib
import io
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, get_args

from phalanx.core.devices import CPU_SLOT, Device, NodeShape
from phalanx.core.messages import Launch
from phalanx.operate.agent.launch_env import Paths, RankStart, rank_starts

RuntimeName = Literal["podman", "apptainer", "enroot"]

_OF_HOST: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|TMPDIR|XDG_\w+|DBUS_SESSION_BUS_ADDRESS|(?i:https?|no|all)_(?i:proxy)|SSL_CERT_\w+|CONTAINERS?_\w+"
    r"|REGISTRY_AUTH_FILE|APPTAINER\w*|ENROOT_\w+"
)
"""What the container tool itself needs of the agent's environment. The rest of it says nothing inside an image."""
_INSIDE_PYTHON: Final = "python3"
"""Every image with a Python has it under this name."""
_IN_FOLDER: Final = ("sh", "-c", 'cd "$0" && exec "$@"')
"""enroot has no option for the working folder."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container tool of this node. `path`: of its program."""

    name: RuntimeName
    path: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A path that is the same inside and outside."""

    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """What all ranks of an attempt on this node have in common. name: the containers' but for the rank. user: (uid, gid) of the
    agent. images: the folder where apptainer's and enroot's images lie as files. env: what ranks inherit of the node."""

    runtime: Runtime
    image: str
    name: str
    cwd: str
    mounts: tuple[Mount, ...]
    gpus: tuple[Device, ...]
    secrets: tuple[str, ...]
    user: tuple[int, int]
    images: Path
    env: Mapping[str, str] = field(default_factory=dict)


def find_runtime(which: Callable[[str], str | None] = shutil.which) -> Runtime | None:
    """The first one that is on PATH, in the order of `RuntimeName`."""
    found = ((name, which(name)) for name in get_args(RuntimeName))
    return next((Runtime(name, path) for name, path in found if path is not None), None)


def contained_starts(
    launch: Launch, shape: NodeShape, paths: Paths, outer: Mapping[str, str], container: Container
) -> tuple[RankStart, ...]:
    """As `rank_starts`, inside the image."""
    inside = rank_starts(replace(launch, python=""), shape, replace(paths, python=_INSIDE_PYTHON), container.env)
    named = launch.argv[0] if launch.argv[0] else _INSIDE_PYTHON  # `python` stays what the image calls so
    starts = (replace(start, argv=(named, *launch.argv[1:])) for start in inside)
    return tuple(contained(start, container, outer) for start in starts)


def contained(start: RankStart, container: Container, outer: Mapping[str, str]) -> RankStart:
    """`start` by way of the container tool."""
    host = {name: value for name, value in outer.items() if _OF_HOST.fullmatch(name)}
    options = {"podman": _podman, "apptainer": _apptainer, "enroot": _enroot}[container.runtime.name]
    return replace(start, argv=options(start, container, host), env=_tool_env(start, container, host))


def gpus_of(launch: Launch, shape: NodeShape) -> tuple[Device, ...]:
    known = {device.index: device for device in shape.devices}
    return tuple(known[index] for index in launch.devices if index in known and known[index].type != CPU_SLOT)


def name_of(launch: Launch, socket: str) -> str:
    """Of the attempt's containers. The socket is in it since another home may have an attempt of that name."""
    return f"phalanx-{hashlib.sha256(f'{socket} {launch.attempt}'.encode()).hexdigest()[:16]}"


def image_file(container: Container) -> Path | None:
    """The image as a file of this node; None where the tool keeps images by name."""
    if container.image.startswith("/"):
        return Path(container.image)
    if container.runtime.name == "podman":
        return None
    return container.images / f"{hashlib.sha256(container.image.encode()).hexdigest()[:32]}.image"


def look_command(container: Container) -> tuple[str, ...]:
    """Ends with 0 when podman has the image."""
    return (container.runtime.path, "image", "exists", container.image)


def fetch_command(container: Container, into: Path | None) -> tuple[str, ...]:
    """Brings the image onto this node, once for all ranks; `into` a file, but for podman."""
    path, image = container.runtime.path, container.image
    match container.runtime.name:
        case "podman":
            return (path, "pull", image)
        case "apptainer":
            return (path, "pull", str(into), image if "://" in image else f"docker://{image}")
        case "enroot":
            return (path, "import", "--output", str(into), _enroot_reference(image))


def tidy_command(runtime: Runtime, name: str, ranks: Sequence[int]) -> tuple[str, ...] | None:
    """Removes what podman still knows of the attempt's containers: killed with their shim, they could not do so themselves."""
    if runtime.name != "podman":
        return None
    return (runtime.path, "rm", "--force", "--ignore", "--time=0", *(f"{name}-{rank}" for rank in ranks))


def _tool_env(start: RankStart, container: Container, host: Mapping[str, str]) -> dict[str, str]:
    """The tool's own variables win: a job that sets PATH must not change how the tool is found by its helpers."""
    env = {**start.env, **host}
    if container.runtime.name == "apptainer":  # hands on all but what the image sets
        env |= {f"APPTAINERENV_{name}": value for name, value in start.env.items() if name in host or name in ("LD_LIBRARY_PATH",)}
    if container.runtime.name == "enroot" and container.gpus:  # its hook for GPUs reads these
        env |= {"NVIDIA_VISIBLE_DEVICES": start.env["CUDA_VISIBLE_DEVICES"], "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    return env


def _named(start: RankStart, container: Container, host: Mapping[str, str]) -> list[str]:
    """Arguments of --env: by name alone the value is taken from the tool's environment. One that the tool needs otherwise is given
    with its value, which is no secret: a secret of such a name stays outside."""
    words = []
    for name in [*start.env, *(name for name in container.secrets if name not in start.env and name not in host)]:
        words += ["--env", f"{name}={start.env[name]}" if name in host and name in start.env else name]
    return words


def _podman(start: RankStart, container: Container, host: Mapping[str, str]) -> tuple[str, ...]:
    uid, gid = container.user
    words = [
        container.runtime.path, "run", "--rm", "--network=host", "--ipc=host", "--pid=host", "--security-opt=label=disable",
        "--log-driver=passthrough", f"--user={uid}:{gid}", f"--workdir={container.cwd}",
        f"--name={container.name}-{start.rank}", "--replace",
    ]  # fmt: skip
    words += ["--userns=keep-id"] if uid else []
    words += [word for mount in container.mounts for word in ("--mount", _mount_words(mount))]
    words += [f"--device=nvidia.com/gpu={gpu.index}" for gpu in container.gpus]  # CDI, as `nvidia-ctk cdi generate` names them
    words += _named(start, container, host)
    words += ["--entrypoint", ""]  # the job's command is all that runs
    return (*words, *_podman_image(container.image), *start.argv)


def _podman_image(image: str) -> tuple[str, ...]:
    """A path is an unpacked root, which stays as it is (':O'), or an archive made by `podman save`."""
    if not image.startswith("/"):
        return ("--pull=never", image)  # it was fetched before
    return (f"docker-archive:{image}",) if image.endswith(".tar") else ("--rootfs", f"{image}:O")


def _apptainer(start: RankStart, container: Container, host: Mapping[str, str]) -> tuple[str, ...]:
    words = [container.runtime.path, "exec", "--no-home", "--pwd", container.cwd]
    words += [word for mount in container.mounts for word in ("--mount", _mount_words(mount))]
    words += ["--nv"] if container.gpus else []
    return (*words, str(image_file(container)), *start.argv)


def _enroot(start: RankStart, container: Container, host: Mapping[str, str]) -> tuple[str, ...]:
    words = [container.runtime.path, "start"]
    for mount in container.mounts:
        words += ["--mount", f"{mount.path}:{mount.path}:none:x-create=dir,bind,{'ro' if mount.read_only else 'rw'}"]
    words += _named(start, container, host)
    if container.gpus:
        words += ["--env", "NVIDIA_VISIBLE_DEVICES", "--env", "NVIDIA_DRIVER_CAPABILITIES"]
    return (*words, str(image_file(container)), *_IN_FOLDER, container.cwd, *start.argv)


def _enroot_reference(image: str) -> str:
    """enroot parts the registry from the name by '#'."""
    if "://" in image:
        return image
    registry, slash, name = image.partition("/")
    is_registry = bool(slash) and ("." in registry or ":" in registry or registry == "localhost")
    return f"docker://{registry}#{name}" if is_registry else f"docker://{image}"


def _mount_words(mount: Mount) -> str:
    """podman and apptainer read a line of CSV, so that a path may hold a comma."""
    words: Sequence[str] = ("type=bind", f"source={mount.path}", f"destination={mount.path}", *(["ro"] if mount.read_only else []))
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(words)
    return line.getvalue()
