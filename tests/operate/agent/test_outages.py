"""The control plane is away for minutes, or away and back and away: ranks go on, and then nothing is missing or there twice."""

import asyncio
import base64
import itertools
import selectors
import signal
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from phalanx.core.ids import AttemptId
from phalanx.core.messages import AttemptReport, ChunkAck, Report
from phalanx.operate.agent.attempts import accept
from phalanx.operate.agent.connection import BACKOFF_S, Connection
from phalanx.operate.agent.shipping import Shipping
from phalanx.operate.agent.together import cancelled
from tests.operate.agent.agent_cell import TOKEN, Cell, alive, until

T = TypeVar("T")
TEN_MINUTES_S = 600.0
LINES = """
import os, time
number = 0
while not os.path.exists(os.environ["DONE"]):
    number += 1
    print(os.environ["RANK"], number, flush=True)
    with open(os.environ["PHALANX_RECORDS"], "a") as out:
        out.write(f"{number}\\n")
    time.sleep(0.01)
"""


class Leaping(selectors.DefaultSelector):
    """Where nothing happens, time leaps to the next thing that was to happen."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            return super().select(None)
        if not ready and timeout is not None:
            self.now_s += max(timeout, 1e-6)
        return ready


def in_leaping_time(body: Coroutine[Any, Any, T]) -> T:
    selector = Leaping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(body)
    finally:
        loop.close()


def test_a_control_plane_that_is_away_for_ten_minutes_is_dialled_at_its_pace_and_costs_no_memory() -> None:
    dials: list[float] = []

    def url() -> str | None:
        dials.append(asyncio.get_running_loop().time())
        return None  # no home says where it is

    async def unused(*_: object) -> Any:
        raise AssertionError("nobody is there")

    async def scenario() -> int:
        connection = Connection(url, TOKEN, unused, unused, unused, Random(1))
        running = asyncio.create_task(connection.run())
        until_s = asyncio.get_running_loop().time() + TEN_MINUTES_S
        while asyncio.get_running_loop().time() < until_s:
            connection.send(Report(AttemptReport(AttemptId("demo-1.1"), 1, "running", (), (), 0)))
            connection.wake()
            await asyncio.sleep(1)
        kept = len(connection._waiting)
        await cancelled([running])
        return kept

    assert in_leaping_time(scenario()) == 0
    pauses = [later - earlier for earlier, later in itertools.pairwise(dials)]
    assert TEN_MINUTES_S / BACKOFF_S[1] <= len(dials) <= 2 * TEN_MINUTES_S / BACKOFF_S[1] + 20
    assert max(pauses) <= BACKOFF_S[1] + 0.01
    assert min(pauses[10:]) >= BACKOFF_S[1] / 2 - 0.01


def test_ten_minutes_of_records_wait_in_their_file_and_go_out_once_each(tmp_path: Path, cell: Cell) -> None:
    """3,000 steps a minute, of 300 bytes."""
    folder = accept(tmp_path / "attempts", cell.launch("", ranks=1), 1)
    text = b"".join(b"%d %s\n" % (step, b"x" * 290) for step in range(30_000))
    folder.stream("records", 0).write_bytes(text)
    shipping = Shipping()
    shipping.add(folder)
    half = len(text) // 2
    shipping.welcome({"records/demo-1.1/0": half})  # it had come this far when it went away

    async def shipped() -> bytearray:
        got = bytearray(text[:half])
        while (chunk := await shipping.next_chunk()) is not None:
            assert chunk.offset == len(got), "in order, and each byte once"
            got += base64.b64decode(chunk.data)
            shipping.answered(ChunkAck(chunk.stream, chunk.attempt, chunk.rank, len(got)))
        return got

    assert asyncio.run(shipped()) == text
    assert shipping.drained(folder.attempt)
    shipping.close()


def test_outages_of_control_plane_and_agent_in_turn_lose_nothing_and_double_nothing(cell: Cell) -> None:
    done = cell.home / "done"
    cell.far.start(cell.launch(LINES, env={"DONE": str(done)}))
    pids = [process.pid for process in cell.far.phase("demo-1.1", "running").ranks]
    records = cell.folder() / "rank-0.records"
    for outage in range(4):
        until(lambda: cell.far.text("records", "demo-1.1", 0))
        cell.far.down()
        size = records.stat().st_size
        until(lambda size=size: records.stat().st_size > size + 100)  # type: ignore[misc]
        if outage % 2:
            cell.agent.end(signal.SIGKILL)
            cell.agent.start()
        before = len(cell.far.hellos())
        cell.far.up()  # on another port
        until(lambda before=before: len(cell.far.hellos()) > before)  # type: ignore[misc]
        assert all(alive(pid) for pid in pids)
    done.touch()
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [0, 0]
    for rank in range(2):
        steps = cell.far.text("records", "demo-1.1", rank).split()
        assert steps == [str(number + 1) for number in range(len(steps))]
        assert cell.far.text("log", "demo-1.1", rank) == "".join(f"{rank} {step}\n" for step in steps)
