"""One thread owns the controller; a loop on the event loop's side drives its ticks.

The controller is synchronous and unlocked, so everything that touches it passes through `ControlThread.call`. A tick is two
calls with the decision between them, in another process: writes from the API run in that gap.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import structlog

from phalanx.core.errors import Bug, WorldError
from phalanx.core.ids import JobId
from phalanx.decide.scheduler.plan import Plan, Wait
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.operate.control.bells import Bell
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.world import World

TICK_S: Final = 1.0
"""Longest rest between ticks: leases and limits run out without anybody waking the loop."""

GATHER_S_MAX: Final = 0.05
"""After a tick the next one waits for as long as that took, this at most: under load what comes meanwhile shares a decision and a
commit, and at most half of the time goes into ticks. One that comes after a rest starts at once."""

TICKS_KEPT: Final = 8
"""How many of the newest ticks `tick_ms` tells of: 8 s on an idle platform."""

STALE_S: Final = 10.0
"""Without a completed tick for so long the platform places and ends nothing, whatever else still answers."""

T = TypeVar("T")
log = structlog.get_logger(__name__)


class ControlThread:
    """The controller and the only thread that may touch it."""

    def __init__(
        self,
        controller: Controller,
        on_bug: Callable[[BaseException], None],
        clock_s: Callable[[], float] = time.monotonic,
        check_lease: Callable[[], None] = lambda: None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_bug` is told of a broken promise inside the controller; it shall end the process, which `up` starts again.
        `check_lease` raises StoreUnavailable while this process may not decide nor command anything. `pause` waits for so many
        seconds between two ticks."""
        self._pause = pause
        self._check_lease = check_lease
        self._controller = controller
        self._on_bug = on_bug
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="control")
        self._wake = asyncio.Event()
        self.changed = Bell()
        """Rings when anything was committed."""
        self._rung_at = controller.world.seq
        self._watchers: list[Callable[[World], None]] = []
        self._clock_s = clock_s
        self._ticked_s: float | None = None
        self._snapshot: Snapshot | None = None
        self._tick_ms: deque[float] = deque(maxlen=TICKS_KEPT)

    @property
    def tick_ms(self) -> tuple[float, ...]:
        """How long the newest completed ticks took, oldest first: observing, the decision, carrying it out. TICKS_KEPT at most."""
        return tuple(self._tick_ms)

    @property
    def healthy(self) -> bool:
        """Whether ticks run, and the newest was completed within STALE_S."""
        return self._ticked_s is not None and self._clock_s() - self._ticked_s < STALE_S

    @property
    def world(self) -> World:
        """The newest committed state. A published world is never changed, so any thread may read it."""
        return self._controller.world

    @property
    def waiting(self) -> Mapping[JobId, Wait]:
        """Why each pending job waits; replaced, never changed, likewise."""
        return self._controller.waiting

    @property
    def snapshot(self) -> Snapshot | None:
        """What the newest decision was made of; frozen. None before the first."""
        return self._snapshot

    @property
    def epoch(self) -> int:
        return self._controller.epoch

    def watch(self, look: Callable[[World], None]) -> None:
        """`look` is called with the world after each change of it, on the event loop: it must be quick."""
        self._watchers.append(look)

    async def call(self, act: Callable[[Controller], T]) -> T:
        """What `act` returns or raises, run on the control thread, in the order of calls."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, act, self._controller)
        except Bug as error:
            self._on_bug(error)
            raise
        finally:
            if self.world.seq != self._rung_at:
                self._rung_at = self.world.seq
                self.changed.ring()
                for look in self._watchers:
                    look(self.world)

    async def change(self, act: Callable[[Controller], T]) -> T:
        """As `call`, and the next tick starts at once, or GATHER_S_MAX after the last one, since something changed."""
        result = await self.call(act)
        self.wake()
        return result

    def wake(self) -> None:
        """Starts the next tick now, or GATHER_S_MAX after the last one. On the event loop's thread only."""
        self._wake.set()

    async def run_ticks(self, decide: Callable[[Snapshot], Awaitable[Plan]]) -> None:
        """Ticks until cancelled. `decide` never raises for want of an answer."""
        self._ticked_s = self._clock_s()  # the first tick has as long as any other
        try:
            while True:
                self._wake.clear()
                start_s = self._clock_s()
                try:
                    await self._tick(decide)
                    self._ticked_s = self._clock_s()
                    self._tick_ms.append(1000 * (self._ticked_s - start_s))
                except WorldError as error:
                    log.warning("tick_put_off", error=str(error))
                await self._pause(min(self._clock_s() - start_s, GATHER_S_MAX))
                await self._wait()
        except Exception as error:
            self._on_bug(error)
            raise
        finally:
            self._ticked_s = None

    async def _tick(self, decide: Callable[[Snapshot], Awaitable[Plan]]) -> None:
        snapshot = await self.call(self._observed)
        self._snapshot = snapshot
        plan = await decide(snapshot)
        await self.call(lambda controller: self._carried_out(controller, plan))

    def _observed(self, controller: Controller) -> Snapshot:
        self._check_lease()
        return controller.observe()

    def _carried_out(self, controller: Controller, plan: Plan) -> None:
        """On the control thread, so that a process that was stopped in a long decision looks again before it commands."""
        self._check_lease()
        controller.carry_out(plan)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Waits for the calls already made; later ones are refused."""
        self._thread.shutdown(wait=True)
