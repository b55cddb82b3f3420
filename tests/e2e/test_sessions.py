"""People work inside jobs: a shell that outlives server and agent (P01), commands in a job's place, ports of it, all with the real
command line and a real platform."""

import contextlib
import json
import os
import pty
import select
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_platform import BIN, DEADLINE_S, Platform, alive, until

from phalanx.core.errors import Conflict, NotFound, SpecError, Unauthorized
from phalanx.core.views import JobView

WAITS = {"name": "waits", "entrypoint": ["sh", "-c", "echo up; exec sleep 1000"], "env": {"GREETING": "hello"}}


class Screen:
    """A command on a terminal, as a person has it."""

    def __init__(self, platform: Platform, *words: str) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execve(BIN, [str(BIN), *words], platform.environ)
        self.text = ""

    def types(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def shows(self, what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while what not in self.text:
            left = end - time.monotonic()
            assert left > 0, f"{what!r} did not come: {self.text!r}"
            if select.select([self._terminal], [], [], min(left, 1.0))[0]:
                try:
                    got = os.read(self._terminal, 65536)
                except OSError:
                    got = b""
                assert got, f"{what!r} did not come before the end: {self.text!r}"
                self.text += got.decode(errors="replace")

    def code(self) -> int:
        """Its exit code; what it still shows is read."""
        with contextlib.suppress(OSError):
            while got := os.read(self._terminal, 65536):
                self.text += got.decode(errors="replace")
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def view_of(platform: Platform, job: str) -> JobView:
    with platform.client() as client:
        return client.job(job)


@pytest.fixture(scope="module")
def shell(platform: Platform) -> Iterator[str]:
    """A shell's id, nobody in it."""
    job = platform.run("shell", "--detached", "--name", "mine", "--", "sh").stdout.strip()
    until(lambda: view_of(platform, job).state == "running")
    yield job
    platform.run("cancel", job, check=False)


def test_p01_a_shell_and_what_was_set_in_it_outlive_server_and_agent(platform: Platform, shell: str) -> None:
    person = Screen(platform, "attach", shell)
    person.types("KEPT=grün; echo set:$((1 + 1)):\r")
    person.shows("set:2:")
    holder = view_of(platform, shell).attempts[-1].ranks[0].pid
    assert holder is not None
    for process in ("server", "agent"):
        platform.kill(process)
    platform.run("up", "--port", "0", "--cpu-slots", "2")
    person.types("echo is:$KEPT:\r")  # the terminal comes back by itself
    person.shows("is:grün:")
    assert alive(holder)
    person.types("\x1d")
    assert person.code() == 130
    assert "`phalanx attach " in person.text
    late = Screen(platform, "attach", shell)
    late.shows("is:grün:")  # from the scrollback
    late.types("exit 3\r")
    assert late.code() == 3
    assert platform.finished(shell).attempts[-1].exits[0].code == 0


def test_a_command_runs_in_a_running_jobs_place(platform: Platform) -> None:
    job = platform.submit(WAITS)
    until(lambda: view_of(platform, job).state == "running")
    done = platform.run("exec", job, "--", "sh", "-c", 'echo "$GREETING $RANK $PWD"; echo bad >&2; exit 7', check=False)
    work = platform.home / "jobs" / job / "work"
    assert (done.returncode, done.stdout, done.stderr) == (7, f"hello 0 {work}\n", "bad\n")
    data = os.urandom(300_000)
    piped = subprocess.run(
        [str(BIN), "exec", job, "--", "cat"], input=data, env=platform.environ, capture_output=True, timeout=DEADLINE_S, check=True
    )
    assert piped.stdout == data
    person = Screen(platform, "exec", "-t", job, "--", "sh", "-c", "tty; read x; echo got:$x; exit 4")
    person.shows("/dev/pts/")
    person.types("yes\r")
    person.shows("got:yes")
    assert person.code() == 4
    with platform.client() as client:
        assert client.job(job).state == "running"
        with pytest.raises(Conflict, match="has no terminal"):
            client.channel(job, "attach")
        with pytest.raises(Conflict, match="no notebook"):
            client.channel(job, "notebook")
        with pytest.raises(NotFound, match="rank"):
            client.channel(job, "exec", argv=["true"], rank=5)
        with pytest.raises(SpecError, match="name a command"):
            client.channel(job, "exec")
        with pytest.raises(Conflict, match="no process of the job listens there"):
            client.channel(job, "forward", port=client_port(platform))
        client.cancel(job)
        client.wait(job, timeout_s=DEADLINE_S)
        with pytest.raises(Conflict, match="nothing of it runs now"):
            client.channel(job, "exec", argv=["true"])
        with pytest.raises(NotFound, match="no such job"):
            client.channel("nobody-7", "attach")
        client._line.http.headers["Authorization"] = "Bearer " + "x" * 43
        with pytest.raises(Unauthorized):
            client.channel(job, "attach")


def client_port(platform: Platform) -> int:
    """Of the control plane itself, which is on the node's loopback too and no job's."""
    with platform.client() as client:
        return int(client.url.rpartition(":")[2])


SERVES = """
import socket, threading
def one(connection):
    data = b""
    while got := connection.recv(65536):  # all of it, to the half-close
        data += got
    connection.sendall(b"%d:" % len(data) + data[::-1])
    connection.close()
server = socket.create_server(("127.0.0.1", 0))
print("port", server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=one, args=(server.accept()[0],)).start()
"""


def test_a_port_of_a_job_is_reached_by_many_connections_at_once_and_half_closes_are_kept(platform: Platform) -> None:
    job = platform.submit({"name": "serves", "entrypoint": ["python", "-c", SERVES]})

    def said() -> str:
        return platform.run("logs", job, check=False).stdout.partition("port ")[2].strip()

    port = int(until(said))
    answers: dict[int, bytes] = {}
    with platform.client() as client, client.forward(job, port) as here:

        def ask(number: int) -> None:
            with socket.create_connection(("127.0.0.1", here.port), timeout=DEADLINE_S) as connection:
                connection.sendall(bytes([number]) * 200_000)
                connection.shutdown(socket.SHUT_WR)
                answers[number] = b"".join(iter(lambda: connection.recv(65536), b""))

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for one in asking:
            one.start()
        for one in asking:
            one.join(DEADLINE_S)
    assert answers == {number: b"200000:" + bytes([number]) * 200_000 for number in range(12)}
    platform.run("cancel", job)


SERVER = """
import http.server, json, os, sys
port = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--ServerApp.port="))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = "token=" + os.environ["JUPYTER_TOKEN"] in self.path
        self.send_response(200 if known else 403)
        self.end_headers()
        self.wfile.write(json.dumps({"argv": sys.argv, "cwd": os.listdir("."), "known": known}).encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Isolated(Platform):
    """One that keeps jobs apart."""

    def up(self) -> None:
        self.run("up", "--port", "0", "--cpu-slots", "2", "--isolation", "uid")


def test_a_notebook_is_reached_by_its_address_alone_and_its_token_is_nowhere_else(platform: Platform, tmp_path: Path) -> None:
    is_reached_by_its_address_alone(platform, tmp_path)


@pytest.mark.needs_root
def test_a_notebook_is_where_jobs_are_kept_apart(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    isolated = Isolated(tmp_path_factory.mktemp("home"))
    isolated.up()
    try:
        is_reached_by_its_address_alone(isolated, tmp_path)
    finally:
        isolated.run("down", "--force")


def is_reached_by_its_address_alone(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "jupyter_server").mkdir()
    (tmp_path / "jupyter_server" / "__init__.py").touch()
    (tmp_path / "jupyter_server" / "__main__.py").write_text(SERVER)  # a small server with its command line
    (tmp_path / "analysis.ipynb").write_text("{}")
    person = Screen(platform, "notebook", str(tmp_path / "analysis.ipynb"), "--name", "lab")
    person.shows("?token=")
    person.shows("comes back")
    address = person.text.partition("http://")[2].split()[0]
    token = address.rpartition("token=")[2]
    job = person.text.partition("; ")[2].partition(" goes on")[0]
    with urllib.request.urlopen(f"http://{address}", timeout=DEADLINE_S) as answer:
        said = json.loads(answer.read())
    assert said["known"]
    assert "analysis.ipynb" in said["cwd"]
    assert "--ServerApp.ip=127.0.0.1" in said["argv"]
    assert len(token) == 64
    pid = view_of(platform, job).attempts[-1].ranks[0].pid
    commands = subprocess.run(["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert token not in commands
    assert pid is not None
    shown = (
        platform.run("logs", job).stdout + platform.run("events", job).stdout + platform.run("describe", job, "-o", "json").stdout
    )
    assert token not in shown
    holders = [path for path in platform.home.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert [path.name for path in holders] == ["notebook-token"]
    assert holders[0].stat().st_mode & 0o077 == 0
    person.types("\x03")
    assert person.code() == 130
    assert view_of(platform, job).state == "running"
    platform.run("cancel", job)


def test_an_environment_without_jupyter_says_what_to_install(platform: Platform) -> None:
    done = platform.run("notebook", "--name", "bare", check=False)
    assert done.returncode == 2
    assert "exited with code 78" in done.stderr
    assert "has no Jupyter; install jupyterlab there" in done.stderr
