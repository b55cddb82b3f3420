"""A rank's record file, and the bell that tells the agent of it. The file is the truth; a lost ring costs only time.

Nothing here waits: not for the agent, not for the network, not for the platter. A disk that is full costs measurements, which are
counted, and never the training step. Facts (core.records.RankFact) are kept and written before whatever comes next.
"""

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from phalanx.core import wire
from phalanx.core.records import Metric, RankFact, RankRecord, Ring, StepRecord

REDIAL_S: Final = 0.5
Record = StepRecord | Metric | RankFact


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
    """Appends records. A file that cannot be opened is tried again at the next record."""

    def __init__(self, path: Path, bell: Bell) -> None:
        self._path = path
        self._file: int | None = None
        self._torn = False
        with contextlib.suppress(OSError):
            self._open()
        self._bell = bell
        self._owed: deque[RankFact] = deque()
        self._dropped = 0

    @property
    def lost(self) -> int:
        """Records that the disk has not taken: measurements for ever, facts until now."""
        return self._dropped + len(self._owed)

    def write(self, record: Record) -> bool:
        """Whether the record and every fact before it are in the file, each as one whole line. Rings then."""
        if isinstance(record, StepRecord | Metric):
            written = self.write_owed() and self._append(record)
            self._dropped += not written
        else:
            self._owed.append(record)
            written = self.write_owed()
        return written

    def write_owed(self) -> bool:
        """Whether every fact so far is in the file, after another try."""
        while self._owed:
            if not self._append(self._owed[0]):
                return False
            self._owed.popleft()
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._bell.close()

    def _append(self, record: Record) -> bool:
        line = wire.dumps(RankRecord, record).encode() + b"\n"
        if self._torn:
            line = b"\n" + line  # ends the half line that a full disk left, which readers drop
        try:
            file = self._open()
            written = os.write(file, line)
        except OSError:
            return False
        self._torn = written < len(line)
        if not self._torn:
            self._bell.ring(os.fstat(file).st_size)
        return not self._torn

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._torn = self._torn or _ends_torn(self._file)
        return self._file


def _ends_torn(file: int) -> bool:
    """Whether the process that wrote here before was killed in the middle of a line."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
