"""The real shim as a process of its own: one SIGTERM a stop, ends that wait for the disk, orders that cannot be started."""

import json
import os
import signal
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
        order = {"ranks": ranks, "cwd": "/", "socket": str(folder / "s"), "marks": [f"MARK={folder}"], "grace_ms": 60_000}
        (folder / "shim.json").write_text(json.dumps(order))
        self.process: subprocess.Popen[bytes] | None = None
        self.ended: dict[str, Any] = {}

    def pids(self) -> list[int]:
        until((self.folder / "ranks.json").exists)  # they are there before they are written down
        return [entry["pid"] for entry in json.loads((self.folder / "ranks.json").read_bytes())]

    def platform_ends(self) -> None:
        assert self.process is not None
        self.process.terminate()

    def start(self) -> "Order":
        with (self.folder / "shim.log").open("wb") as log:
            self.process = subprocess.Popen(shim.command(self.folder), stdin=subprocess.DEVNULL, stderr=log)
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
        self.ended = json.loads((self.folder / "ended.json").read_bytes())
        return [json.loads(path.read_bytes())["code"] for path in sorted((self.folder / "exits").glob("rank-*.json"))]


@pytest.fixture
def started() -> Iterator[list[Order]]:
    made: list[Order] = []
    yield made
    for order in made:
        if order.process is not None and order.process.poll() is None:
            order.process.kill()
            order.process.wait()


LINGERING = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("TERM", flush=True))
print("up", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""
POLITE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True)\nsignal.pause()"


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


def test_a_rank_hears_every_signal_whatever_its_shim_is_deaf_to(tmp_path: Path, started: list[Order]) -> None:
    """What is ignored at an exec stays so: a notebook could not be interrupted."""
    deaf = "import signal; print([one.name for one in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_IGN])"
    order = Order(tmp_path / "a", [script(deaf)]).start()
    started.append(order)
    assert order.end() == [0]
    assert order.log() == "[]\n"


def test_what_cannot_be_cleaned_up_does_not_take_the_end_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(tmp_path / "a", [])
    made: Any = shim.Shim(order.folder, json.loads((order.folder / "shim.json").read_bytes()))

    def refused(*_: object) -> set[int]:
        raise PermissionError("no /proc for you")

    monkeypatch.setattr(shim, "sweep", refused)
    monkeypatch.setattr(shim, "kill_orphans", refused)
    made._end()
    made.selector.close()
    made.alarm.close()
    assert json.loads((order.folder / "ended.json").read_bytes())["lost"] == ""
    assert alive(os.getpid())


def test_a_second_sigterm_after_the_last_rank_was_collected_does_not_take_the_mark_away(
    tmp_path: Path, started: list[Order]
) -> None:
    order = Order(tmp_path / "a", [script(POLITE)])
    way = order.folder / "exits" / "rank-0.json" / "in the way"
    way.mkdir(parents=True)
    started.append(order.start())
    until(lambda: "up" in order.log())
    order.platform_ends()
    until(lambda: "cannot write exits/rank-0.json yet" in order.said())  # collected, and held there
    order.platform_ends()
    way.rmdir()
    way.parent.rmdir()
    assert order.end() == [0]
    assert (order.ended["lost"], order.ended["interrupted"]) == ("they were stopped with the platform", True)


def test_a_sigterm_before_the_first_rank_lives_is_marked_and_the_log_says_that_the_platform_was_stopped(
    tmp_path: Path, started: list[Order]
) -> None:
    order = Order(tmp_path / "a", [script("import signal; signal.pause()")] * 2)
    os.mkfifo(order.folder / "rank-0.log")  # to open it waits for a reader
    started.append(order.start())
    until((order.folder / "s").exists)
    order.platform_ends()
    reader = os.open(order.folder / "rank-0.log", os.O_RDONLY | os.O_NONBLOCK)
    assert order.end() == [-15, -15]
    os.close(reader)
    assert order.log(1) == "phalanx: not started, since the platform was stopped\n"
    assert order.ended["interrupted"] is True


@pytest.mark.parametrize(("signal_sent", "interrupted"), [(signal.SIGKILL, False), (signal.SIGTERM, True)])
def test_a_rank_that_fell_before_the_platform_ended_is_why_unless_it_fell_by_the_same_signal(
    tmp_path: Path, started: list[Order], signal_sent: int, interrupted: bool
) -> None:
    """A reboot sends everybody SIGTERM, in no order."""
    go = tmp_path / "go"
    order = Order(tmp_path / "a", [script("import signal; signal.pause()"), [*script(LINGERING), str(go)]]).start()
    started.append(order)
    until(lambda: "up" in order.log(1))
    os.kill(order.pids()[0], signal_sent)
    until(lambda: "TERM" in order.log(1))
    order.platform_ends()
    go.touch()
    order.end()
    assert order.ended["interrupted"] is interrupted
