"""The server hangs while ranks run: the standby leads, the agent finds it, and no rank notices."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_platform import Platform, alive, until

from tests.operate.control.released_schemas import put_back

SCRIPT = """
import pathlib, time
here = pathlib.Path(__file__).parent
while not pathlib.Path("{stop}").exists():
    time.sleep(0.05)
print("seen to the end")
"""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    platform = Platform(tmp_path / "home")
    platform.up()
    yield platform
    platform.run("down", "--force")


def record(platform: Platform, daemon: str) -> int:
    try:
        return int(json.loads((platform.home / "run" / f"{daemon}.json").read_bytes())["pid"])
    except FileNotFoundError:
        return 0


def test_a_server_that_hangs_is_replaced_and_then_upgraded_and_ranks_and_agent_go_on(platform: Platform, tmp_path: Path) -> None:
    folder, stop = tmp_path / "work", tmp_path / "stop"
    folder.mkdir()
    (folder / "wait.py").write_text(SCRIPT.format(stop=stop))
    assert "A standby waits" in platform.run("up", "--standby").stderr
    assert "waited already" in platform.run("up", "--standby").stderr
    job = platform.submit({"name": "goes-on", "entrypoint": "python wait.py", "workdir": str(folder), "resources": {"gpus": 1}})
    with platform.client() as client:
        until(lambda: client.job(job).state == "running")
        (attempt,) = client.job(job).attempts
    old, agent = record(platform, "server"), record(platform, "agent")
    os.kill(old, signal.SIGSTOP)
    try:
        new = until(lambda: (found := record(platform, "server")) != old and found)
        with platform.client() as client:
            until(lambda: [node for node in client.status().nodes if node.state == "up"] and client.status().processes.get("agent"))
            assert client.status().epoch == 2
    finally:
        os.kill(old, signal.SIGCONT)
    until(lambda: not alive(old))
    log = (platform.home / "run" / "server.log").read_text()
    assert '"event": "superseded"' in log
    os.kill(new, signal.SIGKILL)
    until(lambda: not alive(new))
    put_back(platform.home / "phalanx.db", "0003")
    platform.up()
    with platform.client() as client:
        assert client.job(job).state == "running", "a server of this version over a database of the one before, ranks alive"
    new = record(platform, "server")
    stop.touch()
    view = platform.finished(job)
    assert [one.attempt for one in view.attempts] == [attempt.attempt], "the same ranks to their end"
    assert (record(platform, "server"), record(platform, "agent")) == (new, agent)
