"""A real agent, attempts that bring their own environment: seen while it builds, stopped and killed in the middle of it."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.ids import AttemptId
from phalanx.core.messages import Forget, StopRanks
from phalanx.storage.hashes import sha256_bytes
from phalanx.storage.workdir import pack
from tests.operate.agent.agent_cell import Cell, alive, until
from tests.operate.agent.lock_cases import LOCAL, Bench

DEMO = AttemptId("demo-1.1")
SHOW = """
import json, os, sys
import tiny_greeting
shown = {"version": tiny_greeting.VERSION, "prefix": sys.prefix, "env": dict(os.environ)}
print(json.dumps(shown), flush=True)
"""


@pytest.fixture(autouse=True)
def outer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the agent is started with, before `cell` starts it."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("VIRTUAL_ENV", "/of/the/agent")
    monkeypatch.setenv("CONDA_PREFIX", "/of/the/agent")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def packed(cell: Cell, folder: Path) -> str:
    data = pack(folder)
    name = sha256_bytes(data)
    cell.far.blobs[name] = data
    return name


def launched(cell: Cell, folder: Path, **changes: Any) -> None:
    cell.far.start(cell.launch("", **{"code": packed(cell, folder), "lock": "needs.txt", "ranks": 1, **changes}))


def building(gate: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in gate.glob("building-*")]


def slow_job(cell: Cell, bench: Bench, gate: Path) -> None:
    folder = bench.workdir({"needs.txt": "./slow\n", "run.py": "import slow; print('slow', slow.VERSION)", **bench.slow(gate)})
    launched(cell, folder, argv=("python", "run.py"))
    until(lambda: building(gate))


def test_ranks_start_in_the_environment_of_their_lock(cell: Cell, bench: Bench) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==2.0\n", "show.py": SHOW})
    launched(cell, folder, argv=("python", "show.py"), ranks=2)
    report = cell.far.phase(DEMO, "ended")
    assert [(exited.rank, exited.code) for exited in report.exits] == [(0, 0), (1, 0)]
    log = cell.far.text("log", DEMO, 0).splitlines()
    assert log[0].startswith("phalanx: builds environment ")
    assert "phalanx: environment" in log[-2]
    shown = json.loads(log[-1])
    venv = shown["prefix"]
    assert shown["version"] == "2.0"
    assert Path(venv).is_relative_to(cell.home / "node" / "environments")
    assert shown["env"]["VIRTUAL_ENV"] == venv
    assert shown["env"]["PATH"].split(":")[0] == f"{venv}/bin"
    assert shown["env"]["PHALANX_ATTEMPT"] == DEMO
    assert "CONDA_PREFIX" not in shown["env"]
    assert json.loads(cell.far.text("log", DEMO, 1).splitlines()[0])["prefix"] == venv, "the other ranks' logs are theirs alone"


def test_a_stop_in_the_middle_of_a_build_ends_it_at_once(cell: Cell, bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow_job(cell, bench, gate)
    assert "phalanx: builds environment" in until(lambda: cell.far.text("log", DEMO, 0)), "shown while it builds"
    cell.far.say(StopRanks(DEMO, 1, 600_000))  # far more than is waited for
    report = cell.far.phase(DEMO, "ended")
    assert [exited.code for exited in report.exits] == [-15]
    assert not report.refused
    until(lambda: not any(alive(pid) for pid in building(gate)))


def test_a_killed_agents_build_is_made_again_by_the_next(cell: Cell, bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow_job(cell, bench, gate)
    (orphan,) = building(gate)
    cell.agent.end(signal.SIGKILL)
    assert alive(orphan)
    cell.agent.start()
    until(lambda: len(building(gate)) == 2)
    until(lambda: not alive(orphan))
    (gate / "open").touch()
    assert cell.far.phase(DEMO, "ended").exits[0].code == 0
    assert cell.far.text("log", DEMO, 0).endswith("slow 1.0\n")


def test_a_lock_that_cannot_be_built_is_refused_with_uvs_words(cell: Cell, bench: Bench) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==3.0\n"})
    launched(cell, folder, argv=("python", "-c", ""), ranks=2)
    report = cell.far.phase(DEMO, "ended")
    assert "there is no version of tiny-greeting==3.0" in report.refused
    assert [exited.code for exited in report.exits] == [127, 127]
    log = cell.far.text("log", DEMO, 0)
    assert log.splitlines()[0].startswith("phalanx: builds environment")
    assert "error: No solution found" in log
    assert log.splitlines()[-1] == f"phalanx: {report.refused}"
    assert log == (cell.folder() / "rank-0.log").read_text(), "nothing that was sent changed afterwards"
    cell.far.say(Forget(DEMO, 1))


def test_a_recipe_needs_phalanx_in_its_environment(cell: Cell, bench: Bench) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==2.0\n"})
    launched(cell, folder, argv=("", "-m", "phalanx.job.train", "llama"))
    assert "has no phalanx in it, which a recipe needs" in cell.far.phase(DEMO, "ended").refused


def test_a_lock_that_was_not_packed_is_refused(cell: Cell, bench: Bench) -> None:
    folder = bench.workdir({"other.txt": ""})
    launched(cell, folder, argv=("python", "-c", ""))
    assert "is not in the packed workdir" in cell.far.phase(DEMO, "ended").refused
