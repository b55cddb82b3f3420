"""Keeps the attempts of this node apart: gives each its user, its folders, its control group and its view, and takes them back."""

import os
import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from phalanx.core import isolation as names
from phalanx.core.devices import NodeShape
from phalanx.core.errors import SetupError
from phalanx.core.ids import AttemptId
from phalanx.core.messages import Launch
from phalanx.core.training_data import data_of
from phalanx.operate.agent.attempts import AttemptFolder
from phalanx.operate.agent.images import gpus_of
from phalanx.operate.agent.isolation import stores
from phalanx.operate.agent.isolation.cgroups import Bounds, ended
from phalanx.operate.agent.isolation.gpu_nodes import device_nodes
from phalanx.operate.agent.isolation.handing import hand_over
from phalanx.operate.agent.isolation.of_node import Apartness
from phalanx.operate.agent.isolation.uids import Uids
from phalanx.operate.agent.isolation.view import Wanted, is_closed, real, view
from phalanx.operate.agent.terminal import notebook

HOME: Final = "home"
"""The ranks' own, in the job's folder: what programs keep there is found again by the next attempt."""
SECRETS: Final = "secrets"
"""In the attempt's folder: where files in memory lie, in the view of its ranks alone."""
_TEMPORARY: Final = {"/tmp": "tmp", "/var/tmp": "var-tmp"}  # noqa: S108 - each attempt gets its own
_OF_RANKS: Final = ("artifacts", "chaos", "keepers", *_TEMPORARY.values())
"""Folders in the attempt's that its ranks write to."""
_log = structlog.get_logger()


class Keeping:
    """One agent's. Its methods may be called from any thread, those of one attempt not at once."""

    def __init__(self, home: Path, apart: Apartness) -> None:
        self._home = home
        self._apart = apart
        self.uids = Uids(home / "node" / "uids")

    @property
    def on(self) -> bool:
        """Whether attempts that start now are kept apart; those that run stay as they were started."""
        return self._apart.told.mode == "uid"

    def recover(self, held: Collection[AttemptId]) -> None:
        """As an agent starts: what was left by attempts that are over. Raises OSError."""
        self.uids.recover(held)

    def enter(self, folder: AttemptFolder, door: Path) -> None:
        """Takes the attempt's user and makes what is its own, before anything of it runs. Raises SetupError, SpecError, OSError."""
        launch = folder.accepted.launch
        stores.refuse_lost(launch)
        owner = Path(launch.folder).lstat().st_uid
        uid = self.uids.take(folder.attempt, launch.num_nodes > 1, launch.user_seed, owner)
        door.mkdir(mode=0o711, exist_ok=True)
        door.chmod(0o711)
        folder.path.chmod(0o711)  # passed by whoever knows a name in it, which in the attempt's own view is its user alone
        (folder.path / SECRETS).mkdir(mode=0o755, exist_ok=True)
        for name in _OF_RANKS:
            (folder.path / name).mkdir(mode=0o700, exist_ok=True)
            os.chown(folder.path / name, uid, uid, follow_symlinks=False)
        Path(launch.folder).chmod(0o700)
        Path(launch.folder, HOME).mkdir(mode=0o700, exist_ok=True)

    def hand_over(self, folder: AttemptFolder) -> None:
        """All that lies there already, of the job and of the attempt: from the agent, which laid out the work folder, and from the
        users of earlier attempts. Raises SetupError, SpecError, OSError."""
        launch, uid = folder.accepted.launch, self._uid(folder)
        job = Path(launch.folder)
        hand_over(job, uid, self.uids.all)
        stores.take(launch, uid, self.uids.all)
        folder.requests.chmod(0o755)  # which they read, and the agent writes
        for rank in folder.ranks:
            for stream in ("log", "records"):
                _given(folder.path / f"rank-{rank}.{stream}", uid)
        if launch.session == "notebook":
            _given(folder.path / notebook.TOKEN_FILE, uid)
            hand_over(folder.path / notebook.FOLDER, uid, self.uids.all)
        for name in _OF_RANKS:
            hand_over(folder.path / name, uid, self.uids.all)

    def order(self, folder: AttemptFolder, shape: NodeShape, door: Path) -> dict[str, Any]:
        """What the shim does for it. Raises SetupError, OSError."""
        launch = folder.accepted.launch
        group = self._apart.groups.made(self._owner(folder.attempt), Bounds(launch.memory_bytes, launch.cpus))
        return {
            "uid": self._uid(folder),
            "places": view(self._wanted(folder, door), is_closed),
            "devices": device_nodes(gpus_of(launch, shape), launch.num_nodes > 1),
            "scope": names.SCOPES in self._apart.told.can,
            "group": str(group) if group else "",
            "secrets": {name: f"{folder.path}/{SECRETS}/{name}" for name in launch.secret_files},
        }

    def leave(self, folder: AttemptFolder, door: Path) -> None:
        """Once the attempt is over, as often as you like. What cannot be taken back now is told of, and is at the next start."""
        group = self._apart.groups.of(self._owner(folder.attempt))
        if group is not None and not ended(group):
            _log.warning("control_group_left", attempt=folder.attempt, group=str(group))
        shutil.rmtree(door, ignore_errors=True)
        try:
            if not self.uids.release(folder.attempt):
                _log.warning("user_kept", attempt=folder.attempt, why="a process of its user cannot be ended")
        except OSError as error:
            _log.warning("user_kept", attempt=folder.attempt, why=str(error))

    def _uid(self, folder: AttemptFolder) -> int:
        uid = self.uids.of(folder.attempt)
        assert uid is not None, "an attempt is entered first"
        return uid

    def _owner(self, attempt: AttemptId) -> str:
        return f"{self._home} {attempt}"

    def _wanted(self, folder: AttemptFolder, door: Path) -> Wanted:
        launch = folder.accepted.launch
        data = data_of(launch.env)
        job, attempt = os.path.realpath(launch.folder), os.path.realpath(folder.path)
        own = {path: path for path in (job, attempt, os.path.realpath(door))}
        own |= {place: f"{attempt}/{name}" for place, name in _TEMPORARY.items()}
        hidden = real([str(self._home), str(Path(job).parent), *stores.hidden(launch)])
        memory = f"{attempt}/{SECRETS}" if launch.secret_files else ""
        return Wanted(hidden, own, _programs(launch, os.environ), real(data.folders) if data else (), memory, stores.kept(launch))


def _programs(launch: Launch, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the platform's own Python is made of. That which a job names is seen only where any user may see it."""
    ours = Path(__file__).parents[4]
    return real([sys.prefix, sys.base_prefix, str(ours), *environ.get("PYTHONPATH", "").split(os.pathsep)])


def _given(file: Path, uid: int) -> None:
    """In the attempt's folder, which is the agent's: nobody else can have put a link there. Raises OSError, SetupError."""
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(opened).st_nlink > 1:
            raise SetupError("file", str(file), "has a second name; remove it")
        os.fchown(opened, uid, uid)
    finally:
        os.close(opened)
