"""Turns the series of attempts that are over into their lasting form, beside the ticks."""

import asyncio
from typing import Final

import structlog

from phalanx.core.errors import UserError, WorldError
from phalanx.core.ids import AttemptId
from phalanx.operate.control.control_thread import ControlThread
from phalanx.record.telemetry.series import SeriesStore

POLL_S: Final = 1.0
AGAIN_S: Final = 10.0
"""After a refusal: a disk that is full stays so for a while, and each try is a line in the log."""

log = structlog.get_logger(__name__)


class Sealing:
    """An attempt is reported as ended only after all its records were taken in, so then it can be sealed."""

    def __init__(self, control: ControlThread, series: SeriesStore) -> None:
        self._control = control
        self._series = series
        self._seq = -1
        self._sealed: set[AttemptId] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            whole = await self._round()
            await asyncio.sleep(POLL_S if whole else AGAIN_S)

    async def _round(self) -> bool:
        """Seals what is over; whether all of it could be. One that cannot holds up no other."""
        world = self._control.world
        if world.seq == self._seq:
            return True
        over = [attempt.id for attempt in world.attempts.values() if attempt.ended_ms is not None]
        refused = [attempt for attempt in over if attempt not in self._sealed and not await self._seal(attempt)]
        if refused:
            return False
        self._seq = world.seq
        return True

    async def _seal(self, attempt: AttemptId) -> bool:
        try:
            await asyncio.to_thread(self._series.seal, attempt)
        except (WorldError, UserError) as error:
            log.warning("sealing_put_off", attempt=attempt, error=str(error))
            return False
        self._sealed.add(attempt)
        return True
