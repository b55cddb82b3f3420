"""The real shim as a process of its own: one SIGTERM a stop, ends that wait for the disk, orders that cannot be started."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from phalanx.operate.agent import shim
from tests.operate.agent.agent_cell import DEADLINE_S, alive, until

STUBBORN = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("TERM", flush=True))
print("up", flush=True)
while True:
    signal.pause()
"""


class Order:
    """An attempt folder and the shim that runs it."""

    def __init__(self, folder: Path, argvs: Sequence[Sequence[str]]) -> None:
        self.folder = folder
        (folder / "exits").mkdir(parents=True)
        mark = {"MARK": str(folder)}
        ranks = [
            {"rank": rank, "argv": list(argv), "env": dict(os.environ) | mark, "log": str(folder / f"rank-{rank}.log")}
            for rank, argv in enumerate(argvs)
        ]
        order = {"ranks": ranks, "cwd": "/", "socket": str(folder / "s"), "marks": [f"MARK={folder}"], "grace_ms": 5000}
        (folder / "shim.json").write_text(json.dumps(order))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Order":
        argv = [sys.executable, "-I", "-S", shim.__file__, str(self.folder)]
        with (self.folder / "shim.log").open("wb") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log)
        return self

    def log(self, rank: int = 0) -> str:
        path = self.folder / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def said(self) -> str:
        return (self.folder / "shim.log").read_text()

    def end(self) -> list[int]:
        """Waits for the shim; the ranks' exit codes."""
        assert self.process is not None
        assert self.process.wait(DEADLINE_S) == 0, self.said()
        assert (self.folder / "ended.json").is_file()
        return [json.loads(path.read_bytes())["code"] for path in sorted((self.folder / "exits").glob("rank-*.json"))]


@pytest.fixture
def started() -> Iterator[list[Order]]:
    made: list[Order] = []
    yield made
    for order in made:
        if order.process is not None and order.process.poll() is None:
            order.process.kill()
            order.process.wait()


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_stop_asked_for_again_is_one_sigterm_and_only_shortens_the_grace(tmp_path: Path, started: list[Order]) -> None:
    order = Order(tmp_path / "a", [script(STUBBORN)]).start()
    started.append(order)
    until(lambda: "up" in order.log())
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(order.folder / "s"))
        agent.sendall(b'{"stop": 60000}\n')
        until(lambda: "TERM" in order.log())
        for ask in (60_000, 60_000, 300):
            agent.sendall(json.dumps({"stop": ask}).encode() + b"\n")
        assert order.end() == [-9]
    assert order.log().count("TERM") == 1


@pytest.mark.parametrize("file", ["ended.json", "ranks.json", "exits/rank-0.json"])
def test_a_fact_that_the_disk_does_not_take_yet_is_written_later(tmp_path: Path, started: list[Order], file: str) -> None:
    order = Order(tmp_path / "a", [script("print('done')")])
    (order.folder / file / "in the way").mkdir(parents=True)
    started.append(order.start())
    until(lambda: f"cannot write {file} yet" in order.said())
    assert order.process is not None
    assert order.process.poll() is None
    (order.folder / file / "in the way").rmdir()
    (order.folder / file).rmdir()
    assert order.end() == [0]
    assert json.loads((order.folder / "ended.json").read_bytes())["lost"] == ""


@pytest.mark.parametrize("argv", [["tr\0ue"], [], ["\ud800"], ["/no/such/program"]])
def test_a_command_that_cannot_be_started_is_exit_127_with_a_line_and_ends_the_others_at_once(
    tmp_path: Path, started: list[Order], argv: list[str]
) -> None:
    order = Order(tmp_path / "a", [script("import signal; signal.pause()"), argv]).start()
    started.append(order)
    assert order.end() == [-15, 127]
    assert "phalanx: cannot start" in order.log(1)


def test_what_cannot_be_cleaned_up_does_not_take_the_end_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(tmp_path / "a", [])
    made: Any = shim.Shim(order.folder, json.loads((order.folder / "shim.json").read_bytes()))

    def refused(*_: object) -> set[int]:
        raise PermissionError("no /proc for you")

    monkeypatch.setattr(shim, "sweep", refused)
    monkeypatch.setattr(made, "_kill_orphans", refused)
    made._end()
    made.selector.close()
    assert json.loads((order.folder / "ended.json").read_bytes())["lost"] == ""
    assert alive(os.getpid())
