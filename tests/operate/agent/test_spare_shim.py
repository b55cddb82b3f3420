"""The shim that is started before there is an attempt: taken by the next one, replaced, and never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import psutil

from phalanx.operate.agent import shim
from phalanx.operate.agent.spare_shim import hand_over
from phalanx.operate.engines import leftovers
from tests.operate.agent.agent_cell import DEADLINE_S, Cell, alive, until

WAITS = "import signal; print('up', flush=True); signal.pause()"


def spare(cell: Cell, other_than: int = 0) -> int:
    """The pid of the agent's spare, once there is one that no attempt has."""

    def look() -> int | None:
        children = psutil.Process(cell.agent.pid).children()
        return next((pid for pid in map(unclaimed, children) if pid not in {None, other_than, *claims(cell)}), None)

    def unclaimed(process: psutil.Process) -> int | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.pid if process.cmdline()[-1:] == [f"{cell.home}/node/attempts/"] else None
        return None

    return until(look)


def claims(cell: Cell) -> set[int]:
    return {cell.shim_pid(folder.parent.name) for folder in cell.folder().parent.glob("*/shim-pid.json")}


def taken(cell: Cell, script: str) -> tuple[str, int]:
    """An attempt that runs `script`, and the pid of the spare that it took. The agent gets to know of its spare a moment after
    we do, so the first attempt may come too early."""
    for number in count(1):
        attempt, waiting = f"demo-{number}.1", spare(cell)
        cell.far.start(cell.launch(script, attempt=attempt, ranks=1))
        until(lambda name=attempt: cell.far.text("log", name, 0))  # type: ignore[misc]  # bound early on purpose
        if cell.shim_pid(attempt) == waiting:
            return attempt, waiting
    raise AssertionError


def test_an_attempt_takes_the_spare_and_another_follows(cell: Cell) -> None:
    spare(cell)
    assert leftovers.attempts(cell.home) == []
    attempt, first = taken(cell, "print('ran')")
    cell.far.phase(attempt, "ended")
    assert cell.far.text("log", attempt, 0) == "ran\n"
    assert spare(cell, other_than=first) != first
    until(lambda: not alive(first))


def test_without_a_spare_an_attempt_starts_all_the_same(cell: Cell) -> None:
    dead = spare(cell)
    os.kill(dead, signal.SIGKILL)
    cell.far.start(cell.launch("print('ran')", ranks=1))
    cell.far.phase("demo-1.1", "ended")
    assert cell.far.text("log", "demo-1.1", 0) == "ran\n"
    assert cell.shim_pid() != dead


def test_a_spare_that_dies_with_the_attempt_in_hand_is_followed_by_a_fresh_shim(cell: Cell) -> None:
    dies = spare(cell)
    os.kill(dies, signal.SIGSTOP)  # so that it does not get to its claim
    cell.far.start(cell.launch("print('ran')", ranks=1))
    until(lambda: len(psutil.Process(cell.agent.pid).children()) > 1)  # the next spare comes once the first was taken
    os.kill(dies, signal.SIGKILL)
    cell.far.phase("demo-1.1", "ended")
    assert cell.far.text("log", "demo-1.1", 0) == "ran\n"


def test_the_spare_ends_with_its_agent_and_its_attempt_does_not(cell: Cell) -> None:
    _, first = taken(cell, WAITS)
    second = spare(cell, other_than=first)
    cell.agent.end(signal.SIGKILL)
    until(lambda: not alive(second))
    assert alive(first)


def test_down_finds_a_shim_that_was_a_spare_by_its_claim(cell: Cell) -> None:
    attempt, first = taken(cell, WAITS)
    assert leftovers._claimed(psutil.Process(first), cell.folder().parent) == attempt
    assert leftovers._claimed(psutil.Process(spare(cell, other_than=first)), cell.folder().parent) == ""
    assert attempt in leftovers.attempts(cell.home)
    assert "" not in leftovers.attempts(cell.home)
    cell.agent.end(signal.SIGKILL)
    assert leftovers.sweep(cell.home, time.monotonic, time.sleep)
    assert not alive(first)
    assert leftovers.attempts(cell.home) == []


def test_a_spare_that_is_told_half_a_name_ends_without_a_word(tmp_path: Path) -> None:
    child = subprocess.Popen(shim.spare_command(tmp_path), stdin=subprocess.PIPE)
    assert child.stdin is not None
    with child.stdin as to_shim:
        to_shim.write(b'"/some')
    assert child.wait(DEADLINE_S) == 0


def test_a_spare_that_is_gone_is_not_handed_anything(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    until(lambda: psutil.Process(gone.pid).status() == psutil.STATUS_ZOMBIE)
    assert not hand_over(gone, tmp_path, {"KEY": "value"})
    assert gone.returncode == 0
