"""Carries the outbox to the tracking process, row by row. Nothing waits for it, and it waits while attempts are started one after
another.

A tracker that is away is asked again for as long as it takes; a row that fails otherwise, or that a tracker dies of which was
there a moment before, is given up after a few tries, with a line in the log, since the rows behind it would wait for ever. A
tracker that had nothing to do for a while is ended: loaded it holds more memory than everything else together, and the next row
starts another.
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
from phalanx.operate.control.line_process import LineProcess, NoAnswer
from phalanx.record.tracking.entries import Entry, Measured, to_deliver

ROWS: Final = 64
POLL_S: Final = 1.0
TRIES_MAX: Final = 3
DEATHS_MAX: Final = 5
"""More than TRIES_MAX: a machine short of memory kills trackers too, and recovers."""

LAG_S_MAX: Final = 60.0
"""How long rows wait for a moment in which no attempt is started; then all are delivered. To track a job of milliseconds takes more
time than the job."""

REST_S: Final = 600.0
"""Without a row for so long the tracking process is ended. Its next start costs about 2 s of CPU, which nobody waits for."""

BACKOFF_S: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Waits after the first, second, ... failure in a row; the last one is kept."""

log = structlog.get_logger(__name__)


class OutboxPump:
    """One row at a time, oldest first; a row counts as done once the tracker has said so."""

    def __init__(
        self, control: ControlThread, tracker: LineProcess, measured: Callable[[AttemptId], Measured], rest_s: float = REST_S
    ) -> None:
        """`measured` reads an attempt's steps and metrics; it is called in a thread."""
        self._control = control
        self._tracker = tracker
        self._measured = measured
        self._rest_s = rest_s
        self._opened: int | None = None  # pid of the tracking process that was there before any row
        self._failed: Counter[int] = Counter()
        self._empty_at = -1  # number of the newest event when the outbox was last seen empty
        self._busy_s = 0.0  # the loop's time when it last was not
        self._behind_s: float | None = None  # the loop's time since which rows wait for a quiet moment
        self._attempts: int | None = None  # that there were when last looked

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
        """Rows come with events only, so without a new one the database need not be asked."""
        seq = self._control.world.seq
        if seq == self._empty_at:
            await self._rest()
            return 0
        if self._is_launching():
            return 0
        rows = await self._control.call(lambda controller: controller.pending_outbox(ROWS))
        for row in rows:
            await self._deliver_or_give_up(row.seq, row.entry)
        self._busy_s = asyncio.get_running_loop().time()
        if not rows:
            self._empty_at, self._behind_s = seq, None
        return len(rows)

    def _is_launching(self) -> bool:
        """Whether attempts were made since the last look, and the rows can wait."""
        now_s, before, self._attempts = asyncio.get_running_loop().time(), self._attempts, len(self._control.world.attempts)
        self._behind_s = now_s if self._behind_s is None else self._behind_s
        return before not in (None, self._attempts) and now_s - self._behind_s < LAG_S_MAX

    async def _rest(self) -> None:
        if self._tracker.pid is not None and asyncio.get_running_loop().time() - self._busy_s >= self._rest_s:
            await self._tracker.close()
            log.info("tracking_rests", after_s=self._rest_s)

    async def _deliver_or_give_up(self, seq: int, stored: Mapping[str, Any]) -> None:
        try:
            await self._deliver(seq, stored)
        except Exception as error:
            if not self._is_given_up(seq, error):
                raise
            log.exception("tracking_gave_up", seq=seq, job=stored.get("job"), error=f"{type(error).__name__}: {error}")
        await self._control.call(lambda controller: controller.outbox_done(seq))
        del self._failed[seq]

    def _is_given_up(self, seq: int, error: Exception) -> bool:
        """Counts the failure where it may be the row's own."""
        if isinstance(error, (WorldError, Bug)) and not isinstance(error, NoAnswer):
            return False
        self._failed[seq] += 1
        return self._failed[seq] >= (DEATHS_MAX if isinstance(error, NoAnswer) else TRIES_MAX)

    async def _deliver(self, seq: int, stored: Mapping[str, Any]) -> None:
        entry: Entry = wire.build(Entry, stored)
        for part in await asyncio.to_thread(to_deliver, entry, self._measured):
            if self._tracker.pid is None or self._tracker.pid != self._opened:
                await self._open()
            answer = await self._ask(seq, wire.plain(Entry, part))
            if refused := answer.get("refused"):
                log.error("tracking_refused", seq=seq, job=stored.get("job"), kind=stored.get("kind"), why=refused)

    async def _open(self) -> None:
        """A tracker that dies, or is away, when it has not been told of any row is no row's fault."""
        try:
            await self._ask(0, None)
        except NoAnswer as error:
            raise WorldError(f"the tracker does not start: {error}") from error
        self._opened = self._tracker.pid

    async def _ask(self, seq: int, entry: object) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = json.loads(await self._tracker.ask(json.dumps({"seq": seq, "entry": entry})))
        if answer.get("done") != seq:
            raise WorldError(f"the tracker put off {f'row {seq}' if entry else 'everything'}: {answer.get('error', answer)}")
        return answer
