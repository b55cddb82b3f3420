"""The outbox while nothing happens: the database is left alone, and a tracker without work is ended until there is some. And a
tracker that dies of a row: that row is given up, and no row for a tracker that is not there."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from phalanx.core import wire
from phalanx.core.ids import JobId
from phalanx.core.spec import JobSpec
from phalanx.operate.control import outbox_pump
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.line_process import LineProcess
from phalanx.operate.control.outbox_pump import OutboxPump
from phalanx.operate.control.server import MachineClock
from phalanx.operate.control.store import OutboxRow, Store
from phalanx.operate.control.tracked import lineage_of
from phalanx.record.tracking.entries import Entry, RunFinished

TRACKER = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"done": json.loads(line)["seq"]}), flush=True)
"""


@dataclass(frozen=True)
class Pumping:
    """A pump at work over a real store. `looks`: a growing list, one entry for each time that the database was asked for rows."""

    control: ControlThread
    store: Store
    tracker: LineProcess
    looks: list[int]

    async def submit(self) -> None:
        await self.control.change(lambda controller: controller.submit(JobSpec(name="job", entrypoint="true"), "", "", "me"))

    async def until(self, probe: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not probe():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def pumping(
    home: Path, monkeypatch: pytest.MonkeyPatch, rest_s: float = 60, program: str = TRACKER
) -> AsyncIterator[Pumping]:
    monkeypatch.setattr(outbox_pump, "POLL_S", 0.005)
    row = wire.plain(Entry, RunFinished(JobId("job-1"), "FINISHED", (), "", 1))
    store, looks = Store(home / "phalanx.db"), list[int]()
    asked = store.pending_outbox

    def counted(limit: int) -> list[OutboxRow]:
        looks.append(limit)
        return asked(limit)

    monkeypatch.setattr(store, "pending_outbox", counted)
    settings = Settings(home=home, lineage=lineage_of, outbox_for=lambda event, world: [row])
    control = ControlThread(Controller(store, MachineClock(), {}, settings), lambda error: pytest.fail(str(error)))
    tracker = LineProcess("tracking", [sys.executable, "-S", "-c", program, str(home)], 20)
    running = asyncio.create_task(OutboxPump(control, tracker, lambda _: ([], []), rest_s).run())
    try:
        yield Pumping(control, store, tracker, looks)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await tracker.close()
        control.close()
        store.close()


def test_a_tracker_without_work_is_ended_and_the_next_row_starts_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with pumping(tmp_path, monkeypatch, rest_s=0.05) as at:
            for _ in range(2):
                await at.submit()
                await at.until(lambda: not at.store.outbox_size())
                await at.until(lambda: at.tracker.pid is None)

    asyncio.run(scenario())


def test_a_tracker_is_kept_for_a_while_and_an_empty_outbox_is_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with pumping(tmp_path, monkeypatch, rest_s=60) as at:
            await at.submit()
            await at.until(lambda: not at.store.outbox_size() and len(at.looks) >= 2)
            await asyncio.sleep(0.1)  # 20 rounds of the pump
            looks, pid = len(at.looks), at.tracker.pid
            await asyncio.sleep(0.1)
            assert len(at.looks) == looks
            assert pid is not None
            await at.submit()  # of which the pump hears by the number of the newest event
            await at.until(lambda: not at.store.outbox_size())
            assert at.tracker.pid == pid

    asyncio.run(scenario())


DIES = """
import json, os, pathlib, sys
home = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    with open(home / "asked", "a") as asked:
        asked.write(f"{request['seq']} ")
    if request["entry"] is None and (home / "broken").exists() or request["seq"] == 1:
        os._exit(9)
    print(json.dumps({"done": request["seq"]}), flush=True)
"""


def test_a_row_that_every_tracker_dies_of_is_given_up_with_one_line_and_the_next_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_pump, "BACKOFF_S", (0.005,))

    async def scenario() -> None:
        async with pumping(tmp_path, monkeypatch, program=DIES) as at:
            await at.submit()
            await at.submit()
            await at.until(lambda: not at.store.outbox_size())

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())
    assert [line["seq"] for line in lines if line["event"] == "tracking_gave_up"] == [1]
    assert (tmp_path / "asked").read_text().split() == ["0", "1"] * outbox_pump.DEATHS_MAX + ["0", "2"]


def test_no_row_is_given_up_for_a_tracker_that_dies_before_it_is_asked_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_pump, "BACKOFF_S", (0.005,))
    asked, broken = tmp_path / "asked", tmp_path / "broken"
    broken.touch()

    async def scenario() -> None:
        async with pumping(tmp_path, monkeypatch, program=DIES.replace("== 1", "== 99")) as at:
            await at.submit()
            await at.until(lambda: asked.exists() and len(asked.read_text().split()) > 2 * outbox_pump.DEATHS_MAX)
            assert at.store.outbox_size() == 1
            broken.unlink()
            await at.until(lambda: not at.store.outbox_size())

    asyncio.run(scenario())
    assert asked.read_text().split()[-2:] == ["0", "1"]


@pytest.mark.parametrize("lag_s_max", [60.0, 0.0])
def test_rows_wait_while_attempts_are_started_one_after_another_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag_s_max: float
) -> None:
    """Rows of jobs that are over in milliseconds would take the processor from those that start."""
    monkeypatch.setattr(outbox_pump, "LAG_S_MAX", lag_s_max)
    looks = 0

    def world(_: ControlThread) -> SimpleNamespace:
        """As if attempts were made for a hundred looks."""
        nonlocal looks
        looks += 1
        return SimpleNamespace(seq=looks, attempts=range(min(looks, 100)))

    async def scenario() -> int:
        async with pumping(tmp_path, monkeypatch) as at:
            await at.submit()
            await at.until(lambda: not at.store.outbox_size())
            monkeypatch.setattr(ControlThread, "world", property(world))
            await at.control.call(lambda controller: controller.submit(JobSpec(name="job", entrypoint="true"), "", "", "me"))
            await at.until(lambda: not at.store.outbox_size())
            return looks

    assert (asyncio.run(scenario()) >= 100) is (lag_s_max > 0)
