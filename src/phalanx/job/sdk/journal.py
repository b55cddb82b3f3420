"""A rank's record file, and the bell that tells the agent of it. The file is the truth; a lost ring costs only time.

Nothing here waits: not for the agent, not for the network, not for the platter. A disk that is full costs records, which are
counted, and never the training step.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from phalanx.core import wire
from phalanx.core.records import CheckpointCommitted, Metric, ModelSaved, RankRecord, Resumed, Ring, StepRecord

REDIAL_S: Final = 0.5
Record = StepRecord | Metric | Resumed | CheckpointCommitted | ModelSaved


class Bell:
    """The agent's unix socket, as a rank uses it: best effort, never blocking. `clock_s` is monotonic."""

    def __init__(self, path: str, rank: int, clock_s: Callable[[], float]) -> None:
        self._path = path
        self._rank = rank
        self._clock_s = clock_s
        self._socket: socket.socket | None = None
        self._dial_after_s: float | None = None

    def ring(self, offset: int) -> bool:
        """Whether the agent was told that the record file now ends at `offset`."""
        bell = self._socket or self._dial()
        if bell is None:
            return False
        line = wire.dumps(Ring, Ring(rank=self._rank, pid=os.getpid(), offset=offset)).encode() + b"\n"
        try:
            whole = bell.send(line) == len(line)
        except BlockingIOError:
            return False  # the agent is slow and has rings enough to know
        except OSError:
            whole = False
        if not whole:
            self.close()
        return whole

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _dial(self) -> socket.socket | None:
        now_s = self._clock_s()
        if not self._path or (self._dial_after_s is not None and now_s < self._dial_after_s):
            return None
        self._dial_after_s = now_s + REDIAL_S
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bell.setblocking(False)
        try:
            bell.connect(self._path)  # a unix socket connects at once or not at all
        except OSError:
            bell.close()
            return None
        self._socket = bell
        return bell


class Journal:
    """Appends records. `lost` counts those that the disk did not take. Raises OSError when the file cannot be opened at all."""

    def __init__(self, path: Path, bell: Bell) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._bell = bell
        self._torn = False
        self.lost = 0

    def write(self, record: Record) -> None:
        """One write for the line, whole or counted as lost; then the ring."""
        line = wire.dumps(RankRecord, record).encode() + b"\n"
        if self._torn:
            line = b"\n" + line  # ends the half line that a full disk left, which readers drop
        try:
            written = os.write(self._file, line)
        except OSError:
            self.lost += 1
            return
        if written < len(line):
            self._torn = True
            self.lost += 1
            return
        self._torn = False
        self._bell.ring(os.fstat(self._file).st_size)

    def close(self) -> None:
        os.close(self._file)
        self._bell.close()
