"""A link that breaks in the middle of a command, a machine short of everything, launches that cannot be: nothing hangs."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from phalanx.core.devices import Device
from phalanx.core.errors import Bug, SetupError, StoreUnavailable
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import Forget, StopRanks
from phalanx.operate.agent import attempts
from phalanx.operate.agent.agent import Agent
from phalanx.operate.agent.attempt_run import AttemptRun
from phalanx.operate.agent.attempts import AttemptFolder, Seen, accept
from phalanx.operate.agent.connection import Connection, written_url
from phalanx.operate.agent.ports import claim_block
from phalanx.operate.agent.shim_forks import Shim, ShimForks
from phalanx.operate.agent.together import cancelled, until_asked
from phalanx.storage.atomic import write_atomic
from tests.operate.agent.agent_cell import DEADLINE_S, TOKEN, AgentProcess, Cell, FarSide, alive, until

DEMO = AttemptId("demo-1.1")


async def until_true(look: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not look():
            await asyncio.sleep(0.005)


def live(home: Path, scenario: Callable[[Agent, FarSide, Cell], Awaitable[None]]) -> None:
    """Runs `scenario` beside a real agent in this process, connected to a far side."""
    home.mkdir()
    far = FarSide(home)
    far.up()

    async def run() -> None:
        block = claim_block()
        agent = Agent(home, written_url(home), TOKEN, NodeId("node-a"), (Device(0, "cpu", "CPU slot"),), block)
        running = asyncio.create_task(agent.run())
        try:
            await until_true(lambda: far._agent)
            await scenario(agent, far, Cell(home, far, AgentProcess(home)))
            assert not running.done()
        finally:
            await cancelled([running])
            block.guard.close()

    try:
        asyncio.run(run())
    finally:
        far.down()


async def broken_link(far: FarSide) -> None:
    """Breaks it and waits for the next Hello."""
    before = len(far.hellos())
    assert far._agent is not None
    await asyncio.to_thread(far._agent.close)
    await until_true(lambda: len(far.hellos()) > before)


def slowly(call: Callable[..., Any], started: list[str]) -> Callable[..., Any]:
    def slow(*args: Any, **kwargs: Any) -> Any:
        started.append("")
        time.sleep(0.3)  # in a thread, as a slow disk would
        return call(*args, **kwargs)

    return slow


@pytest.mark.parametrize("where", ["accept", "read"])
def test_a_link_that_breaks_in_the_middle_of_a_start_does_not_cut_it_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def scenario(agent: Agent, far: FarSide, cell: Cell) -> None:
        started: list[str] = []
        with monkeypatch.context() as patched:
            if where == "accept":
                patched.setattr(attempts, "write_atomic", slowly(write_atomic, started))
            else:
                patched.setattr(AttemptFolder, "read", slowly(AttemptFolder.read, started))
            far.start(cell.launch("", ranks=1))
            await until_true(lambda: started)
            await broken_link(far)
        await until_true(lambda: [report for report in far.reports(DEMO) if report.phase == "ended"])
        for _ in range(2):
            far.say(Forget(DEMO, 1))
        await until_true(lambda: not cell.folder().exists() and not agent._runs)

    live(tmp_path / "home", scenario)


def test_a_job_cancelled_while_its_start_hangs_is_never_run_by_a_later_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(agent: Agent, far: FarSide, cell: Cell) -> None:
        started: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(attempts, "write_atomic", slowly(write_atomic, started))
            far.start(cell.launch("import signal; signal.pause()", ranks=1))
            await until_true(lambda: started)
            await broken_link(far)
        far.say(StopRanks(DEMO, 1, 100))
        await until_true(lambda: [report for report in far.reports(DEMO) if report.phase == "ended"])
        far.say(Forget(DEMO, 1))
        await until_true(lambda: not cell.folder().exists() and not agent._runs)

    live(tmp_path / "home", scenario)


def test_half_a_promise_is_taken_back_when_the_attempt_is_stopped(tmp_path: Path) -> None:
    async def scenario(agent: Agent, far: FarSide, cell: Cell) -> None:
        await asyncio.to_thread(accept, cell.folder().parent, cell.launch("", ranks=1), 1)  # as a failed start leaves it
        far.say(StopRanks(DEMO, 1, 100))
        await until_true(lambda: [report for report in far.reports(DEMO) if report.phase == "ended"])
        assert not cell.folder().exists()

    live(tmp_path / "home", scenario)


def test_a_stop_reaches_the_ranks_though_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(agent: Agent, far: FarSide, cell: Cell) -> None:
        far.start(cell.launch("import signal; print('up', flush=True); signal.pause()", ranks=1))
        await until_true(lambda: far.text("log", DEMO, 0))
        [process] = agent._runs[DEMO].seen.ranks

        def full(*_: object, **__: object) -> None:
            raise StoreUnavailable("no space left on device")

        monkeypatch.setattr(attempts, "write_atomic", full)
        far.say(StopRanks(DEMO, 1, 100))
        await until_true(lambda: not alive(process.pid))
        await until_true(lambda: [report for report in far.reports(DEMO) if report.phase == "ended"])

    live(tmp_path / "home", scenario)


def test_an_older_look_at_the_files_does_not_take_a_newer_ones_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a stop and the end that it brings are looked at by two threads at a time."""
    newer_shown = threading.Event()
    looks = iter((Seen(), Seen(ended=True)))
    unused: Any = None

    def read(_: AttemptFolder) -> Seen:
        if not (seen := next(looks)).ended:
            newer_shown.wait(0.5)  # a slow disk
        return seen

    monkeypatch.setattr(AttemptFolder, "read", read)

    async def scenario() -> bool:
        run = AttemptRun(AttemptFolder(tmp_path, unused), unused, lambda run: newer_shown.set() if run.seen.ended else None)
        await asyncio.gather(run.refresh(), run.refresh())
        return run.seen.ended

    assert asyncio.run(scenario())


def on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Facts are refused from now on, until the context ends; what was refused."""
    refused: list[Path] = []

    def full(path: Path, fact: object) -> None:
        refused.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(attempts, "write_durable", full)
    return refused


@pytest.mark.parametrize("way", ["fail", "lose"])
def test_an_end_is_said_only_once_the_disk_has_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    async def scenario(agent: Agent, far: FarSide, cell: Cell) -> None:
        with monkeypatch.context() as patched:
            if way == "fail":
                refused = on_a_full_disk(patched)
                far.start(cell.launch("", ranks=1, argv=()))
            else:
                far.start(cell.launch("import signal; print('up', flush=True); signal.pause()", ranks=1))
                await until_true(lambda: far.text("log", DEMO, 0))
                refused = on_a_full_disk(patched)
                os.kill(cell.shim_pid(), signal.SIGKILL)
            await until_true(lambda: len(refused) >= 3)
            assert {report.phase for report in far.reports(DEMO)} & {"ended"} == set()
            assert not (cell.folder() / "ended.json").exists()
        await until_true(lambda: [report for report in far.reports(DEMO) if report.phase == "ended"])
        last = far.reports(DEMO)[-1]
        assert ([exited.code for exited in last.exits], bool(last.lost)) == (([127], False) if way == "fail" else ([], True))

    live(tmp_path / "home", scenario)


def test_a_failure_that_was_begun_is_carried_to_its_end_by_the_next_agent_though_it_could_start_them_now(cell: Cell) -> None:
    until(cell.far.hellos)
    cell.agent.end(signal.SIGKILL)
    launch = cell.launch(f"open({str(cell.home / 'ran')!r}, 'w')")
    folder = accept(cell.folder().parent, launch, 1)
    folder.fail("MASTER_PORT was taken then", 127, 5)
    for gone in ("ended.json", "exits/rank-1.json"):
        (folder.path / gone).unlink()  # as a crash in the middle leaves it
    cell.agent.start()
    report = cell.far.phase(DEMO, "ended")
    assert [(exited.code, exited.at_ms, exited.first) for exited in report.exits] == [(127, 5, True), (127, 5, False)]
    assert cell.far.text("log", DEMO, 0).count("MASTER_PORT was taken then") >= 1
    assert not (cell.home / "ran").exists()
    assert not (folder.path / "shim-pid.json").exists()


def test_a_shim_that_the_system_does_not_let_start_is_a_start_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Shim:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(ShimForks, "fork", refuse)

    async def scenario(agent: Agent, far: FarSide, cell: Cell) -> None:
        far.start(cell.launch("", ranks=1))
        await until_true(lambda: [report for report in far.reports(DEMO) if report.phase == "ended"])
        assert [exited.code for exited in far.reports(DEMO)[-1].exits] == [127]
        assert "Resource temporarily unavailable" in far.text("log", DEMO, 0)

    live(tmp_path / "home", scenario)


def test_an_agent_without_file_descriptors_does_not_take_its_ranks_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    real = os.pidfd_open

    def without(pid: int, flags: int = 0) -> int:
        if len(refused) < 2:
            refused.append(pid)
            raise OSError(errno.EMFILE, "Too many open files")
        return real(pid, flags)

    monkeypatch.setattr(os, "pidfd_open", without)

    async def scenario(agent: Agent, far: FarSide, cell: Cell) -> None:
        done = cell.home / "done"
        far.start(cell.launch(f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)", ranks=1))
        await until_true(lambda: len(refused) == 2)
        done.touch()
        await until_true(lambda: [report for report in far.reports(DEMO) if report.phase == "ended"])
        last = far.reports(DEMO)[-1]
        assert ([exited.code for exited in last.exits], last.lost) == ([0], "")

    live(tmp_path / "home", scenario)


@pytest.mark.parametrize(("raised", "survives"), [(SetupError("path", "/x", "is read-only"), True), (Bug("ours"), False)])
def test_a_connection_outlives_what_is_not_a_bug(tmp_path: Path, raised: Exception, survives: bool) -> None:
    asked: list[str] = []
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "server.json").write_text('{"url": "http://127.0.0.1:9"}')

    def url() -> str | None:
        asked.append("")
        raise raised

    async def unused(*_: object) -> Any:
        raise AssertionError

    async def scenario() -> bool:
        running = asyncio.create_task(Connection(url, TOKEN, unused, unused, unused, Random(1)).run())
        await until_true(lambda: running.done() or len(asked) >= 2)
        ended = running.done()
        await cancelled([running])
        return not ended

    assert asyncio.run(scenario()) is survives


@pytest.mark.parametrize("changes", [{"argv": ()}, {"argv": ("tr\0ue",)}, {"env": {"A": "b\0c"}}])
def test_a_launch_that_cannot_be_started_ends_with_its_reason_in_each_log(cell: Cell, changes: dict[str, Any]) -> None:
    cell.far.start(cell.launch("", **changes))
    report = cell.far.phase(DEMO, "ended")
    assert [exited.code for exited in report.exits] == [127, 127]
    assert all("phalanx: " in cell.far.text("log", DEMO, rank) for rank in range(2))


def test_a_launch_that_has_no_place_on_disk_is_reported_lost_with_its_reason(cell: Cell) -> None:
    cell.far.start(cell.launch("", attempt="../escape"))
    assert "not an attempt id" in cell.far.phase("../escape", "ended").lost
    cell.far.start(cell.launch("", devices=(), attempt="bare-1.1"))
    assert "no devices" in cell.far.phase("bare-1.1", "ended").lost
    (cell.home / "node" / "attempts" / "taken-1.1").write_text("a file where a folder is needed")
    cell.far.start(cell.launch("", attempt="taken-1.1"))
    assert "refused to start" in cell.far.phase("taken-1.1", "ended").lost


LOCKED_AWAY = f"""
import os
from pathlib import Path
from phalanx.operate.agent.attempts import clear, discard
if os.geteuid() == 0:  # for whom a mode means nothing
    os.setgid(65534)
    os.setuid(65534)
root = Path(f"/tmp/phalanx-locked-{{os.getpid()}}")
inner = root / "{DEMO}" / "code" / "a" / "b"
inner.mkdir(parents=True)
(inner / "file").touch()
(root / "{DEMO}" / "code" / "link").symlink_to("/etc")
for folder in (inner, inner.parent, inner.parent.parent):
    folder.chmod(0o500)
assert discard(root, "{DEMO}")
assert not list(root.iterdir())
clear(root)
"""


def test_what_a_rank_locked_away_is_removed_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", LOCKED_AWAY], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr


def test_an_agent_that_fails_says_so_in_one_line_and_exits_non_zero(cell: Cell) -> None:
    until(cell.far.hellos)
    assert json.loads((cell.home / "run" / "agent.json").read_bytes())["pid"] == cell.agent.pid
    assert cell.agent.end() == 0
    assert not (cell.home / "run" / "agent.json").exists()
    (cell.home / "node" / "ports.json").write_text("damaged")
    cell.agent.start()
    assert cell.agent.process is not None
    assert cell.agent.process.wait(DEADLINE_S) == 1
    assert cell.agent.log().count('"event": "agent_failed"') == 1
    (cell.home / "agent.log").write_text("")  # its traceback was wanted


def test_a_main_task_that_just_ends_or_is_cancelled_by_nobody_is_a_bug() -> None:
    async def returns() -> None:
        return

    async def gives_up() -> None:
        raise asyncio.CancelledError

    async def asked_to() -> None:
        asked = asyncio.Event()
        asked.set()
        await until_asked(asyncio.sleep(60), asked)

    for body in (returns, gives_up):
        with pytest.raises(Bug, match="nobody asked"):
            asyncio.run(_never_asked(body))
    asyncio.run(asked_to())


async def _never_asked(body: Callable[[], Any]) -> None:
    await until_asked(body(), asyncio.Event())
