"""Ranks that are kept apart, on a real agent: they work as others do, and are a user of their own in a machine of their own."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.ids import AttemptId
from phalanx.core.messages import Forget
from phalanx.operate.agent.isolation.gpu_nodes import ALWAYS
from tests.operate.agent.agent_cell import Cell, alive, until
from tests.operate.agent.isolation.apart_cell import a_cell

pytestmark = pytest.mark.needs_root

WHO = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(), "capabilities": int(status["CapBnd"], 16),
    "none_new": status["NoNewPrivs"].strip(), "calls": status["Seccomp"].strip(), "pid": os.getpid(), "env": dict(os.environ),
    "dev": sorted(os.listdir("/dev")), "shm": os.listdir("/dev/shm"),
    "procs": [one for one in os.listdir("/proc") if one.isdigit()],
}), flush=True)
"""
WAIT = "\nimport signal; signal.pause()"


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Cell]:
    with a_cell(tmp_path / "home") as cell:
        yield cell


def said(cell: Cell, attempt: str = "demo-1.1", rank: int = 0) -> dict[str, Any]:
    line = until(lambda: text if "\n" in (text := cell.far.text("log", attempt, rank)) else None)
    found: dict[str, Any] = json.loads(line.splitlines()[0])
    return found


def test_a_rank_is_a_user_of_its_own_without_rights(apart: Cell) -> None:
    apart.far.start(apart.launch(WHO))
    assert [exited.code for exited in apart.far.phase("demo-1.1", "ended").exits] == [0, 0]
    who = said(apart)
    [uid] = set(who["uids"])
    assert uid >= 200_000 and set(who["gids"]) == {uid} and who["groups"] == []
    assert (who["capabilities"], who["none_new"], who["calls"]) == (0, "1", "2")
    assert who["dev"] == sorted([*ALWAYS, "fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"])
    assert who["shm"] == [] and len(who["procs"]) <= 3 and int(who["pid"]) < 10


def test_its_variables_are_a_list_and_not_the_agents(apart: Cell) -> None:
    apart.far.start(apart.launch(WHO, ranks=1, env={"MINE": "1"}))
    env = said(apart)["env"]
    ours = {
        name for name in env if name.startswith(("PHALANX_", "TORCHELASTIC_")) or name.endswith(("RANK", "WORLD_SIZE", "_NAME"))
    }
    shown = {"MINE", "PATH", "PYTHONPATH", "LANG", "HOME", "USER", "LOGNAME", "TMPDIR", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"}
    shown |= {"MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "VIRTUAL_ENV", "TZ", "LC_ALL", "LC_CTYPE"}
    assert set(env) - ours - shown == set()


def test_records_artifacts_and_logs_arrive_as_ever(apart: Cell) -> None:
    work = """
import os, sys
from pathlib import Path
from phalanx.job.sdk.session import attach
Path(os.environ["PHALANX_ARTIFACTS"], "made").write_text("by a rank")
Path("kept").write_text(os.environ["RANK"])
attach().metric(name="loss", value=1.0, step=3)
print("done", Path("kept").stat().st_uid == os.getuid(), os.listdir(os.environ["PHALANX_REQUESTS"]))
"""
    apart.far.start(apart.launch(work))
    assert [exited.code for exited in apart.far.phase("demo-1.1", "ended").exits] == [0, 0], apart.far.text("log", "demo-1.1", 0)
    assert apart.far.text("log", "demo-1.1", 1) == "done True []\n"
    assert '"loss"' in apart.far.text("records", "demo-1.1", 0)
    assert (apart.home / "jobs" / "work" / "kept").exists()


def test_what_an_attempt_left_belongs_to_the_next(apart: Cell) -> None:
    """Whatever user that is, and whoever laid a file there."""
    first = "open('mine', 'w').write('1')"
    second = "open('mine', 'a').write('2'); open('of-agent', 'a').write('2')"
    apart.far.start(apart.launch(first, ranks=1))
    apart.far.phase("demo-1.1", "ended")
    work = apart.home / "jobs" / "work"
    (work / "of-agent").write_text("1")
    os.chown(work / "mine", 200_001, 200_001)
    apart.far.say(Forget(AttemptId("demo-1.1"), 1))
    apart.far.start(apart.launch(second, "demo-1.2", ranks=1))
    report = apart.far.phase("demo-1.2", "ended")
    assert [exited.code for exited in report.exits] == [0], apart.far.text("log", "demo-1.2", 0)
    assert (work / "mine").read_text() == (work / "of-agent").read_text() == "12"


def test_an_agent_that_was_killed_adopts_them_and_hears_them_again(apart: Cell) -> None:
    program = """
import os, socket, sys, time
from pathlib import Path
while not Path("go").exists():
    time.sleep(0.01)
call = socket.socket(socket.AF_UNIX)
call.connect(os.environ["PHALANX_SOCKET"])
print("heard", flush=True)
"""
    apart.far.start(apart.launch(program, ranks=1))
    apart.far.phase("demo-1.1", "running")
    apart.agent.end(signal.SIGKILL)
    apart.agent.start()
    until(lambda: len(apart.far.hellos()) >= 2 and apart.far.hellos()[-1].attempts)
    (apart.home / "jobs" / "work" / "go").touch()
    assert [exited.code for exited in apart.far.phase("demo-1.1", "ended").exits] == [0], apart.far.text("log", "demo-1.1", 0)
    assert apart.far.text("log", "demo-1.1", 0) == "heard\n"


def test_a_killed_shim_ends_what_hid_from_it_and_its_user_is_free_again(apart: Cell) -> None:
    hidden = "import os, signal\nif os.fork() == 0:\n    os.setsid()\n    print(os.getuid(), flush=True)\nsignal.pause()"
    apart.far.start(apart.launch(hidden, ranks=1))
    [rank] = [process.pid for process in apart.far.phase("demo-1.1", "running").ranks]
    uid = int(until(lambda: apart.far.text("log", "demo-1.1", 0)))
    assert (apart.home / "node" / "uids" / str(uid)).read_text() == "demo-1.1"
    os.kill(apart.shim_pid(), signal.SIGKILL)
    assert "died without exit records" in apart.far.phase("demo-1.1", "ended").lost
    assert not alive(rank)
    until(lambda: not (apart.home / "node" / "uids" / str(uid)).exists())


def test_a_secret_is_a_file_in_memory_that_its_user_alone_may_read(apart: Cell) -> None:
    value = "canary-of-a-file"
    look = """
import os
path = os.environ["TOKEN_FILE"]
with open(path) as file:
    known = os.stat(path)
    print(len(file.read()), oct(known.st_mode & 0o777), known.st_uid == os.getuid(), "TOKEN" in os.environ, flush=True)
print(next(line.split()[2] for line in open("/proc/mounts") if line.split()[1] == os.path.dirname(path)), flush=True)
import signal; signal.pause()
"""
    apart.far.answers["/api/v1/attempts/demo-1.1/secrets?node=node-a"] = (200, json.dumps({"TOKEN": value}).encode())
    apart.far.start(apart.launch(look, ranks=1, secret_files=("TOKEN",)))
    said = until(lambda: text if (text := apart.far.text("log", "demo-1.1", 0)).count("\n") == 2 else None)
    assert said == "16 0o400 True False\nramfs\n"
    assert [str(path) for path in apart.home.rglob("*") if path.is_file() and value.encode() in path.read_bytes()] == []
    assert not list((apart.folder() / "secrets").iterdir())
    os.kill(apart.shim_pid(), signal.SIGTERM)
    apart.far.phase("demo-1.1", "ended")


def test_a_command_that_does_not_exist_is_told_as_ever(apart: Cell) -> None:
    apart.far.start(apart.launch("", ranks=1, argv=("no-such-program",)))
    assert [exited.code for exited in apart.far.phase("demo-1.1", "ended").exits] == [127]
    assert "cannot start 'no-such-program'" in apart.far.text("log", "demo-1.1", 0)


def test_checkpoints_where_they_would_be_lost_are_refused(apart: Cell) -> None:
    apart.far.start(apart.launch("", ranks=1, checkpoints="/tmp/kept/demo-1"))
    report = apart.far.phase("demo-1.1", "ended")
    assert "checkpoint.store" in report.refused and "each attempt has its own" in report.refused


@pytest.fixture
def store() -> Iterator[Path]:
    """A folder of several teams' checkpoints, as the documentation has it made."""
    folder = Path(tempfile.mkdtemp(dir="/srv"))
    folder.chmod(0o1733)
    yield folder
    shutil.rmtree(folder)


SAVES = """
import os
from pathlib import Path
from phalanx.job.checkpoint.disk_folder import DiskFolder
os.umask(0o022)
place = DiskFolder(Path(os.environ["PHALANX_CHECKPOINTS"]) / "step-1")
print(place.names(), flush=True)
place.write("manifest", b"secret of b")
place.write_views("shard", [memoryview(b"secret of b")])
"""
LOOKS = """
import os, sys
from pathlib import Path
for look in (lambda: Path(STORE, "b-1-77", "step-1", "shard").read_text(), lambda: sorted(os.listdir(STORE))):
    try:
        print(look(), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


def test_checkpoints_in_a_store_of_several_teams_are_one_jobs_alone(apart: Cell, store: Path) -> None:
    """By the view, which has nothing else of the store, and by their modes, for whoever's view the node does not know to close."""

    def ran(attempt: str, program: str, **changes: Any) -> str:
        name = attempt.partition(".")[0]
        apart.far.start(apart.launch(program, attempt, ranks=1, folder=str(apart.home / "jobs" / name), **changes))
        assert [exited.code for exited in apart.far.phase(attempt, "ended").exits] == [0], apart.far.text("log", attempt, 0)
        return apart.far.text("log", attempt, 0)

    own = {"checkpoints": str(store / "b-1-77")}
    assert ran("b-1.1", SAVES, **own) == "[]\n"
    assert (store / "b-1-77").stat().st_mode & 0o777 == 0o700
    looks = LOOKS.replace("STORE", repr(str(store)))
    assert ran("a-1.1", looks, checkpoints=str(store / "a-1-66")) == "No such file or directory\n['a-1-66']\n"
    assert ran("c-1.1", looks, store=str(store)) == "No such file or directory\n[]\n"
    assert ran("d-1.1", looks) == "Permission denied\nPermission denied\n"
    os.chown(store / "b-1-77", 200_001, 200_001)
    assert ran("b-1.2", SAVES, **own) == "['manifest', 'shard']\n", "the next attempt's user has them"


def test_a_folder_that_somebody_laid_where_a_first_attempt_would_save_is_refused(apart: Cell, store: Path) -> None:
    (store / "demo-1-77").mkdir()
    (store / "demo-1-77").chmod(0o777)
    os.chown(store / "demo-1-77", 200_001, 200_001)
    apart.far.start(apart.launch("", ranks=1, checkpoints=str(store / "demo-1-77")))
    assert "not of this job's making" in apart.far.phase("demo-1.1", "ended").refused


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that any user may pass to, unlike those of these tests."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_data_is_seen_where_its_user_may_see_it_and_cannot_be_changed(apart: Cell, elsewhere: Path) -> None:
    for name, mode in (("open", 0o777), ("closed", 0o700)):
        (elsewhere / name).mkdir()
        (elsewhere / name / "shard").write_text("tokens")
        (elsewhere / name / "shard").chmod(0o666)
        (elsewhere / name).chmod(mode)
    look = """
import os
for mode in "ra":
    try:
        print(open(os.environ["PHALANX_DATA"] + "/shard", mode).mode, flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""
    told = {"open": ["r", "Read-only file system"], "closed": ["Permission denied"] * 2}
    for number, (name, lines) in enumerate(told.items(), 1):
        attempt = f"demo-{number}.1"
        apart.far.start(apart.launch(look, attempt, ranks=1, env={"PHALANX_DATA": str(elsewhere / name)}))
        apart.far.phase(attempt, "ended")
        assert apart.far.text("log", attempt, 0).splitlines() == lines, name
