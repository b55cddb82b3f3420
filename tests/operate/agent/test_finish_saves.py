"""Before what an attempt left is swept, its keepers may write to the end what dead ranks had begun to save."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.job.checkpoint import keeper
from phalanx.operate.agent import sweeping
from phalanx.operate.agent.processes import dead_children
from phalanx.operate.agent.sweeping import KEEPER, finish_saves

_SAVES = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.3)
    pathlib.Path(sys.argv[1], "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""


def _started(folder: Path, mark: str) -> "subprocess.Popen[bytes]":
    """Something that is named as a keeper is, and takes a moment to end."""
    words = [sys.executable, "-c", _SAVES, str(folder), KEEPER.decode()]
    process = subprocess.Popen(words, env={**os.environ, "PHALANX_MARK": mark}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


def test_keepers_of_the_attempt_write_to_the_end_and_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SAVES_S_MAX", 60.0)
    folders = [tmp_path / name for name in ("mine", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "keeper-0.sock").touch()
    mine, other = (_started(folder, f"lm-{index}.1") for index, folder in enumerate(folders))
    assert finish_saves(folders[0], ["PHALANX_MARK=lm-0.1"], mine.poll) == set()
    assert (folders[0] / "saved").exists() and mine.wait() == 0
    assert other.poll() is None and not (folders[1] / "saved").exists()
    other.kill()
    other.wait()


def test_without_a_keeper_nobody_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SAVES_S_MAX", 3_600.0)  # longer than a test may take
    stray = _started(tmp_path, "lm-0.1")
    assert finish_saves(tmp_path / "keepers", ["PHALANX_MARK=lm-0.1"], dead_children) == set()
    assert stray.poll() is None
    stray.kill()
    stray.wait()


def test_a_keeper_is_known_by_the_module_that_it_runs() -> None:
    assert keeper.__name__.encode() == KEEPER
