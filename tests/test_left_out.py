"""What daemons do not load: libraries that others take where they are installed, for what our daemons never do."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from phalanx.app import FOR_MODELS, FOR_TERMINALS
from phalanx.core import wire
from phalanx.core.ids import AttemptId, JobId
from phalanx.record.tracking.entries import Entry, RunFinished

AT_ITS_END = """
import atexit, json, os, sys


def tell():
    with open(os.environ["LOADED"], "w") as out:
        json.dump({name: module is not None for name, module in sys.modules.items()}, out)


atexit.register(tell)
"""


def modules(folder: Path, *words: str, feed: str = "") -> tuple[Mapping[str, bool], str]:
    """The modules of `python -m phalanx.app WORDS` at its end, False for those that it may not load; and its answer."""
    (folder / "sitecustomize.py").write_text(AT_ITS_END)
    env = {**os.environ, "PYTHONPATH": str(folder), "LOADED": str(folder / "loaded.json")}
    argv = [sys.executable, "-P", "-m", "phalanx.app", *words]
    done = subprocess.run(argv, env=env, input=feed, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "loaded.json").read_text()), done.stdout


def test_the_tracking_process_tracks_without_numpy_and_its_like(tmp_path: Path) -> None:
    entry = RunFinished(JobId("job-1"), "FINISHED", (AttemptId("job-1.1"),), "", 1)
    line = json.dumps({"seq": 7, "entry": wire.plain(Entry, entry)})
    found, answer = modules(tmp_path, "tracking", "--home", str(tmp_path / "home"), feed=f"{line}\n")
    assert json.loads(answer)["done"] == 7
    assert found["mlflow"]
    assert [name for name in (*FOR_MODELS, *FOR_TERMINALS) if found[name]] == []


@pytest.mark.parametrize("words", [("agent", "--help"), ("status", "--help")])
def test_the_command_line_may_load_all_of_them(tmp_path: Path, words: tuple[str, ...]) -> None:
    found, answer = modules(tmp_path, *words)
    assert "Usage" in answer
    assert [name for name in (*FOR_MODELS, *FOR_TERMINALS) if not found.get(name, True)] == []
