"""What agents ship, made durable: bytes into the journal; of record files, measurements into the series, facts to the controller.

The order is what makes a crash harmless: journal, then series, then facts with their offset, then the acknowledgement. Each is
idempotent, so whatever was cut off is done again, at the latest by `catch_up` when the server starts.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Collection
from typing import Final
from weakref import WeakValueDictionary

import structlog

from phalanx.core.ids import AttemptId, NodeId, split_attempt
from phalanx.core.messages import CHUNK_BYTES_MAX, Chunk, ChunkAck
from phalanx.operate.control.bells import LogBells
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.stragglers import Watch
from phalanx.operate.control.world import World
from phalanx.record.telemetry.journal import RANK_MAX, Journal
from phalanx.record.telemetry.records import Decoded, decode
from phalanx.record.telemetry.series import SeriesStore

READ_BYTES: Final = 1024 * 1024
log = structlog.get_logger(__name__)


class Ingest:
    """Takes chunks of all nodes. Those of one rank are read one after another, also while a node's older connection still ends."""

    def __init__(self, control: ControlThread, journal: Journal, series: SeriesStore) -> None:
        self._control = control
        self._journal = journal
        self._series = series
        self.bad_lines = 0
        self.grown = LogBells()
        """Rings for each log that has grown, or whose job is another than before."""
        control.watch(lambda world: self.grown.look(world.jobs))
        self._watch = Watch()
        self._turns: WeakValueDictionary[tuple[AttemptId, int], asyncio.Lock] = WeakValueDictionary()

    async def take(self, node: NodeId, chunk: Chunk) -> ChunkAck:
        """The acknowledgement of `chunk`, once everything before it is durable.

        Raises ValueError when the chunk is malformed, StoreUnavailable when it must come again.
        """
        data = _checked(chunk)
        if node_of(self._control.world, chunk.attempt, chunk.rank) != node:
            # Not its to tell; and without an acknowledgement the agent could never report the attempt's end.
            return ChunkAck(chunk.stream, chunk.attempt, chunk.rank, chunk.offset + len(data))
        end = await asyncio.to_thread(self._journal.write, chunk.stream, chunk.attempt, chunk.rank, chunk.offset, data)
        if chunk.stream == "log":
            self.grown.ring(split_attempt(chunk.attempt)[0], chunk.rank)
        if chunk.stream == "records":
            await self.read_records(node, chunk.attempt, chunk.rank)
        return ChunkAck(chunk.stream, chunk.attempt, chunk.rank, end)

    async def catch_up(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Reads what a killed server had written to the journal and not yet taken in. Before the first connection.

        `on_progress` is called now and then while it reads.

        An attempt that has ended had everything acknowledged, and so taken in, before it could say so.
        """
        going = [attempt.id for attempt in self._control.world.attempts.values() if attempt.ended_ms is None]
        await self.acknowledged(going, on_progress)

    async def acknowledged(self, attempts: Collection[AttemptId], on_progress: Callable[[], None] = lambda: None) -> dict[str, int]:
        """'stream/attempt/rank' -> bytes that are durable, once all of them are taken in too: what a refused commit left in the
        journal will not be sent again after this answer. Raises StoreUnavailable."""
        ends = await asyncio.to_thread(self._journal.ends, attempts)
        for name in ends:
            stream, attempt, rank = name.split("/")
            node = node_of(self._control.world, AttemptId(attempt), int(rank))
            if stream == "records" and node is not None:
                await self.read_records(node, AttemptId(attempt), int(rank), on_progress)
        return ends

    async def read_records(
        self, node: NodeId, attempt: AttemptId, rank: int, on_progress: Callable[[], None] = lambda: None
    ) -> None:
        """Takes in the complete lines of one record file beyond those already taken."""
        async with self._turns.setdefault((attempt, rank), asyncio.Lock()):
            offset = await self._control.call(lambda controller: controller.records_offset(attempt, rank))
            while True:
                decoded = await asyncio.to_thread(self._measure, attempt, rank, offset)
                if decoded.consumed == 0:
                    return
                on_progress()
                offset += decoded.consumed
                await self._tell(node, attempt, rank, offset, decoded)

    def _measure(self, attempt: AttemptId, rank: int, offset: int) -> Decoded:
        decoded = decode(self._journal.read("records", attempt, rank, offset, READ_BYTES), rank)
        if decoded.measurements:
            self._series.append(attempt, decoded.measurements)
        return decoded

    async def _tell(self, node: NodeId, attempt: AttemptId, rank: int, offset: int, decoded: Decoded) -> None:
        if decoded.num_bad:
            self.bad_lines += decoded.num_bad
            log.warning("bad_records", node=node, attempt=attempt, rank=rank, count=decoded.num_bad, problems=decoded.problems)
        await self._control.call(lambda controller: controller.facts(node, attempt, rank, offset, decoded.facts))
        outliers = self._watch.take(self._control.world, attempt, decoded.measurements)
        if outliers:
            await self._control.call(lambda controller: controller.outliers(attempt, outliers))
        if decoded.facts or outliers:
            self._control.wake()


def node_of(world: World, attempt: AttemptId, rank: int) -> NodeId | None:
    """The node that `rank` of `attempt` was placed on."""
    record = world.attempts.get(attempt)
    nodes = [part.node for part in record.placement.slices for _ in part.devices] if record else []
    return nodes[rank] if 0 <= rank < len(nodes) else None


def _checked(chunk: Chunk) -> bytes:
    """The bytes of `chunk`. Raises ValueError: what an agent sends becomes file names and offsets here."""
    split_attempt(chunk.attempt)
    if not 0 <= chunk.rank < RANK_MAX or not 0 <= chunk.offset < 2**60:
        raise ValueError(f"chunk: rank {chunk.rank} at {chunk.offset} cannot be")
    try:
        data = base64.b64decode(chunk.data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"chunk: data is not base64 ({error})") from error
    if len(data) > CHUNK_BYTES_MAX:
        raise ValueError(f"chunk: {len(data)} bytes, over {CHUNK_BYTES_MAX}")
    return data
