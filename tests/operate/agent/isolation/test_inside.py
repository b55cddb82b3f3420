"""The shim of a job that is kept apart: who may call it, what it says of memory, and that nothing starts where a step fails."""

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.gang_wire import Frame
from phalanx.operate.agent import shim
from phalanx.operate.agent.gang.doorway import Doorway
from phalanx.operate.agent.isolation.gpu_nodes import ALWAYS
from tests.operate.agent.agent_cell import DEADLINE_S, until

pytestmark = pytest.mark.needs_root
UID = 310_000


def ordered(folder: Path, **apart: Any) -> list[str]:
    """How to start the shim of an attempt that sleeps."""
    (folder / "exits").mkdir(parents=True)
    (folder / "rank-0.log").touch()
    told = {"rank": 0, "argv": ["sleep", "600"], "env": {"PATH": "/usr/bin:/bin"}, "log": str(folder / "rank-0.log")}
    isolation = {"uid": UID, "places": [], "devices": list(ALWAYS), "scope": False, "group": "", "secrets": {}, **apart}
    order = {"ranks": [told], "cwd": "/", "socket": str(folder / "s"), "marks": ["X=1"], "grace_ms": 60_000, "isolation": isolation}
    (folder / "shim.json").write_text(json.dumps(order))
    return shim.command(folder)


def test_a_rank_that_the_kernel_killed_for_memory_has_that_as_its_last_line(tmp_path: Path) -> None:
    """The group is a folder that stands for the kernel's: what it writes there is written by this test."""
    group, folder = tmp_path / "group", tmp_path / "demo-1.1"
    group.mkdir()
    (group / "cgroup.procs").touch()
    (group / "memory.events").write_text("oom 0\noom_kill 0\n")
    child = subprocess.Popen(ordered(folder, group=str(group)), stdin=subprocess.DEVNULL)
    until((folder / "ranks.json").exists)
    [rank] = json.loads((folder / "ranks.json").read_bytes())
    assert (group / "cgroup.procs").read_text() == "0", "it went in by itself"
    (group / "memory.events").write_text("oom 1\noom_kill 1\n")
    os.kill(rank["pid"], signal.SIGKILL)
    assert child.wait(DEADLINE_S) == 0
    assert json.loads((folder / "exits" / "rank-0.json").read_bytes())["code"] == -signal.SIGKILL
    assert (folder / "rank-0.log").read_text().startswith("MemoryError: the kernel killed a process of this job")


@pytest.mark.parametrize(
    "broken",
    [
        {"places": [{"at": "/nowhere/at/all", "kind": "own", "source": "/nowhere/at/all"}]},
        {"devices": ["no-such-device"]},
    ],
)
def test_a_view_that_cannot_be_made_starts_nothing(tmp_path: Path, broken: dict[str, Any]) -> None:
    folder = tmp_path / "demo-1.1"
    ended = subprocess.run(ordered(folder, **broken), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0 and "cannot be kept apart" in ended.stderr and "No such file" in ended.stderr
    assert not (folder / "shim-pid.json").exists() and (folder / "rank-0.log").read_text() == ""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which any user may make another, as a store is."""
    folder = Path(tempfile.mkdtemp(dir="/srv"))
    folder.chmod(0o1733)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_for_checkpoints_is_made_by_the_rights_of_its_user_for_it_alone(tmp_path: Path, shared: Path) -> None:
    folder, kept = tmp_path / "demo-1.1", shared / "demo-1-77"
    child = subprocess.Popen(ordered(folder, places=[_kept(kept)]), stdin=subprocess.DEVNULL)
    until((folder / "ranks.json").exists)
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (UID, 0o700)
    os.kill(json.loads((folder / "ranks.json").read_bytes())[0]["pid"], signal.SIGKILL)
    assert child.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("planted", ["a link", "another's", "no right"])
def test_what_is_not_the_users_folder_is_not_bound(tmp_path: Path, shared: Path, planted: str) -> None:
    kept, said = shared / "demo-1-77", {"a link": "Not a directory", "another's": "another user's", "no right": "Permission denied"}
    if planted == "a link":
        kept.symlink_to("/etc")
    elif planted == "another's":
        kept.mkdir()
        kept.chmod(0o777)
    else:
        shared.chmod(0o755)
    command = ordered(tmp_path / "demo-1.1", places=[_kept(kept)])
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S)
    assert said[planted] in ended.stderr and not (tmp_path / "demo-1.1" / "shim-pid.json").exists()


def _kept(place: Path) -> dict[str, str]:
    return {"at": str(place), "kind": "kept", "source": str(place)}


def test_a_group_that_cannot_be_joined_starts_no_rank(tmp_path: Path) -> None:
    folder = tmp_path / "demo-1.1"
    ended = subprocess.run(ordered(folder, group=str(tmp_path / "gone")), stdin=subprocess.DEVNULL, timeout=DEADLINE_S)
    assert ended.returncode == 0
    assert json.loads((folder / "exits" / "rank-0.json").read_bytes())["code"] == shim.CANNOT_START
    assert "cannot start 'sleep'" in (folder / "rank-0.log").read_text()


def test_a_process_of_another_user_does_not_come_in_though_it_knows_the_token(tmp_path: Path) -> None:
    heard: list[Frame] = []
    with selectors.DefaultSelector() as selector:
        doorway = Doorway(selector, "token", lambda peer, frame: heard.append(frame), lambda peer: None, UID)
        place = tmp_path / "gang"
        doorway.open(place)
        assert (place.stat().st_uid, place.stat().st_mode & 0o777) == (UID, 0o600)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(place))  # root may connect to any
            for key, _ in selector.select(DEADLINE_S):
                key.data()
            assert stranger.recv(1) == b"", "hung up on before a word"
        assert doorway.members() == [] and heard == []
        doorway.close()


def test_a_process_of_the_jobs_user_comes_in(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        doorway = Doorway(selector, "token", lambda peer, frame: None, lambda peer: None, os.geteuid())
        doorway.open(tmp_path / "gang")
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(str(tmp_path / "gang"))
            for key, _ in selector.select(DEADLINE_S):
                key.data()
            own.settimeout(0)
            with pytest.raises(BlockingIOError):
                own.recv(1)
        doorway.close()
