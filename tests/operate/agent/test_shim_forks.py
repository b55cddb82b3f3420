"""The process that forks shims: one for all attempts of an agent, made anew when it dies, and its shims outlive it."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from phalanx.core.messages import StopRanks
from phalanx.operate.agent import fork_server
from phalanx.operate.agent.processes import boot_id, start_ticks
from phalanx.operate.agent.shim_forks import Shim, ShimForks
from phalanx.operate.engines import leftovers
from tests.operate.agent.agent_cell import Cell, alive, until

WAITS = "import signal; print('up', flush=True); signal.pause()"


def server(cell: Cell, other_than: int = 0) -> int:
    """The pid of the agent's fork server, once there is one."""

    def look() -> int | None:
        return next((one.pid for one in psutil.Process(cell.agent.pid).children() if is_it(one)), None)

    def is_it(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.name() == "phalanx-shims" and process.pid != other_than
        return False

    return until(look)


def started(cell: Cell, script: str, attempt: str = "demo-1.1") -> int:
    """The pid of the shim of an attempt that has said something."""
    cell.far.start(cell.launch(script, attempt=attempt, ranks=1))
    until(lambda: cell.far.text("log", attempt, 0))
    return cell.shim_pid(attempt)


def test_attempts_have_their_shims_from_one_process(cell: Cell) -> None:
    parent = server(cell)
    shims = {started(cell, WAITS, attempt=f"demo-{number}.1") for number in (1, 2)}
    assert len(shims) == 2
    for pid in shims:
        assert psutil.Process(pid).ppid() == parent
        assert os.getsid(pid) == pid, "a signal to another's session would reach it"


def test_a_shim_is_collected_when_it_ends(cell: Cell) -> None:
    pid = started(cell, "print('ran')")
    cell.far.phase("demo-1.1", "ended")
    until(lambda: not psutil.pid_exists(pid))


def test_a_server_that_died_is_followed_by_another(cell: Cell) -> None:
    dead = server(cell)
    os.kill(dead, signal.SIGKILL)
    until(lambda: not alive(dead))
    started(cell, WAITS)
    assert server(cell, other_than=dead) != dead


def test_a_server_that_dies_while_it_is_asked_is_followed_by_another(cell: Cell) -> None:
    dies = server(cell)
    os.kill(dies, signal.SIGSTOP)
    cell.far.start(cell.launch("print('ran')", ranks=1))
    until((cell.folder() / "shim.json").exists)
    os.kill(dies, signal.SIGKILL)
    cell.far.phase("demo-1.1", "ended")
    assert cell.far.text("log", "demo-1.1", 0) == "ran\n"


def test_the_server_ends_with_its_agent_and_its_shims_do_not(cell: Cell) -> None:
    pid, forks = started(cell, WAITS), server(cell)
    cell.agent.end(signal.SIGKILL)
    until(lambda: not alive(forks))
    assert alive(pid)


def test_shims_outlive_the_server_and_end_in_order(cell: Cell) -> None:
    pid, forks = started(cell, WAITS), server(cell)
    os.kill(forks, signal.SIGKILL)
    until(lambda: not alive(forks))
    assert alive(pid)
    cell.far.say(StopRanks(cell.launch("").attempt, 1, 60_000))
    assert cell.far.phase("demo-1.1", "ended").exits[0].code == -signal.SIGTERM


def test_down_finds_shims_by_their_claims_and_ends_the_server_too(cell: Cell) -> None:
    pid, forks = started(cell, WAITS), server(cell)
    root = cell.folder().parent
    assert leftovers._claimed(psutil.Process(pid), root) == "demo-1.1"
    assert leftovers._claimed(psutil.Process(forks), root) == ""
    assert leftovers.attempts(cell.home) == ["demo-1.1"]
    cell.agent.end(signal.SIGKILL)
    assert leftovers.sweep(cell.home, time.monotonic, time.sleep)
    assert not alive(pid)
    assert leftovers.attempts(cell.home) == []


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[ShimForks]:
    made = ShimForks(tmp_path)
    yield made
    made.close()


def folder(root: Path, name: str, secrets: tuple[str, ...] = ()) -> Path:
    """Of an attempt without ranks, whose shim ends at once."""
    made = root / name
    made.mkdir()
    order = {"ranks": [], "cwd": str(root), "socket": str(made / "s"), "marks": [], "grace_ms": 0, "secrets": secrets}
    (made / "shim.json").write_text(json.dumps(order))
    return made


def ended(shim: Shim) -> None:
    shim.wait()
    shim.close()


def test_a_shim_says_once_that_it_has_its_attempt(forks: ShimForks, tmp_path: Path) -> None:
    shim = forks.fork(folder(tmp_path, "one"), {})
    assert os.read(shim.claimed, 2) == b"c"
    assert json.loads((tmp_path / "one" / "shim-pid.json").read_text())["pid"] == shim.pid
    ended(shim)
    assert (tmp_path / "one" / "ended.json").exists()


def test_a_second_shim_of_an_attempt_leaves_without_a_word(forks: ShimForks, tmp_path: Path) -> None:
    itself = {"pid": os.getpid(), "start": start_ticks(os.getpid()), "boot": boot_id()}
    (folder(tmp_path, "one") / "shim-pid.json").write_text(json.dumps(itself))
    shim = forks.fork(tmp_path / "one", {})
    assert os.read(shim.claimed, 1) == b""
    ended(shim)
    assert not (tmp_path / "one" / "ended.json").exists()


def test_what_breaks_in_a_shim_is_in_its_log_and_the_server_goes_on(forks: ShimForks, tmp_path: Path) -> None:
    folder(tmp_path, "one")
    (tmp_path / "one" / "shim.json").write_text("{")
    broken = forks.fork(tmp_path / "one", {})
    assert os.read(broken.claimed, 1) == b""
    ended(broken)
    assert "JSONDecodeError" in (tmp_path / "one" / "shim.log").read_text()
    whole = forks.fork(folder(tmp_path, "two"), {})
    assert os.read(whole.claimed, 1) == b"c"
    ended(whole)


def test_secrets_that_do_not_come_whole_start_nothing(forks: ShimForks, tmp_path: Path) -> None:
    shim = forks.fork(folder(tmp_path, "one", secrets=("KEY", "OTHER")), {"KEY": "value"})
    assert os.read(shim.claimed, 1) == b""
    ended(shim)
    assert "before all secrets had come" in (tmp_path / "one" / "shim.log").read_text()


def test_no_shim_holds_what_belongs_to_another(forks: ShimForks, tmp_path: Path) -> None:
    """The second is asked where its secrets wait in a pipe: its standard input, and nothing of the first one's."""
    first = forks.fork(folder(tmp_path, "one"), {})
    second = forks.fork(folder(tmp_path, "two", secrets=("KEY",)), {"KEY": "value"})
    assert os.read(first.claimed, 2) == b"c", "the second would keep the first one's end open"
    assert os.read(first.claimed, 1) == b""
    ended(first)
    ended(second)


def test_an_answer_that_comes_too_late_is_nobody_elses(forks: ShimForks, tmp_path: Path) -> None:
    """And what was forked for whoever gave up claims nothing."""
    ended(forks.fork(folder(tmp_path, "first"), {}))
    server = forks._server
    assert server is not None and forks._socket is not None
    os.kill(server.pid, signal.SIGSTOP)
    forks._socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        forks.fork(folder(tmp_path, "late"), {})
    assert server.returncode is not None, "it may still answer"
    shim = forks.fork(folder(tmp_path, "two"), {})
    assert os.read(shim.claimed, 1) == b"c"
    assert json.loads((tmp_path / "two" / "shim-pid.json").read_text())["pid"] == shim.pid
    ended(shim)
    assert not (tmp_path / "late" / "shim-pid.json").exists()


def test_a_shim_whose_asker_is_gone_claims_nothing(forks: ShimForks, tmp_path: Path) -> None:
    shim, values = forks._ask(folder(tmp_path, "one"))
    os.close(values)
    assert os.read(shim.claimed, 1) == b""
    ended(shim)
    assert not (tmp_path / "one" / "shim-pid.json").exists()


def test_a_server_that_cannot_be_started_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "command", lambda _: [str(tmp_path / "missing")])
    with pytest.raises(FileNotFoundError, match="missing"):
        ShimForks(tmp_path).fork(tmp_path, {})
