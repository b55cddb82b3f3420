"""From a launch to ranks with torchrun's environment, and every way in which that can fail."""

import hashlib
import json
import socket
from pathlib import Path

from phalanx.core.ids import AttemptId
from phalanx.core.messages import Forget, StopRanks
from phalanx.operate.agent.sockets import shim_socket, socket_folder
from phalanx.storage import workdir
from tests.operate.agent.agent_cell import Cell, until

SHOW = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"


def test_a_script_sees_torchruns_environment_and_ours(cell: Cell) -> None:
    launch = cell.launch(SHOW, env={"MINE": "1", "PHALANX_DATA": "/data"}, first_rank=2, world_size=4, node_rank=0, num_nodes=2)
    cell.far.start(launch)
    report = cell.far.phase("demo-1.1", "ended")
    assert [(exited.rank, exited.code, exited.first) for exited in report.exits] == [(2, 0, False), (3, 0, False)]
    assert [process.rank for process in report.ranks] == [2, 3]
    seen = json.loads(cell.far.text("log", "demo-1.1", 3))
    expected = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "4", "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(launch.master_port), "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MINE": "1",
        "PHALANX_JOB": "demo-1", "PHALANX_ATTEMPT": "demo-1.1", "PHALANX_MARK": "demo-1.1", "PHALANX_CHECKPOINT_EVERY": "7",
        "PHALANX_CHECKPOINT_KEEP_LAST": "2", "PHALANX_CHECKPOINT_KEEP_BEST": "0", "PHALANX_CHECKPOINT_BEST_METRIC": "",
        "PHALANX_CHECKPOINT_BEST_MODE": "min", "PHALANX_CHECKPOINT_KEEP_EVERY": "0",
        "PHALANX_DATA": "/data", "PHALANX_NODE": "node-a", "PHALANX_HYPERPARAMETERS": '{"lr": 0.5}',
        "PHALANX_RECORDS": str(cell.folder() / "rank-3.records"),
    }  # fmt: skip
    assert {name: seen.get(name) for name in expected} == expected


def test_the_packed_workdir_is_the_ranks_folder(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print('from the workdir')")
    packed = workdir.pack(tmp_path / "project")
    sha256 = hashlib.sha256(packed).hexdigest()
    cell.far.blobs[sha256] = packed
    cell.far.start(cell.launch("", argv=("python", "train.py"), code=sha256, ranks=1))
    assert cell.far.phase("demo-1.1", "ended").exits[0].code == 0
    assert cell.far.text("log", "demo-1.1", 0) == "from the workdir\n"


def test_a_damaged_or_absent_workdir_ends_the_attempt_with_a_readable_line(cell: Cell) -> None:
    cell.far.blobs["0" * 64] = b"something else"
    for attempt, sha256, words in (("bad-1.1", "0" * 64, "damaged"), ("none-2.1", "1" * 64, "gone or damaged")):
        cell.far.start(cell.launch("", attempt=attempt, code=sha256))
        report = cell.far.phase(attempt, "ended")
        assert [exited.code for exited in report.exits] == [127, 127]
        assert words in cell.far.text("log", attempt, 1)


def test_a_missing_interpreter_is_exit_127_on_every_rank(cell: Cell) -> None:
    cell.far.start(cell.launch("", argv=("/no/such/python", "x.py")))
    report = cell.far.phase("demo-1.1", "ended")
    assert [(exited.code, exited.first) for exited in report.exits] == [(127, True), (127, False)]
    assert "'/no/such/python': No such file or directory" in cell.far.text("log", "demo-1.1", 0)
    assert cell.far.text("log", "demo-1.1", 1) != ""


def test_a_taken_master_port_is_named(cell: Cell) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        cell.far.start(cell.launch(SHOW, master_port=port))
        report = cell.far.phase("demo-1.1", "ended")
    assert {exited.code for exited in report.exits} == {127}
    assert f"MASTER_PORT {port} is already taken" in cell.far.text("log", "demo-1.1", 0)


def test_a_start_sent_twice_starts_once_and_a_forgotten_attempt_leaves_nothing(cell: Cell) -> None:
    witness = cell.home / "starts"
    launch = cell.launch(f"open({str(witness)!r}, 'a').write('x')", ranks=1)
    cell.far.start(launch)
    cell.far.start(launch)
    cell.far.phase("demo-1.1", "ended")
    cell.far.start(launch)
    before = len(cell.far.reports("demo-1.1"))
    cell.far.phase("demo-1.1", "ended", after=before - 1)
    assert witness.read_text() == "x"
    cell.far.say(Forget(launch.attempt, 1))
    until(lambda: not cell.folder().exists())
    sockets = [path for folder in (cell.home / "run", socket_folder(cell.home)) for path in folder.glob("*.sock")]
    assert {path.name for path in sockets} == {"agent.sock"}


def test_an_agent_that_ends_leaves_no_socket_but_those_of_living_shims(cell: Cell) -> None:
    folder = socket_folder(cell.home)
    cell.far.start(cell.launch("import time; time.sleep(600)", ranks=1))
    cell.far.phase("demo-1.1", "running")
    cell.agent.end()
    assert [path.name for path in folder.glob("*.sock")] == [shim_socket(folder, AttemptId("demo-1.1")).name]
    before = len(cell.far.hellos())
    cell.agent.start()
    until(lambda: len(cell.far.hellos()) > before)
    cell.far.say(StopRanks(AttemptId("demo-1.1"), 1, 0))
    cell.far.phase("demo-1.1", "ended")


def test_a_stale_epoch_is_refused_even_after_a_restart_of_the_agent(cell: Cell) -> None:
    cell.far.epoch = 5
    cell.far.start(cell.launch(SHOW, attempt="new-1.1"), epoch=7)
    cell.far.phase("new-1.1", "ended")
    cell.far.start(cell.launch(SHOW, attempt="old-2.1"), epoch=6)
    until(lambda: "stale_command_refused" in cell.agent.log())
    cell.agent.end()
    cell.agent.start()
    until(lambda: "though 7 was seen" in cell.agent.log())
    assert cell.far.hellos()[-1].epoch_seen == 7
    assert not cell.folder("old-2.1").exists()
    assert cell.folder("new-1.1").exists()
