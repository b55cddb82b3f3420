"""`up` and `down` of one machine, with real daemons: started once, healed after kills, ended without leftovers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from phalanx.core import wire
from phalanx.core.errors import SetupError
from phalanx.operate import daemons
from phalanx.operate.daemons import Record
from phalanx.operate.engines import leftovers, local
from phalanx.operate.home import node_name, open_home
from tests.operate.control.live_server import until

WAIT = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"


class Cell:
    """One home and the command line on it."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, *words: str, code: int = 0) -> str:
        argv = [sys.executable, "-m", "phalanx.app", *words, "--home", str(self.home)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr + self.words()
        return done.stdout + done.stderr

    def up(self) -> str:
        return self.run("up", "--port", "0", "--cpu-slots", "2")

    def pid(self, daemon: daemons.Daemon) -> int:
        found = daemons.alive(self.home, daemon)
        assert found is not None
        return found.pid

    def kill(self, daemon: daemons.Daemon) -> None:
        os.kill(self.pid(daemon), signal.SIGKILL)
        until(lambda: daemons.alive(self.home, daemon) is None)

    def ask(self, method: str, path: str, **body: Any) -> Any:
        url = json.loads((self.home / "run" / "server.json").read_bytes())["url"]
        headers = {"Authorization": f"Bearer {(self.home / 'token').read_text().strip()}"}
        answer = httpx.request(method, f"{url}/api/v1{path}", headers=headers, trust_env=False, verify=False, timeout=60, **body)
        assert answer.is_success, answer.text
        return answer.json()

    def submit(self, program: str, **spec: Any) -> str:
        body = {"name": "job", "entrypoint": ["python", "-c", program], "resources": {"gpus": "2"}, **spec}
        return str(self.ask("POST", "/jobs", json={"spec": body})["id"])

    def running(self, job: str) -> list[int]:
        """Waits until both ranks have printed; their pids."""
        until(lambda: self.ask("GET", f"/jobs/{job}")["state"] == "running")
        for rank in (0, 1):
            until(lambda rank=rank: "up" in self.ask("GET", f"/jobs/{job}/logs?rank={rank}")["text"])  # type: ignore[misc]  # bound early
        return [rank["pid"] for rank in self.ask("GET", f"/jobs/{job}")["attempts"][-1]["ranks"]]

    def started(self, job: str) -> bool:
        return bool(self.ask("GET", f"/jobs/{job}")["attempts"])

    def words(self) -> str:
        return "".join(log.read_text() for log in (self.home / "run").glob("*.log"))


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    made = Cell(tmp_path / "home")
    yield made
    made.run("down", "--force")
    assert not [one for one in psutil.process_iter() if _names(one, made.home)]


def _names(process: psutil.Process, home: Path) -> bool:
    try:
        return any(str(home) in word for word in process.cmdline())
    except psutil.Error:
        return False


def test_up_starts_what_is_missing_and_only_that(cell: Cell) -> None:
    assert "is up." in cell.up()
    before = cell.pid("server"), cell.pid("agent")
    assert "was up already" in cell.up()
    assert (cell.pid("server"), cell.pid("agent")) == before
    job = cell.submit(WAIT)
    ranks = cell.running(job)
    url = cell.ask("GET", "/status")["url"]

    cell.kill("server")
    assert "is up." in cell.up()
    assert cell.pid("agent") == before[1]
    assert cell.ask("GET", "/status")["url"] == url  # where clients look for it
    cell.kill("agent")
    assert "is up." in cell.up()
    view = cell.ask("GET", f"/jobs/{job}")
    assert (view["state"], view["restarts"]) == ("running", 0)
    assert [rank["pid"] for rank in view["attempts"][-1]["ranks"]] == ranks
    assert all(psutil.pid_exists(rank) for rank in ranks)


def test_down_refuses_while_jobs_hold_devices_and_force_stops_them(cell: Cell) -> None:
    cell.up()
    job = cell.submit(WAIT)
    ranks = cell.running(job)
    assert job in cell.run("down", code=2)
    assert all(psutil.pid_exists(rank) for rank in ranks)
    waiting = cell.submit(WAIT)
    cell.run("down", "--force")
    assert not any(psutil.pid_exists(rank) for rank in ranks)
    assert leftovers.attempts(cell.home) == []
    assert "Nothing was running" in cell.run("down")
    assert "did not answer" not in cell.run("down", "--force")
    cell.up()
    assert cell.ask("GET", f"/jobs/{waiting}")["state"] != "finished"  # it was never asked to end
    cell.ask("POST", f"/jobs/{waiting}/cancel")
    until(lambda: len(cell.ask("GET", f"/jobs/{job}")["attempts"]) == 2)
    assert cell.running(job)
    assert cell.ask("GET", f"/jobs/{job}")["restarts"] == 1


@pytest.mark.parametrize("spec", [{}, {"max_restarts": 0}, {"kind": "interactive"}])
def test_a_job_that_ends_politely_when_its_platform_goes_down_has_not_succeeded_nor_used_a_restart(
    cell: Cell, spec: dict[str, Any]
) -> None:
    cell.up()
    job = cell.submit(
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True)\nsignal.pause()",
        **spec,
    )
    cell.running(job)
    cell.run("down", "--force")
    cell.up()
    until(lambda: len(cell.ask("GET", f"/jobs/{job}")["attempts"]) == 2)
    assert cell.ask("GET", f"/jobs/{job}")["attempts"][0]["detail"] == "stopped with the platform"


def test_no_server_is_left_that_could_start_gangs_on_joined_nodes_while_the_agent_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    ended: list[object] = []
    monkeypatch.setattr(daemons, "alive", lambda _, daemon: daemon)
    monkeypatch.setattr(local, "_end", lambda _, process: ended.append(process))
    assert local.down(local.Machine(command=lambda *_: ()), tmp_path).stopped
    assert ended == ["standby", "server", "agent"]


def test_up_comes_back_on_its_port(cell: Cell) -> None:
    cell.up()
    url = json.loads((cell.home / "run" / "server.json").read_bytes())["url"]
    cell.run("down")
    cell.up()
    assert json.loads((cell.home / "run" / "server.json").read_bytes())["url"] == url


def test_ranks_that_nobody_holds_any_more_are_known_and_swept(cell: Cell) -> None:
    cell.up()
    ranks = cell.running(cell.submit(STUBBORN, max_restarts=0))
    cell.kill("server")
    cell.kill("agent")
    assert "job-1.1" in cell.run("down", code=2)
    said = cell.run("down", "--force", "-o", "json")
    assert '"left": null' in said and "The server did not answer, so ranks on joined nodes" in said, "nobody asked them to stop"
    assert not any(psutil.pid_exists(rank) for rank in ranks)


def test_a_server_that_refuses_its_home_is_repeated_and_not_its_log(tmp_path: Path) -> None:
    cell = Cell(tmp_path / "home")
    open_home(cell.home)
    (cell.home / "phalanx.db").write_bytes(b"not a database " * 100)
    words = cell.run("up", "--port", "0", code=2)
    assert "database" in words
    assert words.count("Error:") == 1
    assert "server.log" not in words
    assert "Traceback" not in words
    assert daemons.alive(cell.home, "server") is None


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with daemons.listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        words = Cell(tmp_path / "home").run("up", "--port", port, code=2)
    assert port in words
    assert "--port" in words


def test_a_home_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="PHALANX_HOME"):
        open_home(tmp_path / "file")
    with pytest.raises(SetupError, match="PHALANX_HOME"):
        open_home(Path("/proc/nothing"))


def test_another_process_with_the_recorded_number_is_never_touched(tmp_path: Path) -> None:
    open_home(tmp_path)
    stranger = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "server", str(tmp_path)])
    sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        boot, began = daemons.boot_id(), daemons.start_ticks(stranger.pid)
        for record in (
            Record(sleeper.pid, 1, "", daemons.start_ticks(sleeper.pid), boot),  # the right start, another command
            Record(stranger.pid, 1, "", began - 1, boot),  # the right words, another start
            Record(stranger.pid, 1, "", began, "another-boot"),
            Record(stranger.pid, 1),
            Record(2**22 + 5, 1, "", 0, boot),
        ):
            (tmp_path / "run" / "server.json").write_text(wire.dumps(Record, record))
            assert daemons.alive(tmp_path, "server") is None
            machine = local.Machine(lambda *_: ())
            assert local.down(machine, tmp_path).stopped is False
        assert stranger.poll() is None and sleeper.poll() is None
    finally:
        for process in (stranger, sleeper):
            process.kill()
            process.wait()


@pytest.mark.parametrize("stepped_ms", [-86_400_000, 0, 86_400_000])
def test_a_clock_that_is_set_hides_no_daemon(tmp_path: Path, stepped_ms: int) -> None:
    open_home(tmp_path)
    ours = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "server", str(tmp_path)])
    try:
        written_ms = time.time_ns() // 1_000_000 + stepped_ms
        record = Record(ours.pid, written_ms, "", daemons.start_ticks(ours.pid), daemons.boot_id())
        (tmp_path / "run" / "server.json").write_text(wire.dumps(Record, record))
        assert until(lambda: daemons.alive(tmp_path, "server")).pid == ours.pid  # an exec shows its words a moment later
    finally:
        ours.kill()
        ours.wait()
    assert daemons.alive(tmp_path, "server") is None


class HandClock:
    """Moves by what is slept."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def test_what_sigkill_does_not_end_is_one_error_and_no_endless_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "node" / "attempts" / "job-1.1"
    held = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"], env={"PHALANX_RECORDS": str(folder / "rank-0.records")}
    )
    clock = HandClock()
    try:
        until(lambda: leftovers.attempts(tmp_path))
        monkeypatch.setattr(psutil.Process, "kill", lambda _: None)  # as for one that hangs in a driver
        with pytest.raises(SetupError, match=str(held.pid)):
            leftovers.sweep(tmp_path, clock, clock.sleep)
        assert clock.now_s < 60
    finally:
        held.kill()
        held.wait()


def test_a_server_that_reads_for_long_is_waited_for_while_it_gets_on(tmp_path: Path) -> None:
    open_home(tmp_path)
    clock = HandClock()
    reading_s = 5 * local.START_S_MAX

    def sleep(duration_s: float) -> None:
        clock.sleep(duration_s)
        if clock.now_s < reading_s and int(clock.now_s) % 30 == 0:
            daemons.note_progress(tmp_path, "server")

    machine = local.Machine(lambda *_: (), clock, sleep)
    local._until(machine, tmp_path, "server", None, lambda: clock.now_s > reading_s)
    (tmp_path / "run" / "server.log").write_text("reading\n")
    with pytest.raises(SetupError, match="reading"):
        local._until(machine, tmp_path, "server", None, lambda: False)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_home_and_its_databases_are_their_owners_alone(cell: Cell) -> None:
    cell.home.mkdir(mode=0o755)
    cell.up()
    assert mode(cell.home) == 0o700
    private = [cell.home / "phalanx.db", cell.home / "run" / "server.log", cell.home / "run" / "agent.log", cell.home / "token"]
    assert [mode(path) for path in private] == [0o600] * 4
    rank = cell.submit("import os; print(oct(os.umask(0)))", resources={"gpus": "1"})
    usual = os.umask(0o022)
    os.umask(usual)
    until(lambda: oct(usual) in cell.ask("GET", f"/jobs/{rank}/logs?rank=0&attempt=1")["text"] if cell.started(rank) else None)
    cell.run("down", "--force")
    for path in (cell.home, cell.home / "phalanx.db"):
        path.chmod(0o755)
    open_home(cell.home)
    assert (mode(cell.home), mode(cell.home / "phalanx.db")) == (0o700, 0o700)


def test_a_folder_that_is_no_home_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    tmp_path.chmod(0o755)
    open_home(tmp_path)
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize("text", ["", "junk", "[]", '{"pid": "x"}', '{"url": "http://127.0.0.1:1"}'])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    open_home(tmp_path)
    (tmp_path / "run" / "server.json").write_text(text)
    assert daemons.read(tmp_path, "server") is None


def test_two_ups_at_once_do_not_meet(tmp_path: Path) -> None:
    open_home(tmp_path)
    with daemons.only_one(tmp_path, "up", "wait"), pytest.raises(SetupError, match="wait"):
        local.up(local.Machine(lambda *_: ()), tmp_path, 0)


def test_a_nodes_name_stays(tmp_path: Path) -> None:
    first = node_name(tmp_path)
    assert first
    (tmp_path / "node" / "name").write_text("kept-name\n")
    assert node_name(tmp_path) == "kept-name"
    (tmp_path / "node" / "name").write_text("../bad\n")
    assert node_name(tmp_path) == first
