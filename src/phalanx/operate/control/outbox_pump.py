"""Carries the outbox to the tracking process, row by row. Nothing waits for it.

A tracker that is away is asked again for as long as it takes; a row that fails otherwise is given up after a few tries, with a
line in the log, since the rows behind it would wait for ever.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from phalanx.core import wire
from phalanx.core.errors import Bug, WorldError
from phalanx.core.ids import AttemptId
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.line_process import LineProcess
from phalanx.record.tracking.entries import Entry, Measured, to_deliver

ROWS: Final = 64
POLL_S: Final = 1.0
TRIES_MAX: Final = 3
BACKOFF_S: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Waits after the first, second, ... failure in a row; the last one is kept."""

log = structlog.get_logger(__name__)


class OutboxPump:
    """One row at a time, oldest first; a row counts as done once the tracker has said so."""

    def __init__(self, control: ControlThread, tracker: LineProcess, measured: Callable[[AttemptId], Measured]) -> None:
        """`measured` reads an attempt's steps and metrics; it is called in a thread."""
        self._control = control
        self._tracker = tracker
        self._measured = measured
        self._failed: Counter[int] = Counter()

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            try:
                delivered = await self._round()
                failures = 0
                await asyncio.sleep(0 if delivered else POLL_S)
            except Exception as error:  # noqa: BLE001 (tracking has no say over the platform: whatever fails is tried again later)
                pause_s = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
                failures += 1
                log.warning("tracking_put_off", error=f"{type(error).__name__}: {error}", failures=failures, again_in_s=pause_s)
                await asyncio.sleep(pause_s)

    async def _round(self) -> int:
        rows = await self._control.call(lambda controller: controller.pending_outbox(ROWS))
        for row in rows:
            await self._deliver_or_give_up(row.seq, row.entry)
        return len(rows)

    async def _deliver_or_give_up(self, seq: int, stored: Mapping[str, Any]) -> None:
        try:
            await self._deliver(seq, stored)
        except (WorldError, Bug):
            raise
        except Exception as error:
            self._failed[seq] += 1
            if self._failed[seq] < TRIES_MAX:
                raise
            log.exception("tracking_gave_up", seq=seq, job=stored.get("job"), error=f"{type(error).__name__}: {error}")
        await self._control.call(lambda controller: controller.outbox_done(seq))
        del self._failed[seq]

    async def _deliver(self, seq: int, stored: Mapping[str, Any]) -> None:
        entry: Entry = wire.build(Entry, stored)
        for part in await asyncio.to_thread(to_deliver, entry, self._measured):
            line = json.dumps({"seq": seq, "entry": wire.plain(Entry, part)})
            answer = json.loads(await self._tracker.ask(line))
            if answer.get("done") != seq:
                raise WorldError(f"the tracker put off row {seq}: {answer.get('error', answer)}")
            if refused := answer.get("refused"):
                log.error("tracking_refused", seq=seq, job=stored.get("job"), kind=stored.get("kind"), why=refused)
