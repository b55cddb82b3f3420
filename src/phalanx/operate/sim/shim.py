"""A simulated shim with its ranks, as `operate.agent.shim`: one an attempt and node, independent of the agent."""

from collections.abc import Callable
from typing import Final

from phalanx.core import wire
from phalanx.core.ids import AttemptId
from phalanx.core.interruptions import WITH_LEASE
from phalanx.core.messages import Launch, RankExit, RankProcess
from phalanx.core.records import CheckpointCommitted, ModelSaved, RankRecord
from phalanx.operate.sim.faults import DiskFull
from phalanx.operate.sim.gangs import Part
from phalanx.operate.sim.machine import Ended, GangStands, Machine, Program, Promise

FAILURE_GRACE_MS: Final = 5_000
"""As `operate.agent.attempts.FAILURE_GRACE_MS`."""

LEAVING_MS_MAX: Final = 3_000
"""A rank that heeds SIGTERM may have a last checkpoint to write."""

RETRY_MS: Final = 500

Fact = RankExit | tuple[RankProcess, ...] | Ended | GangStands


class SimShim:
    """Starts an attempt's ranks on one machine and sees them to their end. `die` is SIGKILL to itself."""

    def __init__(self, machine: Machine, promise: Promise) -> None:
        self._machine = machine
        self._promise = promise
        self._attempt: AttemptId = promise.launch.attempt
        self._alive: dict[int, Program] = {}
        self._unwritten: list[Fact] = []
        self._told = False
        self._kill_ms: int | None = None
        self._lost = ""
        self._dead = False
        self._part: Part | None = None

    # What its part of a gang that recovers inside asks of it

    @property
    def launch(self) -> Launch:
        return self._promise.launch

    @property
    def dead(self) -> bool:
        return self._dead

    @property
    def is_told(self) -> bool:
        return self._told

    @property
    def on_network(self) -> bool:
        return self._machine.on_network()

    @property
    def now_ms(self) -> int:
        return self._machine.timeline.now_ms

    def after(self, delay_ms: int, act: Callable[[], object]) -> None:
        self._machine.timeline.after(delay_ms, act)

    def interrupt(self, why: str) -> None:
        """Its ranks are ended, with which nothing was wrong."""
        if not self._dead and not self._told:
            self._machine.witness.note(self._machine.node, "shim: interrupted", why)
            self._lost = why
            self.stop(FAILURE_GRACE_MS)

    def gang_stands(self, without: tuple[int, ...], awaits: tuple[int, ...]) -> None:
        self._unwritten.append(GangStands(without, awaits))
        self._write()

    def give_up(self, node_rank: int) -> None:
        """The control plane says that node of the gang is lost."""
        if self._part is not None and not self._dead:
            self._part.give_up(node_rank)

    def gang_started(self) -> None:
        """The control plane says that the shims of all nodes run."""
        if self._part is not None and not self._dead:
            self._part.all_started()

    # Its life

    def start(self) -> None:
        """Claims the attempt and starts every rank. Raises DiskFull: then nothing was started, and it may be tried again."""
        machine, launch = self._machine, self._promise.launch
        machine.disk.written()
        self._promise.shim_boot = machine.boot
        machine.shims[self._attempt] = self
        started = []
        for local, device in enumerate(launch.devices):
            rank = launch.first_rank + local
            pid = machine.start_rank(self._attempt, rank, device)
            started.append(RankProcess(rank, pid))
            self._alive[rank] = machine.programs(launch, rank)
        self._unwritten.append(tuple(started))
        for rank, program in list(self._alive.items()):
            self._run(rank, program)
        self._write()
        if launch.on_partition == "stop":
            self._watch_lease()
        if launch.recovery is not None and launch.num_nodes > 1:
            self._part = Part(self, machine.gangs)

    def stop(self, grace_ms: int) -> None:
        """SIGTERM now, SIGKILL after the grace. A second time only shortens the grace."""
        if self._dead:
            return
        kill_ms = self._machine.timeline.now_ms + grace_ms
        first = not self._told
        self._told = True
        self._kill_ms = kill_ms if self._kill_ms is None else min(kill_ms, self._kill_ms)
        if first and self._part is not None:
            self._part.told(grace_ms)
        if first:
            for rank, program in list(self._alive.items()):
                if not program.stubborn:
                    code = 0 if program.polite else -15
                    self._later(self._machine.random.randint(5, LEAVING_MS_MAX), rank, code)
        self._machine.timeline.after(grace_ms, self._kill)

    def die(self) -> None:
        """The kernel kills the ranks with it."""
        self._dead = True
        for rank in list(self._alive):
            self._machine.end_rank(self._attempt, rank)
        self._alive.clear()
        self._machine.shims.pop(self._attempt, None)
        self._tell()

    def _run(self, rank: int, program: Program) -> None:
        if program.run_ms is not None:
            self._later(program.run_ms, rank, program.code)
        if program.saves_ms is not None:
            self._machine.timeline.after(program.saves_ms, lambda: self._save(rank))

    def _later(self, delay_ms: int, rank: int, code: int) -> None:
        self._machine.timeline.after(delay_ms, lambda: self.rank_exits(rank, code))

    def rank_exits(self, rank: int, code: int) -> None:
        """A rank ends; by itself where nobody told it to."""
        if self._dead or rank not in self._alive:
            return
        program = self._alive.pop(rank)
        if code == 0 and program.model and not self._told:
            self._record(rank, self._model(rank))
        self._machine.end_rank(self._attempt, rank)
        first = code != 0 and not self._told
        self._unwritten.append(RankExit(rank, code, self._machine.clock.now_ms(), first))
        self._write()
        if first:
            self.stop(FAILURE_GRACE_MS)
        self.end_if_over()

    def _kill(self) -> None:
        if self._kill_ms is not None and self._machine.timeline.now_ms >= self._kill_ms:
            for rank in list(self._alive):
                self.rank_exits(rank, -9)

    def end_if_over(self) -> None:
        if self._dead or self._alive:
            return
        if self._part is not None:
            if self._part.waits_for_others:
                return
            self._part.over = True
        if not any(isinstance(fact, Ended) for fact in self._unwritten) and self._promise.ended is None:
            self._unwritten.append(Ended(self._machine.clock.now_ms(), self._lost, bool(self._lost)))
            self._write()

    def _write(self) -> None:
        """Facts in their order, as far as the disk takes them; an end that it does not take yet is no end."""
        while self._unwritten and not self._dead:
            try:
                self._machine.disk.written()
            except DiskFull:
                self._machine.timeline.after(RETRY_MS, self._write)
                return
            self._put(self._unwritten.pop(0))
            self._tell()

    def _put(self, fact: Fact) -> None:
        match fact:
            case RankExit(rank=rank):
                self._promise.exits[rank] = fact
            case Ended():
                self._promise.ended = fact
                self._machine.shims.pop(self._attempt, None)
            case GangStands(without, awaits):
                self._promise.without, self._promise.awaits = without, awaits
            case tuple():
                self._promise.ranks = fact

    def _tell(self) -> None:
        if self._machine.agent is not None:
            self._machine.agent.changed(self._attempt)

    # The lease

    def _watch_lease(self) -> None:
        """Also when the agent is dead: nobody else is there to end the ranks."""
        if self._dead or not self._alive:
            return
        left_ms = self._machine.lease_until_ms - self._machine.timeline.now_ms
        if left_ms > 0:
            self._machine.timeline.after(left_ms, self._watch_lease)
        elif not self._told:
            self._machine.witness.note(self._machine.node, "shim: the lease is over", self._attempt)
            self._lost = WITH_LEASE
            self.stop(FAILURE_GRACE_MS)

    # What ranks say

    def _save(self, rank: int) -> None:
        if not self._dead and rank in self._alive and not self._told:
            digest, at_ms = f"{self._attempt}-{rank}", self._machine.clock.now_ms()
            self._record(rank, CheckpointCommitted(rank=rank, step=1, path="/c", digest=digest, size_bytes=1, at_ms=at_ms))

    def _model(self, rank: int) -> ModelSaved:
        at_ms = self._machine.clock.now_ms()
        return ModelSaved(rank=rank, step=1, path="/m", weights_digest=self._attempt, metrics={}, lineage={}, at_ms=at_ms)

    def _record(self, rank: int, record: CheckpointCommitted | ModelSaved) -> None:
        line = wire.dumps(RankRecord, record).encode() + b"\n"
        self._promise.records.setdefault(rank, bytearray()).extend(line)
        if self._machine.agent is not None:
            self._machine.agent.rung()
