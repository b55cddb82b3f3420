"""What somebody asks of this rank while it runs, see `core.trace_request`: one `stat` a step. Standard library only."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from phalanx.core import wire
from phalanx.core.trace_request import TRACES, TraceRequest


class Requests:
    """Of one attempt's folder, and what this process has done about them: it may outlive many generations of its gang.

    taken: requests whose traces may still come to nothing; each says why there is none, '' as long as there may be one. missed:
    numbers of those that it has said no of.
    """

    def __init__(self, folder: Path) -> None:
        self._traces = folder / TRACES
        self._seen: tuple[int, int] | None = None
        self._newest: TraceRequest | None = None
        self.taken: dict[TraceRequest, Callable[[], str]] = {}
        self.missed: set[int] = set()

    def traces(self) -> TraceRequest | None:
        """The newest request for some; None where there is none yet. What cannot be read is as if it were not there."""
        with contextlib.suppress(OSError, ValueError):
            status = self._traces.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen != self._seen:
                self._newest, self._seen = wire.loads(TraceRequest, self._traces.read_bytes()), seen
        return self._newest
