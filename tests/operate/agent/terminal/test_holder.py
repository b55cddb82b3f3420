"""The real holder as a process of its own: a terminal that people come back to, and commands tied to whoever asked."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.channels import ERR, INPUT, OUT
from phalanx.operate.agent.terminal import frames, holder, programs, sessions
from phalanx.operate.agent.terminal.beside import listener
from tests.operate.agent.agent_cell import DEADLINE_S, until

OPEN: list[socket.socket] = []
PLAIN = {"PATH": "/usr/bin:/bin", "PS1": "$ ", "HOME": "/", "LANG": "C.UTF-8"}


class Held:
    """A holder and where it listens."""

    def __init__(self, folder: Path, mode: str, argv: Sequence[str]) -> None:
        self.path = folder / "tty"
        heard = listener(str(self.path))
        self.process = subprocess.Popen(holder.command(mode, argv), stdin=heard.fileno(), env=PLAIN, cwd=folder)
        heard.close()

    def call(self) -> "Called":
        connection = socket.socket(socket.AF_UNIX)
        OPEN.append(connection)
        connection.settimeout(DEADLINE_S)
        connection.connect(str(self.path))
        return Called(connection)

    def attached(self, rows: int = 24, columns: int = 80) -> "Called":
        called = self.call()
        called.tell(attach=[rows, columns])
        return called

    def code(self) -> int:
        return self.process.wait(DEADLINE_S)


class Called:
    """One connection to it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.buffer = bytearray()
        self.shown = {OUT: b"", ERR: b""}
        self.said: list[dict[str, Any]] = []

    def tell(self, **message: object) -> None:
        self.socket.sendall(frames.control(message))

    def type(self, data: bytes) -> None:
        for piece in frames.cut(data):
            self.socket.sendall(frames.frame(INPUT, piece))

    def hear(self) -> bool:
        got = self.socket.recv(65536)
        self.buffer += got
        for stream, data in frames.take(self.buffer):
            if stream == frames.CONTROL:
                self.said.append(json.loads(data))
            else:
                self.shown[stream] += data
        return bool(got)

    def sees(self, what: bytes) -> None:
        while what not in self.shown[OUT]:
            assert self.hear(), f"{what!r} is not in {self.shown}"

    def asks_until(self, what: bytes) -> None:
        """With a line each time."""
        while what not in self.shown[OUT]:
            self.type(b"\n")
            assert self.hear()

    def exit(self) -> int:
        while not any("exit" in one for one in self.said):
            assert self.hear(), self.said
        return int(self.said[-1]["exit"])


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path, "keep", ["sh"])
    yield held
    held.process.kill()
    held.process.wait()


def test_what_was_set_is_there_for_whoever_comes_next(shell: Held) -> None:
    first = shell.attached()
    first.type("X=grün\n".encode())
    first.sees(b"X=gr\xc3\xbcn\r\n")
    first.socket.close()
    second = shell.attached()
    second.sees(b"X=gr\xc3\xbcn")  # what the screen had before
    second.type(b"echo is:$X:\n")
    second.sees("is:grün:".encode())


def test_a_shell_that_is_left_after_a_command_that_is_not_there_is_no_failed_job(shell: Held) -> None:
    person = shell.attached()
    person.type(b"no-such-command-here\n")
    person.sees(b"not found")
    person.type(b"\x04")
    assert person.exit() == 127
    assert shell.code() == 0


def test_a_shell_that_is_not_there_is_one(tmp_path: Path) -> None:
    held = Held(tmp_path, "keep", ["no-such-shell-here"])
    assert held.code() == 127
    held.process.wait()


def test_ctrl_c_reaches_what_runs_and_ctrl_d_ends_the_shell(shell: Held) -> None:
    person = shell.attached()
    person.type(b"echo run:$((1 + 1)):; cat\n")
    person.sees(b"run:2:")
    person.type(b"abc\n")
    person.sees(b"abc\r\nabc\r\n")
    person.type(b"\x03")
    person.sees(b"^C\r\n$ ")
    person.type(b"echo here:$((6 * 7)):\n")
    person.sees(b"here:42:")
    person.type(b"false\n\x04")
    assert person.exit() == 1
    assert shell.code() == 0  # what the last command said is no failure of the job


def test_the_screen_fits_all_who_look_and_the_rest_once_one_leaves(shell: Held) -> None:
    large, small = shell.attached(50, 120), shell.attached(20, 60)
    large.type(b"while :; do stty size; read x; done\n")
    large.asks_until(b"20 60")
    small.socket.close()
    large.asks_until(b"50 120")
    large.tell(resize=[33, 44])
    large.asks_until(b"33 44")


def test_every_byte_passes_both_ways(tmp_path: Path) -> None:
    held = Held(tmp_path, "keep", ["sh", "-c", "stty raw -echo; echo ready; exec head -c 256"])
    person = held.attached()
    person.sees(b"ready")
    person.type(bytes(range(256)))
    assert person.exit() == 0
    assert person.shown[OUT].endswith(bytes(range(256)))
    assert held.code() == 0


def test_all_who_are_attached_see_the_same_and_are_told_what_the_platform_says(shell: Held) -> None:
    one, two, agent = shell.attached(), shell.attached(), shell.call()
    one.type(b"echo seen:$((1 + 1)):\n")
    two.sees(b"seen:2:")
    agent.tell(say="it is idle")
    while {"say": "it is idle"} not in two.said:
        two.hear()
    agent.tell(status=True)
    while not agent.said:
        agent.hear()
    status = agent.said[0]["status"]
    assert status["users"] == 2
    assert 0 <= status["input_ms"] < DEADLINE_S * 1000


def test_who_does_not_read_is_left_behind_and_nobody_waits_for_them(shell: Held) -> None:
    asleep, awake = shell.attached(), shell.attached()
    awake.type(b"head -c 4000000 /dev/zero | tr '\\0' x; echo; echo all:$((40 + 2)):\n")
    awake.sees(b"all:42:")
    held = resident_bytes(shell.process.pid)
    assert held < 64 * 2**20
    asleep.sees(b"all:42:")
    assert any("left out" in one.get("say", "") for one in asleep.said)
    assert len(asleep.shown[OUT]) < 3_000_000


def test_a_terminal_goes_on_though_all_who_look_are_asleep(shell: Held, tmp_path: Path) -> None:
    person = shell.attached()
    person.type(b"head -c 3000000 /dev/zero | tr '\\0' x; echo done > marker\n")
    until((tmp_path / "marker").exists)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_stop_hangs_up_shell_and_what_runs_in_it(shell: Held, tmp_path: Path) -> None:
    person = shell.attached()
    person.type(b"sleep 1000\n")
    person.sees(b"sleep 1000")
    shell.process.send_signal(signal.SIGTERM)
    assert person.exit() in (128 + signal.SIGHUP, 128 + signal.SIGTERM)
    assert shell.code() in (128 + signal.SIGHUP, 128 + signal.SIGTERM)


def test_a_stop_reaches_a_shell_that_was_forked_a_moment_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is the leader of its session there is no group to signal, though its terminal already shows what was typed."""

    def no_group(group: int, number: int) -> None:
        raise ProcessLookupError

    program = programs.OnTerminal(["sleep", "1000"])
    program.start((24, 80))
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", no_group)
        program.hang_up()
    until(program.ended)
    assert program.code() in (128 + signal.SIGHUP, 128 + signal.SIGTERM)


def test_a_command_s_output_and_errors_come_apart_and_its_code_is_passed_on(tmp_path: Path) -> None:
    held = Held(tmp_path, "piped", ["sh", "-c", "cat; echo bad >&2; exit 7"])
    asking = held.attached()
    data = os.urandom(1_000_000)
    asking.socket.settimeout(DEADLINE_S)
    feeder = os.fork()
    if feeder == 0:  # it must be read while it is fed
        asking.type(data)
        asking.tell(end=INPUT)
        os._exit(0)
    assert asking.exit() == 7
    os.waitpid(feeder, 0)
    assert asking.shown == {OUT: data, ERR: b"bad\n"}
    assert held.code() == 7


def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    for mode, stream in (("piped", ERR), ("tied", OUT)):
        held = Held(tmp_path, mode, ["no-such-command"])
        asking = held.attached()
        assert asking.exit() == 127
        assert b"cannot start 'no-such-command': No such file" in asking.shown[stream]
        held.code()


def test_a_command_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    held = Held(tmp_path, "piped", ["sleep", "1000"])
    held.attached().socket.close()
    assert held.code() in (128 + signal.SIGHUP, 128 + signal.SIGTERM)


def test_garbage_hangs_up_on_who_sent_it_alone(shell: Held) -> None:
    bad, good = shell.attached(), shell.attached()
    bad.socket.sendall(b"\xff" * 64)
    try:
        while bad.socket.recv(65536):
            pass
    except ConnectionResetError:
        pass
    good.type(b"echo still:$((1 + 2)):\n")
    good.sees(b"still:3:")


def test_scrollback_keeps_the_end_from_a_line_s_beginning_on() -> None:
    kept = sessions.Scrollback(limit=20)
    for number in range(100):
        kept.add(b"line %d\n" % number)
    assert kept.read() == b"line 98\nline 99\n"
    short = sessions.Scrollback(limit=20)
    short.add(b"$ half")
    assert short.read() == b"$ half"


def test_the_holder_needs_no_package_but_ours() -> None:
    """It is started by a shim that has the standard library alone."""
    code = "import sys; sys.path.append(sys.argv[1]); import phalanx.operate.agent.terminal.holder; print(sorted(sys.modules))"
    root = str(Path(holder.__file__).parents[4])
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True)
    assert "pydantic" not in done.stdout
