"""The server as a process: one a home, clean ends, unclean ends, its children and its tracker."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import psutil
import pytest

from phalanx.core import wire
from phalanx.core.errors import Exit, SetupError, StoreUnavailable
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.records import Metric
from phalanx.core.spec import JobSpec
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.line_process import LineProcess
from phalanx.operate.control.outbox_pump import OutboxPump
from phalanx.operate.control.sealing import Sealing
from phalanx.operate.control.server import MachineClock, _kept, _Life, run_server
from phalanx.operate.control.store import Store
from phalanx.operate.control.tracked import lineage_of
from phalanx.record.telemetry.series import SeriesStore
from phalanx.record.tracking.entries import Entry, Measured, RunFinished
from tests.operate.control.live_server import LiveServer, PlayedAgent, until

REFUSED = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path / "home")
    yield live
    if live.process is not None:
        live.end()
        assert "Traceback" not in live.words(), live.words()


def refused(home: Path, *options: str, **environ: str) -> str:
    """What a server says that must not start."""
    argv = [sys.executable, "-m", "phalanx.app", "server", "--home", str(home), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, **environ})
    assert done.returncode == REFUSED, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_it_says_where_it_is_and_ends_cleanly(server: LiveServer) -> None:
    server.start()
    record = json.loads((server.home / "run" / "server.json").read_bytes())
    assert record["url"].startswith("http://127.0.0.1:")
    assert server.process is not None and record["pid"] == server.process.pid
    children = psutil.Process(record["pid"]).children()
    with PlayedAgent(server) as agent:
        agent.hello()
        assert server.end() == 0
    assert not (server.home / "run" / "server.json").exists()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert all(json.loads(line)["event"] for line in (server.home / "run" / "server.log").read_text().splitlines())


def test_a_second_server_on_one_home_and_one_on_a_taken_port_are_refused(server: LiveServer, tmp_path: Path) -> None:
    server.start()
    assert "phalanx down" in refused(server.home, "--port", "0")
    port = str(httpx.URL(server.url).port)
    words = refused(tmp_path / "other", PHALANX_PORT=port)
    assert port in words
    assert "--port" in words
    assert server.get("/status")["home"] == str(server.home)


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"127\.0\.0\.1"):
        run_server(tmp_path / "home", lambda _: (), "0.0.0.0", 0)
    assert not (tmp_path / "home").exists()


def test_a_port_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--port"):
        run_server(tmp_path / "home", lambda _: (), port=70_000)


@pytest.mark.parametrize(("text", "fix"), [('{"format": 2}', "upgrade"), ("junk", "home.json"), ('{"format": "1"}', "upgrade")])
def test_a_home_of_another_phalanx_is_refused(tmp_path: Path, text: str, fix: str) -> None:
    (tmp_path / "home.json").write_text(text)
    with pytest.raises(SetupError, match=fix):
        run_server(tmp_path, lambda _: (), port=0)


def test_a_kill_at_any_moment_loses_nothing_that_was_answered(server: LiveServer) -> None:
    server.start()
    port = int(httpx.URL(server.url).port or 0)
    jobs = [server.submit(name="kept", priority=number) for number in range(3)]
    server.end(signal.SIGKILL)
    server.start(port)
    assert [job["id"] for job in server.get("/jobs")] == jobs[::-1]
    assert server.get("/status")["epoch"] == 2
    assert server.submit(name="kept") == "kept-4"


def test_the_scheduler_dies_and_the_platform_goes_on(server: LiveServer) -> None:
    server.start()
    with PlayedAgent(server) as agent:
        agent.hello()
        scheduler = until(lambda: server.get("/status")["processes"].get("scheduler"))
        os.kill(scheduler, signal.SIGKILL)
        server.submit(name="after")
        agent.started()
    assert server.get("/status")["processes"]["scheduler"] != scheduler


def test_a_killed_servers_children_end_by_themselves(server: LiveServer) -> None:
    server.start()
    until(lambda: server.get("/status")["processes"].get("scheduler"))
    assert server.process is not None
    children = psutil.Process(server.process.pid).children()
    assert children
    server.end(signal.SIGKILL)
    assert psutil.wait_procs(children, timeout=60)[1] == []


def test_a_database_that_is_locked_for_a_while_is_waited_for(server: LiveServer) -> None:
    server.start()
    holder = sqlite3.connect(server.home / "phalanx.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with server.http() as http:
        answer = http.post("/jobs", json={"spec": {"name": "late", "entrypoint": "true"}}, timeout=60)
        assert (answer.status_code, answer.json()["title"]) == (503, "StoreUnavailable")
        assert answer.headers["retry-after"] == "1"
    holder.execute("ROLLBACK")
    holder.close()
    assert server.submit(name="late") == "late-1"


def test_a_superseded_leader_crashes_loudly_and_changes_nothing(tmp_path: Path) -> None:
    server = LiveServer(tmp_path / "home")
    server.start()
    store = Store(server.home / "phalanx.db")
    store.take_lead()
    with server.http() as http:
        answer = http.post("/jobs", json={"spec": {"name": "never", "entrypoint": "true"}})
        assert (answer.status_code, answer.json()["title"]) == (500, "Bug")
        assert "superseded" not in answer.text
    assert server.process is not None
    assert server.process.wait(60) == Exit.BUG
    assert "superseded" in server.words()
    assert store.load().jobs == {}
    store.close()


@pytest.mark.parametrize("end", ["returns", "is cancelled", "raises"])
def test_a_part_that_ends_before_its_time_ends_the_server(end: str) -> None:
    async def part() -> None:
        if end == "is cancelled":
            raise asyncio.CancelledError
        if end == "raises":
            raise KeyError("oops")

    async def scenario() -> _Life:
        life = _Life()
        await asyncio.gather(asyncio.create_task(_kept(part(), life)), return_exceptions=True)
        return life

    life = asyncio.run(scenario())
    assert life.over
    assert life.bug is not None


def test_a_part_that_is_cancelled_at_the_end_is_no_bug() -> None:
    async def scenario() -> _Life:
        life = _Life()
        working = asyncio.create_task(_kept(asyncio.Event().wait(), life))  # type: ignore[arg-type] # a part is anything that goes on
        await asyncio.sleep(0)
        life.end()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return life

    assert asyncio.run(scenario()).bug is None


def test_sealing_goes_on_past_an_attempt_that_cannot_be_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.operate.control.sealing.POLL_S", 0.0)
    monkeypatch.setattr("phalanx.operate.control.sealing.AGAIN_S", 0.0)
    names = [AttemptId(f"job-{number}.1") for number in (1, 2, 3)]
    over = {name: SimpleNamespace(id=name, ended_ms=1) for name in names}
    control = SimpleNamespace(world=SimpleNamespace(seq=1, attempts=over))
    series = SeriesStore(tmp_path)
    for name in names:
        series.append(name, [Metric(rank=0, step=1, name="a", value=1.0, at_ms=1)])
    refusals = iter([StoreUnavailable("the disk is full"), SetupError("path", "x", "is not writable")])
    real = series.seal

    def seal(attempt: AttemptId) -> None:
        error = next(refusals, None) if attempt == names[0] else None
        if error is not None:
            raise error
        real(attempt)

    monkeypatch.setattr(series, "seal", seal)

    async def scenario() -> None:
        sealing = asyncio.create_task(Sealing(cast(ControlThread, control), series).run())
        async with asyncio.timeout(60):
            while not series.is_sealed(names[0]):
                await asyncio.sleep(0.01)
        assert not sealing.done()
        sealing.cancel()

    asyncio.run(scenario())
    assert all(series.is_sealed(name) for name in names)


TRACKER = """
import json, sys
from pathlib import Path
tries = Path(sys.argv[1])
for line in sys.stdin:
    seq = json.loads(line)["seq"]
    if json.loads(line)["entry"] is None:
        print(json.dumps({"done": seq}), flush=True)
        continue
    with tries.open("a") as file:
        file.write(line)
    number = len(tries.read_text().splitlines())
    if number == 1:
        sys.exit(1)
    print(json.dumps({"retry": seq, "error": "busy"} if number == 2 else {"done": seq}), flush=True)
"""


def test_the_outbox_is_delivered_in_order_past_a_tracker_that_dies_and_one_that_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.operate.control.outbox_pump.BACKOFF_S", (0.01,))
    entries = [RunFinished(JobId(f"job-{number}"), "FINISHED", (), "", number) for number in range(3)]
    store = Store(tmp_path / "phalanx.db")
    rows = [wire.plain(Entry, entry) for entry in entries]
    settings = Settings(home=tmp_path, lineage=lineage_of, outbox_for=lambda event, world: rows)
    controller = Controller(store, MachineClock(), {}, settings)
    controller.submit(JobSpec(name="job", entrypoint="true"), "", "", "me")
    tries = tmp_path / "tries"

    async def scenario() -> None:
        control = ControlThread(controller, lambda error: pytest.fail(str(error)))
        tracker = LineProcess("tracking", [sys.executable, "-c", TRACKER, str(tries)], 20)
        pumping = asyncio.create_task(OutboxPump(control, tracker, lambda _: ([], [])).run())
        async with asyncio.timeout(60):
            while store.outbox_size():
                await asyncio.sleep(0.01)
        pumping.cancel()
        await tracker.close()
        control.close()

    asyncio.run(scenario())
    told = [json.loads(line)["entry"]["job"] for line in tries.read_text().splitlines()]
    assert told == ["job-0", "job-0", "job-0", "job-1", "job-2"]
    store.close()


REFUSER = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"done": json.loads(line)["seq"], "refused": "never"}), flush=True)
"""


def test_rows_that_fail_for_ever_hold_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.operate.control.outbox_pump.BACKOFF_S", (0.01,))
    store = Store(tmp_path / "phalanx.db")
    rows = [
        {"kind": "what"},
        wire.plain(Entry, RunFinished(JobId("job-1"), "FINISHED", (AttemptId("job-1.1"),), "", 1)),
        wire.plain(Entry, RunFinished(JobId("job-2"), "FINISHED", (), "", 1)),
    ]
    controller = Controller(
        store, MachineClock(), {}, Settings(home=tmp_path, lineage=lineage_of, outbox_for=lambda event, world: rows)
    )
    controller.submit(JobSpec(name="job", entrypoint="true"), "", "", "me")

    def measured(_: AttemptId) -> Measured:
        raise KeyError("a bug of ours")

    async def scenario() -> None:
        control = ControlThread(controller, lambda error: pytest.fail(str(error)))
        tracker = LineProcess("tracking", [sys.executable, "-c", REFUSER], 20)
        pumping = asyncio.create_task(OutboxPump(control, tracker, measured).run())
        async with asyncio.timeout(60):
            while store.outbox_size():
                await asyncio.sleep(0.01)
        pumping.cancel()
        await tracker.close()
        control.close()

    asyncio.run(scenario())
    store.close()
