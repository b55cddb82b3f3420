"""Only what a job's own processes listen on is reached, by the kernel's word for who does."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.operate.agent.terminal import listening

LISTEN = """
import os, socket, sys
if sys.argv[2:]:
    os.setresuid(*[int(sys.argv[2])] * 3)
one = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""


def listens(host: str, user: int | None = None, **environ: str) -> tuple["subprocess.Popen[str]", int]:
    child = subprocess.Popen(
        [sys.executable, "-c", LISTEN, host, *([] if user is None else [str(user)])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ},
    )  # fmt: skip
    assert child.stdout is not None
    return child, int(child.stdout.readline())


@pytest.fixture
def stranger() -> Iterator[int]:
    """The id of a process that nothing of ours descends from."""
    child = subprocess.Popen(["sleep", "1000"])
    yield child.pid
    child.kill()
    child.wait()


@pytest.mark.parametrize(
    ("host", "reached"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("127.0.0.9", "127.0.0.9")]
)
def test_a_descendant_s_port_is_reached_by_loopback(host: str, reached: str) -> None:
    child, port = listens(host)
    try:
        assert listening.address(port, os.getpid(), ["MARK=none"]) == reached
    finally:
        child.communicate()


def test_another_s_port_is_not_nor_one_that_nobody_listens_on(stranger: int) -> None:
    child, port = listens("127.0.0.1")
    try:
        assert listening.address(port, stranger, ["MARK=none"]) is None
    finally:
        child.communicate()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert listening.address(taken.getsockname()[1], os.getpid(), ["MARK=none"]) is None


def test_a_container_s_process_is_known_by_all_of_its_marks(stranger: int) -> None:
    child, port = listens("127.0.0.1", MARK="job-1", PLACE="here")
    try:
        assert listening.address(port, stranger, ["MARK=job-1", "PLACE=here"]) == "127.0.0.1"
        assert listening.address(port, stranger, ["MARK=job-1", "PLACE=elsewhere"]) is None
    finally:
        child.communicate()


@pytest.mark.needs_root
def test_a_user_of_the_pool_is_no_containers_process_whatever_it_carries(stranger: int) -> None:
    """Any process writes its own environment: it could be the end of another job's `forward`, and be given a notebook's token."""
    child, port = listens("::1", 310_000, MARK="job-1", PLACE="here")
    try:
        assert listening.address(port, stranger, ["MARK=job-1", "PLACE=here"]) is None
        assert listening.address(port, stranger, ["MARK=job-1", "PLACE=here"], 310_001) is None
        assert listening.address(port, stranger, ["MARK=job-1", "PLACE=here"], 310_000) is None, (
            "marks are nothing to who has a user"
        )
    finally:
        child.communicate()


@pytest.mark.needs_root
def test_of_an_attempt_with_a_user_only_that_users_sockets_count() -> None:
    child, port = listens("127.0.0.1", 310_000)
    try:
        assert listening.address(port, os.getpid(), [], 310_000) == "127.0.0.1"
        assert listening.address(port, os.getpid(), [], 310_001) is None
    finally:
        child.communicate()


def test_a_descendant_comes_before_what_only_carries_its_marks() -> None:
    own, port = listens("127.0.0.1")
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        try:
            marks = [os.fsdecode(word) for word in Path("/proc/self/environ").read_bytes().split(b"\0")[:1]]
            assert listening.address(port, own.pid, ["NO=mark"]) is None, "it is no descendant of itself"
            assert listening.address(port, os.getpid(), marks) == "127.0.0.1"
        finally:
            own.communicate()
