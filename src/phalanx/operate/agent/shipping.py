"""Sends what ranks wrote, as byte ranges of their append-only files, and knows when the other side has all of it.

Holds no bytes: the files are the spool, so a control plane that is away costs nothing but disk. At most WINDOW chunks of a stream
are unanswered at a time, and the connection puts every other message before a chunk.
"""

import asyncio
import base64
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, get_args

import structlog

from phalanx.core.ids import AttemptId
from phalanx.core.messages import CHUNK_BYTES_MAX, Chunk, ChunkAck, Stream
from phalanx.operate.agent.attempts import AttemptFolder
from phalanx.operate.agent.rank_file import LOG_BYTES_MAX, RECORDS_BYTES_MAX, NotAFile, RankFile

WINDOW: Final = 4
CHUNK_BYTES: Final = min(CHUNK_BYTES_MAX, 128 * 1024)
"""Small enough that a command's answer behind one chunk waits a few milliseconds."""

_log = structlog.get_logger()
_Key = tuple[AttemptId, int, Stream]


@dataclass(slots=True)
class _Source:
    """One file on its way. `ends` are those of the chunks sent and not answered, oldest first."""

    file: RankFile
    sent: int = 0
    acked: int = 0
    ends: deque[int] = field(default_factory=deque)
    rewind: bool = False
    due: bool = True
    bad: bool = False  # said so already

    def restart(self, acked: int) -> None:
        self.sent = self.acked = acked
        self.ends.clear()
        self.rewind = False
        self.due = True

    def answered(self, offset: int) -> None:
        """The other side has everything before `offset`. Less than the oldest chunk's end means that it refused the chunk."""
        if self.ends and offset < self.ends.popleft():
            self.rewind = True
        self.acked = offset
        self.sent = max(self.sent, offset)
        if self.rewind and not self.ends:
            self.restart(offset)
        self.due = True

    def ready(self) -> bool:
        return self.due and not self.rewind and len(self.ends) < WINDOW

    def grew(self) -> bool:
        """Whether there may be more than was sent. Asks for its size alone."""
        try:
            return self.file.size() > self.sent
        except NotAFile as error:
            self.refused(error)
            return False

    def drained(self) -> bool:
        """Whether the other side has all of it. What could not be read when last looked at must not hold up its attempt's end."""
        try:
            return (self.bad and not self.due) or self.acked >= self.file.size()
        except NotAFile as error:
            self.refused(error)
            return True

    def refused(self, why: Exception) -> None:
        if not self.bad:
            _log.warning("not_shipped", why=str(why))
        self.bad = True


class Shipping:
    """All streams of all held attempts, keyed by attempt and rank. Not thread-safe: belongs to the agent's loop, and reads files in
    a thread of its own. `log_bytes_max`, `records_bytes_max`: how much of a rank's file counts."""

    def __init__(self, log_bytes_max: int = LOG_BYTES_MAX, records_bytes_max: int = RECORDS_BYTES_MAX) -> None:
        self._caps: Mapping[Stream, tuple[int, str]] = {
            "log": (log_bytes_max, "log"),
            "records": (records_bytes_max, "record file"),
        }
        self._sources: dict[_Key, _Source] = {}
        self._turn: deque[_Key] = deque()
        self._reader = ThreadPoolExecutor(1, "shipping")

    def close(self) -> None:
        self._reader.shutdown(wait=False)

    def add(self, folder: AttemptFolder) -> None:
        for rank in folder.ranks:
            for stream in get_args(Stream):
                key = (folder.attempt, rank, stream)
                file = RankFile(folder.stream(stream, rank), *self._caps[stream])
                self._sources[key] = _Source(file)
                self._turn.append(key)

    def drop(self, attempt: AttemptId) -> None:
        for key in [key for key in self._sources if key[0] == attempt]:
            del self._sources[key]
            self._turn.remove(key)

    def welcome(self, acked: Mapping[str, int]) -> None:
        """A new connection: everything unanswered on the old one is in doubt, and the other side says what it has."""
        for (attempt, rank, stream), source in self._sources.items():
            source.restart(acked.get(f"{stream}/{attempt}/{rank}", 0))

    def answered(self, ack: ChunkAck) -> None:
        source = self._sources.get((ack.attempt, ack.rank, ack.stream))
        if source is not None:
            source.answered(ack.offset)

    def due(self, stream: Stream | None = None, rank: int | None = None, attempt: AttemptId | None = None) -> None:
        """Looks at the files again: those of that `stream`, `rank` and `attempt`, or all. Each look is a hop to the reader."""
        for key, source in self._sources.items():
            if attempt in (None, key[0]) and rank in (None, key[1]) and stream in (None, key[2]):
                source.due = True

    def look(self) -> bool:
        """For what nobody rings for: marks what grew, and whether anything did."""
        grown = [source for source in self._sources.values() if source.grew()]
        for source in grown:
            source.due = True
        return bool(grown)

    async def next_chunk(self) -> Chunk | None:
        """The next range to send, streams taking turns and records before logs; None when there is nothing to send now."""
        for wanted in ("records", "log"):
            for key in self._round(wanted):
                if data := await self._read(key):
                    self._turn.remove(key)
                    self._turn.append(key)
                    return _sent(key, self._sources[key], data)
        return None

    async def trim(self) -> None:
        """Keeps files beyond their cap from filling the disk."""
        for file in [source.file for source in self._sources.values()]:
            await asyncio.get_running_loop().run_in_executor(self._reader, file.trim)

    async def _read(self, key: _Key) -> bytes:
        """The next bytes of a stream; none when it has none, or what we know of it has changed while the disk was asked."""
        source = self._sources.get(key)
        if source is None or not source.ready():
            return b""
        offset, source.due = source.sent, False  # before the look: a ring during it counts
        try:
            data = await asyncio.get_running_loop().run_in_executor(self._reader, source.file.read, offset, CHUNK_BYTES)
        except NotAFile as error:
            source.refused(error)
            return b""
        except OSError as error:
            _log.warning("not_read_now", path=str(source.file.path), error=str(error))
            return b""
        source.bad = False
        if source.sent != offset or source.rewind or key not in self._sources:
            source.due = True
            return b""
        source.due = source.due or len(data) == CHUNK_BYTES  # a short read met the end: look again when woken
        return data

    def drained(self, attempt: AttemptId) -> bool:
        """Whether every byte of the attempt's files was acknowledged."""
        return all(source.drained() for key, source in self._sources.items() if key[0] == attempt)

    def _round(self, stream: str) -> Iterable[_Key]:
        return [key for key in self._turn if key[2] == stream and self._sources[key].due]


def _sent(key: _Key, source: _Source, data: bytes) -> Chunk:
    attempt, rank, stream = key
    chunk = Chunk(stream, attempt, rank, source.sent, base64.b64encode(data).decode())
    source.sent += len(data)
    source.ends.append(source.sent)
    return chunk
