"""docs/teams.md: its console blocks are run, against a real server, in their order, and say what stands there."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.control.live_server import LiveServer

PAGE = Path(__file__).parents[2] / "docs" / "teams.md"
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\S*/(ada|bob)/login\.json"), r"\1/login.json"),
)


def commands() -> list[tuple[str, str]]:
    """(command, what it says) of each line that begins with a dollar."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    parts = [part.partition("\n") for block in blocks for part in f"\n{block}".split("\n$ ")[1:]]
    return [(command, said) for command, _, said in parts]


def plain(text: str) -> str:
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return text.strip()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


def test_the_page_says_what_is_said(server: LiveServer, tmp_path: Path) -> None:
    assert shutil.which("bash")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "phalanx"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m phalanx "$@"\n')
    script.chmod(0o755)
    (tmp_path / "job.yaml").write_text(json.dumps({"name": "hello", "entrypoint": "sleep 600"}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    environ = {**kept, "PHALANX_HOME": str(server.home), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    asked = commands()
    assert len(asked) > 15
    for command, said in asked:
        here = command.replace("http://127.0.0.1:7878", server.url)
        ran = subprocess.run(["bash", "-c", here], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
        shown = plain((ran.stdout + ran.stderr).replace(server.url, "http://127.0.0.1:7878"))
        if "phalanx submit" in command:  # what it says besides is for another page
            assert "hello-1" in shown
        else:
            assert shown == plain(said), command
