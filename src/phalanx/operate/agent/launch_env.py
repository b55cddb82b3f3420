"""From a launch order to what each rank is started with. Pure but for a gang's token: paths and the outer environment come in as
arguments."""

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from phalanx.core import gang_wire
from phalanx.core.devices import CPU_SLOT, Device, NodeShape
from phalanx.core.ids import split_attempt
from phalanx.core.messages import GangRecovery, Launch
from phalanx.core.timeouts import Timeouts, as_dict, timeouts
from phalanx.core.trace_request import REQUESTS_VARIABLE
from phalanx.core.training_data import CACHE_LIMIT_VARIABLE, CACHE_VARIABLE
from phalanx.operate.agent.terminal import holder, notebook

_PYTHON_NAMES: Final = ("", "python", "python3")
_OURS: Final = ("PHALANX_", "TORCHELASTIC_")
_OF_NODE: Final = (CACHE_VARIABLE, CACHE_LIMIT_VARIABLE)
"""Which yet say something to ranks."""
_OTHER_PYTHONS: Final = ("PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX")
"""Of the agent's Python: they would bring its modules into an environment of the job's own."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Where an attempt meets its node. `folder`: the attempt's. `python`: the platform's own interpreter, or that of the
    environment built from the job's lock, whose `origin` goes into the lineage."""

    folder: str
    socket: str
    python: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class RankStart:
    """How one rank is started."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: str


@dataclass(frozen=True, slots=True)
class GangPlace:
    """Where this node's processes of a gang that recovers inside find who leads it. token: of this node's socket; spares: as in the
    job's spec. nodes: of each rank, () where all are of this one. node: this one. meeting: where shims of several nodes meet, and
    the token that they show. sizes: how many ranks it may have while some have no process. uid: whose ranks they are, where that is
    not the agent's user."""

    socket: Path
    token: str
    spares: int
    timeouts: Timeouts
    nodes: tuple[int, ...] = ()
    node: int = 0
    meeting: tuple[str, int, str] | None = None
    sizes: tuple[int, ...] = ()
    uid: int | None = None

    @classmethod
    def of(cls, launch: Launch, recovery: GangRecovery, socket: Path, uid: int | None = None) -> "GangPlace":
        """With a fresh token."""
        token, times = secrets.token_hex(32), timeouts(recovery.hang_ms)
        if launch.num_nodes == 1:
            return cls(socket, token, recovery.spares, times, sizes=recovery.sizes, uid=uid)
        nodes = tuple(node for node, count in enumerate(recovery.ranks) for _ in range(count))
        meeting = (launch.master_address, recovery.port, recovery.token)
        return cls(socket, token, recovery.spares, times, nodes, launch.node_rank, meeting, recovery.sizes, uid)

    def order(self) -> dict[str, Any]:
        """What the shim is told."""
        order = {
            "socket": str(self.socket),
            "token": self.token,
            "spares": self.spares,
            "timeouts": as_dict(self.timeouts),
            "nodes": list(self.nodes),
            "node": self.node,
            "sizes": list(self.sizes),
        }
        if self.uid is not None:
            order["uid"] = self.uid
        if self.meeting is not None:
            order |= dict(zip(("host", "port", "node_token"), self.meeting, strict=True))
        return order

    def env(self, member: int) -> dict[str, str]:
        return {
            gang_wire.ADDRESS: f"unix:{self.socket}",
            gang_wire.TOKEN: self.token,
            gang_wire.MEMBER: str(member),
            gang_wire.TIMEOUTS: json.dumps(as_dict(self.timeouts)),
        }


def rank_starts(
    launch: Launch, shape: NodeShape, paths: Paths, outer: Mapping[str, str], gang: GangPlace | None = None
) -> tuple[RankStart, ...]:
    """One start per device of `launch`, in rank order. `outer` is the agent's own environment, which ranks inherit less ours."""
    python = launch.python or paths.python
    if launch.session:
        return (_session_start(launch, shape, paths, outer, python),)
    argv = _resolved(launch.argv, python)
    shared = _inherited(launch, outer, python) | _gang(launch) | _devices(launch, shape) | _platform(launch, paths)
    shared["PHALANX_NODE"] = shape.node
    starts = []
    for local_rank in range(len(launch.devices)):
        rank = launch.first_rank + local_rank
        env = shared | _of_rank(rank, local_rank) | {"PHALANX_RECORDS": f"{paths.folder}/rank-{rank}.records"}
        if gang is not None:
            env |= gang.env(rank)
        starts.append(RankStart(rank, argv, env, f"{paths.folder}/rank-{rank}.log"))
    return tuple(starts)


def _session_start(launch: Launch, shape: NodeShape, paths: Paths, outer: Mapping[str, str], python: str) -> RankStart:
    """The one process of a shell or a notebook. It is in no gang: a script that is started in it must not wait for other ranks."""
    env = _inherited(launch, outer, python) | _devices(launch, shape) | _platform(launch, paths)
    env |= {"PHALANX_NODE": shape.node, "PHALANX_RECORDS": f"{paths.folder}/rank-0.records"}
    argv = tuple(holder.command("keep", _resolved(launch.argv, python) if any(launch.argv) else ()))
    if launch.session == "notebook":
        token, own = f"{paths.folder}/{notebook.TOKEN_FILE}", f"{paths.folder}/{notebook.FOLDER}"
        argv = (python, notebook.LAUNCHER, token, str(launch.master_port), own)
    return RankStart(launch.first_rank, argv, env, f"{paths.folder}/rank-{launch.first_rank}.log")


def marks(launch: Launch, socket: str) -> tuple[str, ...]:
    """What every process of the attempt carries. The socket is in it since another home may have an attempt of that name."""
    return (f"PHALANX_MARK={launch.attempt}", f"PHALANX_SOCKET={socket}")


def _resolved(argv: tuple[str, ...], python: str) -> tuple[str, ...]:
    """'' and a bare `python` mean the job's environment; anything else is found on the ranks' PATH or in their folder."""
    return (python, *argv[1:]) if argv[0] in _PYTHON_NAMES else argv


def _inherited(launch: Launch, outer: Mapping[str, str], python: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in outer.items()
        if (name in _OF_NODE or not name.startswith(_OURS)) and name not in launch.secrets
    }
    if launch.lock:
        kept = {name: value for name, value in kept.items() if name not in _OTHER_PYTHONS}
        kept["VIRTUAL_ENV"] = python.rpartition("/bin/")[0]
    threads = max(1, int(launch.cpus / len(launch.devices))) if launch.cpus else 1  # torchrun's default for several ranks is 1
    kept |= {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}  # a killed rank's last lines are in its log
    env = kept | dict(launch.env)
    if "/" in python and "PATH" not in launch.env:
        env["PATH"] = f"{python.rpartition('/')[0]}:{env.get('PATH', '/usr/bin:/bin')}"
    return env


def _gang(launch: Launch) -> dict[str, str]:
    """What torchrun sets for the whole gang (torch.distributed.run, section 'Environment Variables')."""
    return {
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_WORLD_SIZE": str(len(launch.devices)),
        "GROUP_RANK": str(launch.node_rank),
        "GROUP_WORLD_SIZE": str(launch.num_nodes),
        "ROLE_WORLD_SIZE": str(launch.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": launch.master_address,
        "MASTER_PORT": str(launch.master_port),
        "TORCHELASTIC_RUN_ID": launch.attempt,
        "TORCHELASTIC_RESTART_COUNT": str(launch.restarts),
        "TORCHELASTIC_MAX_RESTARTS": launch.env.get("TORCHELASTIC_MAX_RESTARTS", str(launch.restarts)),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _of_rank(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "ROLE_RANK": str(rank)}


def _devices(launch: Launch, shape: NodeShape) -> dict[str, str]:
    known = {device.index: device for device in shape.devices}
    gpus = [known[index] for index in launch.devices if index in known and known[index].type != CPU_SLOT]
    # NVML numbers by PCI bus and CUDA by speed unless told otherwise.
    return {"CUDA_VISIBLE_DEVICES": ",".join(_cuda_name(gpu) for gpu in gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _cuda_name(gpu: Device) -> str:
    return gpu.uuid or str(gpu.index)


def _platform(launch: Launch, paths: Paths) -> dict[str, str]:
    job, _ = split_attempt(launch.attempt)
    return {
        "PHALANX_JOB": job,
        "PHALANX_ATTEMPT": launch.attempt,
        "PHALANX_MARK": launch.attempt,
        "PHALANX_SOCKET": paths.socket,
        "PHALANX_JOB_DIR": launch.folder,
        "PHALANX_HYPERPARAMETERS": json.dumps(dict(launch.hyperparameters)),
        "PHALANX_CHECKPOINT_EVERY": str(launch.checkpoint_every),
        "PHALANX_CHECKPOINT_KEEP_LAST": str(launch.checkpoint_keep_last),
        "PHALANX_CHECKPOINT_KEEP_BEST": str(launch.checkpoint_keep_best),
        "PHALANX_CHECKPOINT_BEST_METRIC": launch.checkpoint_best_metric,
        "PHALANX_CHECKPOINT_BEST_MODE": launch.checkpoint_best_mode,
        "PHALANX_CHECKPOINT_KEEP_EVERY": str(launch.checkpoint_keep_every),
        "PHALANX_CHECKPOINT_MTBF_S": str(math.ceil(launch.checkpoint_mtbf_s)),
        "PHALANX_CHECKPOINTS": launch.checkpoints,
        "PHALANX_DATA": launch.env.get("PHALANX_DATA", ""),
        "PHALANX_DATA_SPEC": launch.env.get("PHALANX_DATA_SPEC", ""),
        "PHALANX_CODE": launch.code,
        "PHALANX_ENVIRONMENT": paths.origin or launch.image or launch.python,
        "PHALANX_ARTIFACTS": f"{paths.folder}/artifacts",
        "PHALANX_KEEPERS": f"{paths.folder}/keepers",
        REQUESTS_VARIABLE: f"{paths.folder}/requests",
        **({"PHALANX_CHAOS": f"{paths.folder}/chaos"} if launch.chaos else {}),
    }
