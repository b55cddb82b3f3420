"""A second agent, with a home of its own, joins the platform: a gang over both nodes, a drain, a kill, and back without a token."""

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_platform import BIN, DEADLINE_S, Platform, alive, until

from phalanx.core.views import NodeView

GANG = {
    "name": "gang",
    "entrypoint": ["python", "-c", "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"],
    "num_nodes": 2,
    "resources": {"gpus": 2},
}
LONG = {**GANG, "name": "long", "entrypoint": ["python", "-c", "import signal; print('up', flush=True); signal.pause()"]}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform that this module has for itself: it gets a second node."""
    platform = Platform(tmp_path_factory.mktemp("first"))
    platform.up()
    yield platform
    platform.run("down", "--force")


@contextmanager
def joined(platform: Platform, home: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`phalanx agent join` of a second home, in the foreground."""
    with platform.client() as client:
        command = [str(BIN), "agent", "join", client.url, "--home", str(home), "--cpu-slots", "2", *options]
    environ = {**platform.environ, "PHALANX_HOME": "/nonexistent"}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def nodes(platform: Platform) -> Mapping[str, NodeView]:
    with platform.client() as client:
        return {str(node.node): node for node in client.nodes()}


def up(platform: Platform, node: str) -> bool:
    """Whether that node takes part; one that was killed a moment ago does so for the server."""
    return node in (known := nodes(platform)) and known[node].state == "up"


def running_on(platform: Platform, job: str) -> set[str] | None:
    with platform.client() as client:
        view = client.job(job)
    return {str(one.node) for one in view.attempts[-1].ranks} if view.state == "running" else None


def waits(platform: Platform, job: str) -> str | None:
    with platform.client() as client:
        view = client.job(job)
    return view.why if view.state == "pending" and "scheduler's next" not in (view.why or "") else None


def test_a_second_home_joins_by_a_token_and_takes_part(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("second")
    home, token = folder / "home", folder / "token"
    platform.run("agent", "token", "--out", str(token))
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    with joined(platform, home, "--token-file", str(token), "--name", "rack2") as agent:
        assert agent.stderr is not None
        assert agent.stderr.readline().startswith("This is node rack2 of http://127.0.0.1:")
        until(lambda: up(platform, "rack2"))
        view = platform.finished(platform.submit(GANG))
        assert len({one.node for one in view.attempts[0].ranks}) == 2
        said = [platform.run("logs", view.id, "--rank", str(rank)).stdout for rank in range(4)]
        assert said == [f"rank {rank} of 4\n" for rank in range(4)]

        job = platform.submit(LONG)
        assert len(until(lambda: running_on(platform, job))) == 2
        agent.kill()
        agent.wait(DEADLINE_S)
    token.unlink()
    assert stat.S_IMODE((home / "node" / "credential.json").stat().st_mode) == 0o600

    with joined(platform, home) as agent:  # no token: it has a credential, and its ranks are still there
        until(lambda: (home / "run" / "agent.json").exists() and up(platform, "rack2"))
        assert running_on(platform, job), "the ranks outlived their agent"
        platform.run("node", "drain", "rack2", "--reason", "a fan is loud", "--now")
        assert "drained" in until(lambda: waits(platform, job))
        assert nodes(platform)["rack2"].drained == "a fan is loud"
        with platform.client() as client:
            assert client.job(job).attempts[-1].detail == "moved off a drained node"
        platform.run("node", "undrain", "rack2")
        assert len(until(lambda: running_on(platform, job))) == 2
        platform.run("cancel", job)
        assert platform.run("wait", job, check=False).returncode == 1

        twice = platform.run("agent", "join", "http://127.0.0.1:9", "--home", str(home), check=False)
        assert (twice.returncode, "another agent of this home is running" in twice.stderr) == (2, True)
        os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait(DEADLINE_S) == 0
    again = platform.run("agent", "join", "http://127.0.0.1:9", "--home", str(home), "--name", "rack3", check=False)
    assert (again.returncode, "joined as rack2" in again.stderr) == (2, True)
    with joined(platform, home) as agent:
        until((home / "run" / "agent.json").exists)
        assert "is down" in platform.run("down", "--home", str(home)).stderr
        assert agent.wait(DEADLINE_S) == 0


def test_a_revoked_node_hears_it_and_joins_again_by_a_new_token(
    platform: Platform, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("third")
    home = folder / "home"
    platform.run("agent", "token", "--out", str(folder / "one"))
    with joined(platform, home, "--token-file", str(folder / "one"), "--name", "rack9") as agent:
        assert agent.stderr is not None
        until(lambda: up(platform, "rack9"))
        platform.run("agent", "revoke", "rack9")
        assert next(line for line in agent.stderr if "does not know this node's credential" in line)
    with platform.client() as client:
        refused = platform.run("agent", "join", client.url, "--home", str(home), check=False)
    assert (refused.returncode, "`phalanx agent token`" in refused.stderr) == (2, True)
    platform.run("agent", "token", "--out", str(folder / "two"))
    with joined(platform, home, "--token-file", str(folder / "two")) as agent:
        assert agent.stderr is not None
        assert next(line for line in agent.stderr if '"connected"' in line)


def test_a_stranger_is_told_how_to_get_in(platform: Platform, tmp_path: Path) -> None:
    with platform.client() as client:
        url = client.url
    (tmp_path / "token").write_text("made-up\n")
    for options, words in (([], "phalanx agent token"), (["--token-file", str(tmp_path / "token")], "join token is '(unknown)'")):
        done = platform.run("agent", "join", url, "--home", str(tmp_path / "home"), "--name", "stranger", *options, check=False)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert words in done.stderr
    assert "stranger" not in nodes(platform)


def test_down_by_force_ends_the_ranks_of_joined_nodes_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    own, folder = Platform(tmp_path_factory.mktemp("own")), tmp_path_factory.mktemp("joined")
    own.up()
    try:
        own.run("agent", "token", "--out", str(folder / "token"))
        with joined(own, folder / "home", "--token-file", str(folder / "token"), "--name", "rack2"):
            until(lambda: up(own, "rack2"))
            job = own.submit({**LONG, "max_restarts": 0})
            assert len(until(lambda: running_on(own, job))) == 2
            with own.client() as client:
                pids = [one.pid for one in client.job(job).attempts[-1].ranks if one.pid]
            assert len(pids) == 4
            said = own.run("down", "--force", "-o", "json")
            assert json.loads(said.stdout)["left"] == []
            assert [pid for pid in pids if alive(pid)] == []
            own.up()
            until(lambda: up(own, "rack2"))
            assert len(until(lambda: running_on(own, job))) == 2
            with own.client() as client:
                assert client.job(job).attempts[0].detail == "stopped with the platform"
    finally:
        own.run("down", "--force")
        own.run("down", "--force", "--home", str(folder / "home"))
