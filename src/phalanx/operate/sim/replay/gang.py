"""One job in a replay: its work, what of it is saved, and how the time of an attempt is spent."""

from dataclasses import dataclass, field

from phalanx.core.devices import Placement
from phalanx.core.ids import attempt_id
from phalanx.decide.scheduler import JobFacts, PendingJob, RunningJob
from phalanx.operate.sim.replay.account import Ledger
from phalanx.operate.sim.replay.costs import Costs
from phalanx.operate.sim.replay.outcome import Life
from phalanx.record.telemetry.ledger.categories import DRAINING, PRODUCTIVE, RECOMPUTE, RESTART, STARTUP


@dataclass(slots=True)
class Gang:
    """Mutable. Work is counted in milliseconds of the whole gang: `total` of it, `saved` by a checkpoint, `reached` at some time.

    pending and running are what the scheduler is told; at most one is there. placed_ms, start_ms, rate, stopped_ms: of the attempt
    that runs: when it got its devices, how long it takes to start, how much of its work a millisecond does, and when it was told to
    stop. keeps: what it starts again on. since_ms: since when it waits.
    """

    index: int
    facts: JobFacts
    life: Life
    milli: int
    total: int
    pending: PendingJob | None = None
    running: RunningJob | None = None
    saved: int = 0
    reached: int = 0
    placed_ms: int = 0
    start_ms: int = 0
    rate: tuple[int, int] = (1, 1)
    stopped_ms: int | None = None
    keeps: Placement | None = None
    since_ms: int = 0
    served_ms: int = 0
    evicted_ms: list[int] = field(default_factory=list)

    @property
    def num_devices(self) -> int:
        return self.facts.shape.num_devices

    def begin(self, placement: Placement, now_ms: int, unix_ms: int, costs: Costs) -> int:
        """The attempt has its devices; when it would end by itself."""
        self.life.attempts += 1
        first = self.life.attempts == 1
        self.start_ms = min(costs.start_ms, self.life.job.duration_ms) if first else costs.restart_ms
        self.placed_ms, self.stopped_ms, self.keeps = now_ms, None, None
        self.rate = placement.world_size, self.num_devices
        evictions, since_ms = (self.pending.evictions, self.pending.since_ms) if self.pending else (0, 0)
        self.running = RunningJob(
            self.facts, attempt_id(self.facts.job, self.life.attempts), placement, unix_ms, saved_ms=0, restart_ms=costs.restart_ms,
            evictions=evictions, served_ms=self.served_ms, done_ms=self.saved, since_ms=since_ms,
        )  # fmt: skip
        self.pending = None
        return now_ms + self.start_ms + self._time(self.total - self.saved)

    def settle(self, now_ms: int, costs: Costs, ledger: Ledger, failed: bool) -> None:
        """The attempt's devices are free: books its time, and what of its work is done and saved."""
        assert self.running is not None
        world = self.running.placement.world_size
        milli = self.milli * world // self.num_devices if world != self.num_devices else self.milli
        stopped_ms = min(now_ms, self.stopped_ms if self.stopped_ms is not None else now_ms)
        ran_ms = stopped_ms - self.placed_ms
        starting_ms = min(ran_ms, self.start_ms)
        working_ms = ran_ms - starting_ms
        again_ms = min(working_ms, self._time(self.reached - self.saved))
        ledger.held(STARTUP if self.life.attempts == 1 else RESTART, milli, starting_ms)
        ledger.held(RECOMPUTE, milli, again_ms)
        ledger.held(PRODUCTIVE, milli, working_ms - again_ms)
        ledger.held(DRAINING, milli, now_ms - stopped_ms)
        at = min(self.total, self.saved + self._work(working_ms))
        kept_ms = working_ms // costs.checkpoint_ms * costs.checkpoint_ms if failed or not costs.saves else working_ms
        self.reached = max(self.reached, at)
        self.saved = min(at, self.saved + self._work(kept_ms))
        self.served_ms += (now_ms - self.placed_ms) * world

    def waits(self, now_ms: int, start_ms: int, repair: bool, claim: Placement | None) -> None:
        """It is in line again, or for the first time. start_ms: Unix time of the start of the trace."""
        day_ms = 86_400_000
        borrowed = self.running is not None and self.running.placement.borrowed
        since_ms = self.running.since_ms if self.running is not None and borrowed else start_ms + now_ms  # it waited all along
        self.since_ms, self.running = now_ms, None
        self.evicted_ms = [at_ms for at_ms in self.evicted_ms if at_ms > now_ms - day_ms]
        self.pending = PendingJob(
            self.facts, since_ms=since_ms, claim=claim, repair=repair, evictions=len(self.evicted_ms),
            served_ms=self.served_ms, done_ms=self.saved,
        )  # fmt: skip

    def last_save_ms(self, now_ms: int, costs: Costs) -> int | None:
        """When the running attempt made its last checkpoint; None when it has none."""
        working_ms = now_ms - self.placed_ms - self.start_ms
        return None if working_ms < costs.checkpoint_ms else now_ms - working_ms % costs.checkpoint_ms

    def _time(self, work: int) -> int:
        """Milliseconds that so much work takes, upwards."""
        has, whole = self.rate
        return -(-work * whole // has)

    def _work(self, ms: int) -> int:
        has, whole = self.rate
        return ms * has // whole
