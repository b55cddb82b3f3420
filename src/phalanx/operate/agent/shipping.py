"""Sends what ranks wrote, as byte ranges of their append-only files, and knows when the other side has all of it.

Holds no bytes: the files are the spool, so a control plane that is away costs nothing but disk. At most WINDOW chunks of a stream
are unanswered at a time, and the connection puts every other message before a chunk.
"""

import base64
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from phalanx.core.ids import AttemptId
from phalanx.core.messages import CHUNK_BYTES_MAX, Chunk, ChunkAck, Stream
from phalanx.operate.agent.attempts import AttemptFolder

WINDOW: Final = 4
CHUNK_BYTES: Final = min(CHUNK_BYTES_MAX, 128 * 1024)
"""Small enough that a command's answer behind one chunk waits a few milliseconds."""

_Key = tuple[AttemptId, int, Stream]


@dataclass(slots=True)
class _Source:
    """One file on its way. `ends` are those of the chunks sent and not answered, oldest first."""

    path: Path
    sent: int = 0
    acked: int = 0
    ends: deque[int] = field(default_factory=deque)
    rewind: bool = False
    due: bool = True

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

    def read(self) -> bytes:
        if not self.due or self.rewind or len(self.ends) >= WINDOW:
            return b""
        data = _read(self.path, self.sent)
        self.due = len(data) == CHUNK_BYTES  # a short read met the end: look again when woken
        return data

    def drained(self) -> bool:
        return self.acked >= (self.path.stat().st_size if self.path.exists() else 0)


class Shipping:
    """All streams of all held attempts, keyed by attempt and rank. Not thread-safe: belongs to the agent's loop."""

    def __init__(self) -> None:
        self._sources: dict[_Key, _Source] = {}
        self._turn: deque[_Key] = deque()

    def add(self, folder: AttemptFolder) -> None:
        for rank in folder.ranks:
            for stream in get_args(Stream):
                key = (folder.attempt, rank, stream)
                self._sources[key] = _Source(folder.stream(stream, rank))
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

    def due(self, stream: Stream | None = None, rank: int | None = None) -> None:
        """Looks at the files again: those of `stream` and `rank`, or all."""
        for key, source in self._sources.items():
            if stream in (None, key[2]) and rank in (None, key[1]):
                source.due = True

    def next_chunk(self) -> Chunk | None:
        """The next range to send, streams taking turns and records before logs; None when there is nothing to send now."""
        for wanted in ("records", "log"):
            for key in self._round(wanted):
                source = self._sources[key]
                data = source.read()
                if data:
                    self._turn.remove(key)
                    self._turn.append(key)
                    return _sent(key, source, data)
        return None

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


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return b""
