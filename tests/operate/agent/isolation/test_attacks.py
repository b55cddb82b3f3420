"""One team's job against another's and the platform: each attempt fails where jobs are kept apart, and not where they are not."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.ids import AttemptId
from phalanx.core.isolation import SCOPES, Mode
from phalanx.operate.agent.isolation.found import found
from phalanx.operate.agent.sockets import shim_socket, socket_folder
from tests.operate.agent.agent_cell import until
from tests.operate.agent.isolation.apart_cell import a_cell

pytestmark = pytest.mark.needs_root
PROBES = Path(__file__).with_name("probes.py")
CANARY = "canary-of-b"
KEY = 0x70686B
OF_B = """
import ctypes, os, signal, socket
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
shared_by_b, canary = KEY, "-".join(("canary", "of", "b"))
print(canary, flush=True)
job = Path(os.environ["PHALANX_JOB_DIR"])
Path("notes.txt").write_text(canary)
(job / "checkpoints").mkdir(exist_ok=True)
outside = [Path(folder, "phalanx-test-of-b") for folder in ("/tmp", "/dev/shm")]
for path in (job / "checkpoints" / "shard", Path(os.environ["PHALANX_ARTIFACTS"], "result"), *outside):
    path.write_text(canary)
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
handle = libc.shmget(shared_by_b, 4096, 0o1666)
ctypes.memmove(libc.shmat(handle, None, 0), canary.encode(), len(canary))
server = socket.socket(socket.AF_UNIX)
server.bind("\\0phalanx-test-of-b")
server.listen(8)
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
libc.shmctl(handle, 0, None)
for path in outside:
    path.unlink()
""".replace("KEY", str(KEY))
"""A job with something of every kind that another could want. It reads no terminal and needs no other rank."""


def attempts() -> list[str]:
    """By name, as the program itself tells its helpers from them."""
    body = ast.parse(PROBES.read_text()).body
    [helpers] = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HELPERS"]
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name not in ast.literal_eval(helpers)]


NAMES = attempts()


def caught(home: Path, mode: Mode, namespaces: bool) -> Mapping[str, str]:
    """What a job of A's came by."""
    home.mkdir(parents=True)
    for name in ("token", "node-token", "phalanx.db", "secret.key", "gang.key"):
        (home / name).write_text(CANARY)
        (home / name).chmod(0o600)
    with a_cell(home, mode, namespaces) as cell:
        cell.far.answers["/api/v1/attempts/b-1.1/secrets?node=node-a"] = (200, json.dumps({"TOKEN": CANARY}).encode())
        cell.far.start(cell.launch(OF_B, "b-1.1", ranks=1, folder=str(home / "jobs" / "b-1"), secrets=("TOKEN",)))
        until(lambda: "ready" in cell.far.text("log", "b-1.1", 0))
        [rank] = cell.far.phase("b-1.1", "running").ranks
        target: dict[str, Any] = {
            "home": str(home),
            "folder": str(home / "jobs" / "b-1"),
            "attempt": str(cell.folder("b-1.1")),
            "key": KEY,
            "pid": rank.pid,
            "shim": cell.shim_pid("b-1.1"),
            "agent": cell.agent.pid,
            "shim_socket": str(shim_socket(socket_folder(home), AttemptId("b-1.1"))),
        }
        env = {"TARGET": json.dumps(target)}
        cell.far.start(cell.launch(PROBES.read_text(), "a-1.1", ranks=1, folder=str(home / "jobs" / "a-1"), env=env))
        said = until(lambda: text if "\n" in (text := cell.far.text("log", "a-1.1", 0)) else None)
        came: dict[str, str] = json.loads(said)
        return came


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
        return caught(tmp_path_factory.mktemp("apart") / "home", "uid", True)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The same without isolation: once as ever, once without the PID namespaces that root has anyway."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
        runs = [caught(tmp_path_factory.mktemp(f"open{number}") / "home", "none", bool(number)) for number in range(2)]
    return {name: next((run[name] for run in runs if run[name] == "got it"), str([run[name] for run in runs])) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_it_gets_nothing(name: str, apart: Mapping[str, str]) -> None:
    if name == "an_abstract_socket" and found()[SCOPES]:
        return  # before Linux 6.12 these are shared, which `node describe` says: not one of core.isolation.NEEDED
    assert apart[name] != "got it"


@pytest.mark.parametrize("name", NAMES)
def test_it_would_without_isolation(name: str, together: Mapping[str, str]) -> None:
    assert together[name] == "got it"
