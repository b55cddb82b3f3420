"""Turns the series of attempts that are over into their lasting form, beside the ticks."""

import asyncio
from typing import Final

import structlog

from phalanx.core.errors import WorldError
from phalanx.core.ids import AttemptId
from phalanx.operate.control.control_thread import ControlThread
from phalanx.record.telemetry.series import SeriesStore

POLL_S: Final = 1.0
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
            try:
                await self._round()
            except WorldError as error:
                log.warning("sealing_put_off", error=str(error))
            await asyncio.sleep(POLL_S)

    async def _round(self) -> None:
        world = self._control.world
        if world.seq == self._seq:
            return
        for attempt in world.attempts.values():
            if attempt.ended_ms is not None and attempt.id not in self._sealed:
                await asyncio.to_thread(self._series.seal, attempt.id)
                self._sealed.add(attempt.id)
        self._seq = world.seq
