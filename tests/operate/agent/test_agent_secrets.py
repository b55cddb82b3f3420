"""Values of secrets reach the ranks' environment through memory alone, whoever dies on the way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from phalanx.core.ids import AttemptId
from phalanx.core.messages import Forget, Launch
from phalanx.operate.agent import shim
from phalanx.operate.agent.attempts import AttemptFolder, accept
from phalanx.operate.agent.launch_env import Paths, rank_starts
from tests.operate.agent.agent_cell import DEADLINE_S, Cell, until

CANARY = "canary-3f9c1b7e-5a2d"
WHERE = "/api/v1/attempts/demo-1.1/secrets?node=node-a"
SAY = (
    "import os; print(len(os.environ['TOKEN']), os.environ['RANK'], os.environ['TOKEN'] == 'canary-' + '3f9c1b7e-5a2d', flush=True)"
)
WAIT = SAY + "\nimport signal; signal.pause()"


def give(cell: Cell, **values: str) -> None:
    cell.far.answers[WHERE] = (200, json.dumps(values).encode())


def holders(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def test_ranks_get_the_values_and_no_file_or_log_does(cell: Cell) -> None:
    give(cell, TOKEN=CANARY)
    cell.far.start(cell.launch(WAIT, secrets=("TOKEN",)))
    until(lambda: all(cell.far.text("log", "demo-1.1", rank) == f"20 {rank} True\n" for rank in (0, 1)))
    assert json.loads((cell.folder() / "shim.json").read_bytes())["secrets"] == ["TOKEN"]
    assert holders(cell.home) == []
    cell.agent.end(signal.SIGKILL)
    cell.far.answers.clear()
    cell.agent.start()
    until(lambda: len(cell.far.hellos()) == 2)
    assert [report.phase for report in cell.far.hellos()[1].attempts] == ["running"], "an adopted attempt needs no values"
    os.kill(cell.shim_pid(), signal.SIGTERM)
    cell.far.phase("demo-1.1", "ended")
    assert holders(cell.home) == []


def test_an_agent_that_is_killed_while_it_asks_leaves_the_start_to_the_next(cell: Cell) -> None:
    cell.far.answers[WHERE] = (503, b"later")
    cell.far.start(cell.launch(SAY, secrets=("TOKEN",), ranks=1))
    until(lambda: "secrets_not_fetched_yet" in cell.agent.log())
    cell.agent.end(signal.SIGKILL)
    give(cell, TOKEN=CANARY)
    cell.agent.start()
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [0]
    assert cell.far.text("log", "demo-1.1", 0) == "20 0 True\n"


def test_a_shim_that_did_not_get_all_of_them_leaves_the_attempt_to_another(tmp_path: Path) -> None:
    """What an agent leaves that is killed between the shim's start and its last byte."""
    folder = tmp_path / "demo-1.1"
    (folder / "exits").mkdir(parents=True)
    told = {"rank": 0, "argv": [sys.executable, "-c", SAY], "env": {"RANK": "0"}, "log": str(folder / "rank-0.log")}
    order = {"ranks": [told], "cwd": "/", "socket": str(tmp_path / "s"), "marks": ["X=1"], "grace_ms": 1, "secrets": ["TOKEN", "B"]}
    (folder / "shim.json").write_text(json.dumps(order))
    argv = shim.command(folder)
    whole = json.dumps({"TOKEN": CANARY, "B": ""}).encode()
    for part in (b"", whole[: len(whole) // 2], json.dumps({"TOKEN": CANARY}).encode()):
        left = subprocess.run(argv, input=part, capture_output=True, timeout=DEADLINE_S)
        assert left.returncode == 0
        assert CANARY.encode() not in left.stdout + left.stderr
        assert not (folder / "shim-pid.json").exists()
    assert subprocess.run(argv, input=whole, timeout=DEADLINE_S).returncode == 0
    assert (folder / "rank-0.log").read_text() == "20 0 True\n"
    assert json.loads((folder / "exits" / "rank-0.json").read_bytes())["code"] == 0
    assert holders(tmp_path) == []


def test_a_secret_that_is_gone_ends_the_attempt_as_refused_with_the_reason(cell: Cell) -> None:
    fix = "is not stored any more; `phalanx secret set TOKEN`, then `phalanx retry demo-1`"
    cell.far.answers[WHERE] = (409, json.dumps({"field": "secret", "value": "TOKEN", "fix": fix}).encode())
    cell.far.start(cell.launch(SAY, secrets=("TOKEN",)))
    report = cell.far.phase("demo-1.1", "ended")
    assert report.refused == f"secret TOKEN {fix}"
    assert [exited.code for exited in report.exits] == [127, 127]
    assert report.refused in cell.far.text("log", "demo-1.1", 0)


def test_what_is_not_the_attempts_any_more_ends_it_and_may_be_tried_again(cell: Cell) -> None:
    cell.far.answers[WHERE] = (404, b"{}")
    launch = cell.launch(SAY, secrets=("TOKEN",))
    cell.far.start(launch)
    report = cell.far.phase("demo-1.1", "ended")
    assert report.refused == ""
    assert "does not hand them out" in cell.far.text("log", "demo-1.1", 0)
    cell.far.say(Forget(launch.attempt, 1))
    until(lambda: not cell.folder().exists())


def test_a_secret_is_not_overlaid_by_the_agents_own_environment_and_overlays_no_rank(cell: Cell) -> None:
    launch: Launch = cell.launch("", secrets=("TOKEN", "RANK"))
    folder: AttemptFolder = accept(cell.home / "elsewhere", launch, 1)
    shape = until(cell.far.hellos)[0].shape
    starts = rank_starts(launch, shape, Paths(str(folder.path), "/s", "/bin/python"), {"TOKEN": "outer", "KEPT": "1"})
    assert [("TOKEN" in start.env, start.env["RANK"], start.env["KEPT"]) for start in starts] == [
        (False, "0", "1"),
        (False, "1", "1"),
    ]
    assert launch.attempt == AttemptId("demo-1.1")
