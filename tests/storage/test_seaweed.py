"""The S3 server of these tests is no trouble itself: it finds ports, and is gone when they end, however they end."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage import seaweed
from tests.storage.seaweed import Seaweed, free_ports

PROGRAM = """
import pathlib, sys
from tests.storage.seaweed import Seaweed
server = Seaweed(pathlib.Path(sys.argv[1]))
server.start()
print(server.endpoint, flush=True)
sys.stdin.read()
"""


def until(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def answers(endpoint: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(endpoint.rpartition(":")[2]))) == 0


def test_a_port_that_another_took_meanwhile_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_ports(4)
    with socket.socket() as other:  # bound, and refusing connections
        other.bind(("127.0.0.1", taken[3]))
        choices = iter([taken, free_ports(4)])
        monkeypatch.setattr(seaweed, "free_ports", lambda count: next(choices))
        server = Seaweed(tmp_path)
        try:
            server.start()
            assert not server.endpoint.endswith(str(taken[3]))
        finally:
            server.stop(signal.SIGKILL)
    assert not answers(server.endpoint)


def test_it_does_not_outlive_tests_that_are_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        try:
            assert run.stdout is not None
            endpoint = run.stdout.readline().decode().strip()
            assert answers(endpoint)
        finally:
            run.send_signal(signal.SIGKILL)
    until(lambda: not answers(endpoint))
