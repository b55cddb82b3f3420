"""Chunks to journal, series and facts: once, in order, whatever is repeated, cut off or malformed."""

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phalanx.core import wire
from phalanx.core.devices import Device, NodeShape, NodeSlice, Placement
from phalanx.core.errors import StoreUnavailable
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import CHUNK_BYTES_MAX, PROTOCOL, Chunk, ChunkAck, Hello
from phalanx.core.records import CheckpointCommitted, StepRecord
from phalanx.core.spec import JobSpec
from phalanx.decide.scheduler.plan import Plan, Start
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.ingest import Ingest
from phalanx.operate.control.server import MachineClock
from phalanx.operate.control.store import Store
from phalanx.operate.control.tracked import lineage_of, outbox_entries
from phalanx.record.telemetry.journal import Journal
from phalanx.record.telemetry.series import SeriesStore

NODE = NodeId("node-a")
ATTEMPT = AttemptId("job-1.1")


@dataclass
class Desk:
    """The parts that a chunk goes through, over one home."""

    controller: Controller
    control: ControlThread
    journal: Journal
    series: SeriesStore
    ingest: Ingest

    def take(self, data: bytes, offset: int, rank: int = 0, stream: Any = "records", node: NodeId = NODE) -> ChunkAck:
        chunk = Chunk(stream, ATTEMPT, rank, offset, base64.b64encode(data).decode())
        return asyncio.run(self.ingest.take(node, chunk))

    def steps(self) -> list[int]:
        return [one.step for one in self.series.steps(ATTEMPT)]

    def checkpoints(self) -> list[int]:
        return [one.step for one in self.controller.world.attempts[ATTEMPT].checkpoints]


def desk_of(home: Path) -> Desk:
    settings = Settings(home=home, lineage=lineage_of, outbox_for=outbox_entries)
    controller = Controller(Store(home / "phalanx.db"), MachineClock(), {}, settings)
    control = ControlThread(controller, lambda error: pytest.fail(f"a bug: {error}"))
    journal, series = Journal(home / "journal"), SeriesStore(home / "series")
    return Desk(controller, control, journal, series, Ingest(control, journal, series))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """With an attempt of two ranks placed on NODE."""
    made = desk_of(tmp_path)
    shape = NodeShape(NODE, "127.0.0.1", (Device(0, "cpu", "slot"), Device(1, "cpu", "slot")), 2.0, 2**30, (30000, 30100))
    made.controller.heard(NODE, Hello(shape, "boot", PROTOCOL, "test", 0, ()))
    made.controller.observe()
    job = made.controller.submit(JobSpec(name="job", entrypoint="true"), "", "", "me")
    made.controller.carry_out(Plan((Start(job, Placement((NodeSlice(NODE, (0, 1)),))),)))
    yield made
    made.control.close()


def line(kind: type, **values: Any) -> bytes:
    return wire.dumps(kind, kind(**values)).encode() + b"\n"


def step(number: int, rank: int = 0) -> bytes:
    values: dict[str, Any] = {"rank": rank, "step": number, "total_steps": 9, "loss": 1.0, "loss_hex": "0x1p+0", "grad_norm": 1.0}
    values |= {"lr": 0.1, "tokens": 1, "tokens_per_s": 1.0, "mfu": 0.0, "started_ms": number, "ended_ms": number + 1}
    return line(StepRecord, **values)


def saved(number: int, rank: int = 0) -> bytes:
    return line(CheckpointCommitted, rank=rank, step=number, path=f"/c/{number}", digest=f"d{number}", size_bytes=1, at_ms=1)


def test_records_become_steps_and_facts(desk: Desk) -> None:
    data = step(1) + saved(1) + step(2)
    assert desk.take(data, 0) == ChunkAck("records", ATTEMPT, 0, len(data))
    assert (desk.steps(), desk.checkpoints()) == ([1, 2], [1])
    assert desk.controller.records_offset(ATTEMPT, 0) == len(data)


def test_any_cut_and_any_repeat_give_the_same(desk: Desk) -> None:
    data = step(1) + saved(1) + step(2) + saved(2) + step(3)
    for start in range(0, len(data), 97):
        piece = data[start : start + 97]
        assert desk.take(piece, start).offset == start + len(piece)
        desk.take(piece, start)
        desk.take(data[:start], 0)
    assert (desk.steps(), desk.checkpoints()) == ([1, 2, 3], [1, 2])


def test_a_chunk_beyond_the_end_is_answered_with_the_end(desk: Desk) -> None:
    desk.take(step(1), 0)
    assert desk.take(step(3), 10_000).offset == len(step(1))
    assert desk.steps() == [1]


def test_malformed_lines_are_counted_and_skipped(desk: Desk) -> None:
    bad = [b"junk\n", b'{"kind": "step"}\n', step(5, rank=1), b"\xff\xfe\n", b'{"kind": "model"}\n', b"[" * 5000 + b"\n"]
    data = step(1) + b"".join(bad) + step(2)
    desk.take(data, 0)
    assert (desk.steps(), desk.ingest.bad_lines) == ([1, 2], len(bad))


def test_an_endless_line_does_not_hold_up_what_follows(desk: Desk) -> None:
    junk, offset = b"x" * CHUNK_BYTES_MAX, 0
    for _ in range(3):
        offset = desk.take(junk, offset).offset
    desk.take(b"\n" + step(1), offset)
    assert desk.steps() == [1]


def test_another_nodes_ranks_cannot_be_written_for(desk: Desk) -> None:
    assert desk.take(step(1), 0, node=NodeId("node-b")).offset == len(step(1))
    assert desk.take(step(1, rank=7), 0, rank=7).offset == len(step(1, rank=7))
    assert desk.journal.ends([ATTEMPT]) == {}
    assert desk.steps() == []


def test_logs_are_kept_and_not_read(desk: Desk) -> None:
    assert desk.take(step(1), 0, stream="log").offset == len(step(1))
    assert desk.steps() == []


def test_too_much_at_once_is_refused(desk: Desk) -> None:
    with pytest.raises(ValueError, match="over"):
        desk.take(b"x" * (CHUNK_BYTES_MAX + 1), 0)


def test_what_a_killed_server_left_in_the_journal_is_taken_in_at_the_next_start(desk: Desk, tmp_path: Path) -> None:
    desk.take(step(1) + saved(1), 0)
    desk.journal.write("records", ATTEMPT, 0, len(step(1) + saved(1)), step(2) + saved(2))  # acknowledged by nobody yet
    again = desk_of(tmp_path)
    asyncio.run(again.ingest.catch_up())
    assert (again.steps(), again.checkpoints()) == ([1, 2], [1, 2])
    again.control.close()


def test_a_refused_commit_is_not_acknowledged_and_comes_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    data = step(1) + saved(1)

    def refuse(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(desk.controller, "facts", refuse)
        with pytest.raises(StoreUnavailable):
            desk.take(data, 0)
    assert desk.checkpoints() == []
    assert desk.take(data, 0).offset == len(data)
    assert (desk.steps(), desk.checkpoints()) == ([1], [1])


def test_what_was_journalled_and_refused_is_taken_in_before_it_is_called_acknowledged(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = step(1) + saved(1)
    real, refusals = desk.controller.facts, [StoreUnavailable("locked"), StoreUnavailable("locked")]

    def facts(*given: Any) -> None:
        if refusals:
            raise refusals.pop()
        real(*given)

    monkeypatch.setattr(desk.controller, "facts", facts)
    with pytest.raises(StoreUnavailable):
        desk.take(data, 0)
    with pytest.raises(StoreUnavailable):
        asyncio.run(desk.ingest.acknowledged([ATTEMPT]))
    assert asyncio.run(desk.ingest.acknowledged([ATTEMPT])) == {f"records/{ATTEMPT}/0": len(data)}
    assert desk.checkpoints() == [1]


def test_two_connections_of_a_node_say_nothing_twice(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = saved(1), saved(2)
    real, told = desk.ingest._tell, 0

    async def tell(*given: Any) -> None:
        nonlocal told
        told += 1
        if told == 1:
            await entered.wait()
        await real(*given)

    monkeypatch.setattr(desk.ingest, "_tell", tell)
    entered = asyncio.Event()

    async def scenario() -> None:
        older = asyncio.create_task(desk.ingest.take(NODE, chunk_of(first, 0)))
        while told == 0:
            await asyncio.sleep(0.01)
        newer = asyncio.create_task(desk.ingest.take(NODE, chunk_of(second, len(first))))
        while desk.journal.size("records", ATTEMPT, 0) < len(first + second):
            await asyncio.sleep(0.01)
        entered.set()
        await asyncio.gather(older, newer)

    asyncio.run(scenario())
    assert desk.checkpoints() == [1, 2]


def chunk_of(data: bytes, offset: int) -> Chunk:
    return Chunk("records", ATTEMPT, 0, offset, base64.b64encode(data).decode())


def test_a_lost_number_travels_as_text_both_ways(desk: Desk) -> None:
    plain = json.loads(step(1))
    desk.take(
        json.dumps({**plain, "loss": None}).encode() + b"\n" + json.dumps({**plain, "step": 2, "loss": "NaN"}).encode() + b"\n", 0
    )
    assert desk.steps() == [1, 2]
    assert all(one.loss != one.loss for one in desk.series.steps(ATTEMPT))
