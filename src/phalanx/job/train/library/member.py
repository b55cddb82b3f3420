"""A script in a gang that recovers inside (`recovery.in_gang`): its signs of life, and what it does when a generation is over.

A with-block cannot be begun again in a process, so nobody survives here: when a rank falls or hangs all end, and new processes take
all places in the next generation and go on from the last checkpoint. The attempt, its devices and its restarts stay what they were.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from phalanx.core import wire
from phalanx.core.records import RankRecord, StepRecord
from phalanx.job.sdk.gang import Gang, Place
from phalanx.job.sdk.gang_link import GangGone
from phalanx.job.sdk.session import Session

_TAIL_BYTES: Final = 64 * 1024


class Member:
    """Of this process."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._step = self._mark = 0
        self._is_settled = False
        self.place: Place = gang.take_part()
        gang.when_over(self._end)

    @property
    def timeout_ms(self) -> int:
        return self._gang.timeouts.collective_ms

    @property
    def gang(self) -> Gang:
        return self._gang

    def moved(self, step: int) -> None:
        """The script goes on: within a step by another mark each time. From the first time on it has to."""
        if not self._is_settled:
            self._is_settled = True
            self._gang.settled()
        self._mark = self._mark + 1 if step == self._step else 0
        self._step = step
        self._gang.moved(step, self._mark)

    def waits(self) -> None:
        """For a store: no hang."""
        self.moved(self._step)

    def rests(self) -> None:
        """The run is over, and how long the script then takes to end is its own affair: it counts as going on."""
        threading.Thread(target=self._tick, name="gang-rest", daemon=True).start()

    def _tick(self) -> None:
        with contextlib.suppress(GangGone):
            while True:
                self.waits()
                time.sleep(self._gang.timeouts.beat_ms / 1000)

    def tell(self, session: Session, step: int) -> None:
        """Said once by the first rank of a later generation, with its first step: after which step it went on, what was lost."""
        reached = last_step(session)
        now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        session.recovered(
            step=step, generation=self.place.generation, why=self.place.why, replaced={}, steps_lost=max(0, reached - step),
            recovery_ms=now_ms - self.place.since_ms, planned=self.place.planned,
        )  # fmt: skip

    def _end(self) -> None:
        """In another thread than the one that may be blocked. By SIGKILL: an exit code would be this rank's own failure."""
        line = f"phalanx: generation {self.place.generation} of the gang is over; a new process goes on from the last checkpoint\n"
        os.write(sys.stderr.fileno(), line.encode())
        os.kill(os.getpid(), signal.SIGKILL)


def last_step(session: Session) -> int:
    """The newest that this rank has a record of, from whatever process; 0 where there is none."""
    path = os.environ.get("PHALANX_RECORDS", "")
    if not path or session.journal is None:
        return 0
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            record = wire.loads(RankRecord, line)
        except ValueError:
            continue  # torn, by a kill or by where the tail begins
        if isinstance(record, StepRecord):
            return record.step
    return 0
