"""Two real servers over one database: the leader is stopped, the standby leads, and what the old one still wants is refused."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from phalanx.core.errors import Exit, SetupError
from phalanx.core.events import JobSubmitted
from phalanx.operate import daemons
from phalanx.operate.control.auth import open_tokens
from phalanx.operate.control.gang_keys import gang_key
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.standby import check
from phalanx.operate.control.store import Store
from tests.operate.control.live_server import LiveServer, PlayedAgent, until
from tests.postgres import PASSWORD, Postgres

KEYS = ("token", "node-token", "gang.key")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[LiveServer, LiveServer]]:
    """Two of one home, which has its own SQLite."""
    with _pair(LiveServer(tmp_path / "home"), LiveServer(tmp_path / "home")) as servers:
        yield servers


@pytest.fixture
def apart(
    postgres_server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LiveServer, LiveServer, str]]:
    """Two homes over one PostgreSQL, of which the second got the first one's keys; and its URL."""
    url = postgres_server.cleaned()
    monkeypatch.setenv("PHALANX_DATABASE", url)
    with _pair(LiveServer(tmp_path / "home"), LiveServer(tmp_path / "other")) as (one, two):
        yield one, two, url


@contextmanager
def _pair(one: LiveServer, two: LiveServer) -> Iterator[tuple[LiveServer, LiveServer]]:
    with ExitStack() as ending:
        one.start()
        ending.callback(one.end, signal.SIGKILL)
        if two.home != one.home:
            two.home.mkdir()
            for name in KEYS:
                shutil.copy(one.home / name, two.home / name)
        two.process = _standby(two.home)
        ending.callback(two.end, signal.SIGKILL)
        until((two.home / "run" / "standby.json").exists)
        yield one, two


def _standby(home: Path) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-W", "error", "-m", "phalanx.app", "server", "--home", str(home), "--port", "0", "--standby"]
    with (home / "out.log").open("ab") as out:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def leads(server: LiveServer) -> bool:
    found, process = daemons.read(server.home, "server"), server.process
    assert process is not None and process.poll() is None, server.words()
    return found is not None and found.pid == process.pid


def test_a_stopped_leader_is_replaced_and_none_of_its_writes_lands(apart: tuple[LiveServer, LiveServer, str]) -> None:
    old, standby, database = apart
    kept = old.submit(name="kept")
    url, token = old.url, old.token()
    assert old.process is not None
    os.kill(old.process.pid, signal.SIGSTOP)
    answers = list[int | str]()

    def late() -> None:
        """The kernel takes the request in its name; it is read when the process wakes."""
        try:
            body = {"spec": {"name": "late", "entrypoint": "true"}}
            headers = {"Authorization": f"Bearer {token}"}
            answers.append(httpx.post(f"{url}/api/v1/jobs", json=body, headers=headers, timeout=120, trust_env=False).status_code)
        except httpx.HTTPError as error:
            answers.append(type(error).__name__)

    asking = threading.Thread(target=late)
    asking.start()
    until(lambda: leads(standby))
    assert standby.get("/status")["epoch"] == 2
    assert [job["id"] for job in standby.get("/jobs")] == [kept]
    after = standby.submit(name="after")
    os.kill(old.process.pid, signal.SIGCONT)
    assert old.process.wait(120) == Exit.BUG
    asking.join(120)
    assert answers and answers[0] != 201
    assert '"event": "superseded"' in old.words()
    assert PASSWORD not in old.words() + standby.words()
    assert {job["id"] for job in standby.get("/jobs")} == {kept, after}
    store = Store(database)
    assert [event.body.job for event in store.events() if isinstance(event.body, JobSubmitted)] == [kept, after]
    store.close()


def test_a_standby_opens_what_is_sealed_before_it_waits(tmp_path: Path) -> None:
    """With its own `secret.key`: one that opens nothing is named at once, and nothing is made or changed."""
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home, other):
        folder.mkdir()
    store = Store(home / "phalanx.db")
    epoch = store.take_lead()
    open_tokens(home, store, epoch, 0)
    gang_key(home)
    for name in KEYS:
        shutil.copy(home / name, other / name)
    check(other, store, None)
    Secrets(home, store, lambda: 0).put(epoch, "TOKEN", b"a-long-value")
    with pytest.raises(SetupError, match=r"lacks .*: secret\.key; copy it from") as missing:
        check(other, store, None)
    assert "(" not in missing.value.fix
    assert not (other / "secret.key").exists()
    for wrong in (base64.b64encode(bytes(32)) + b"\n", b"no key"):
        (other / "secret.key").write_bytes(wrong)
        with pytest.raises(SetupError, match=r"lacks .*: secret\.key \(the one that is there is .*\); copy it from") as refused:
            check(other, store, None)
        assert "a-long-value" not in str(refused.value)
        assert (other / "secret.key").read_bytes() == wrong
    shutil.copy(home / "secret.key", other / "secret.key")
    check(other, store, None)
    store.close()


def test_a_leader_that_ends_hands_over_to_the_one_standby_of_its_home(pair: tuple[LiveServer, LiveServer]) -> None:
    old, standby = pair
    job = old.submit(name="kept")
    second = _standby(standby.home)
    assert second.wait(120) == Exit.BAD_INPUT
    assert "another standby waits on it already" in standby.words()
    assert old.end() == Exit.OK
    until(lambda: leads(standby))
    with PlayedAgent(standby) as agent:
        assert agent.hello().epoch == 2
        assert agent.started().attempt == f"{job}.1"
    argv = [sys.executable, "-m", "phalanx.app", "server", "--home", str(standby.home), "--port", "0"]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert refused.returncode == Exit.BAD_INPUT
    said = json.loads(refused.stderr.splitlines()[-1])
    assert (said["field"], "--standby" in said["fix"]) == ("database", True), said
    assert standby.get("/status")["epoch"] == 2
    assert standby.end() == Exit.OK
    assert not (standby.home / "run" / "server.json").exists()
