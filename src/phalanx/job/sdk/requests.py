"""What somebody asks of this rank while it runs, see `core.trace_request`: one `stat` a step. Standard library only."""

import contextlib
from pathlib import Path

from phalanx.core import wire
from phalanx.core.trace_request import TRACES, TraceRequest


class Requests:
    """Of one attempt's folder."""

    def __init__(self, folder: Path) -> None:
        self._traces = folder / TRACES
        self._seen: tuple[int, int] | None = None
        self._newest: TraceRequest | None = None

    def traces(self) -> TraceRequest | None:
        """The newest request for some; None where there is none yet. What cannot be read is as if it were not there."""
        with contextlib.suppress(OSError, ValueError):
            status = self._traces.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen != self._seen:
                self._newest, self._seen = wire.loads(TraceRequest, self._traces.read_bytes()), seen
        return self._newest
