"""A simulated agent, as `operate.agent`: promises on its disk, commands idempotent, everything held reported until forgotten."""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from phalanx.core.ids import AttemptId
from phalanx.core.interruptions import WITH_BOOT
from phalanx.core.messages import (
    PROTOCOL,
    AttemptReport,
    Chunk,
    ChunkAck,
    Command,
    Forget,
    GangStarted,
    GiveUpNode,
    Granted,
    Hello,
    Phase,
    PlanFaults,
    RankExit,
    Renew,
    Report,
    RequestTraces,
    StartRanks,
    StopRanks,
    Welcome,
)
from phalanx.operate.sim.faults import DiskFull
from phalanx.operate.sim.machine import Ended, Machine, Promise
from phalanx.operate.sim.network import Line, LineEnd
from phalanx.operate.sim.shim import RETRY_MS, SimShim

STOPPED_EARLY: Final = -15
WELCOME_MS_MAX: Final = 10_000
BACKOFF_MS: Final = (100, 2_000)
PREPARE_MS: Final = (5, 300)
SLOW_PREPARE_MS: Final = 15_000
"""A workdir that has to be fetched, or an environment to be built, while the control plane is away."""

Message = Hello | Report | Renew | Chunk
Dial = Callable[[LineEnd], Line | None]
"""Opens a connection to the control plane; None when nobody answers."""


@dataclass(slots=True)
class _Run:
    """One held attempt in the agent's memory. `sent` and `acked`: bytes of each rank's records."""

    promise: Promise
    drained: bool = False
    stop_asked: bool = False
    preparing: bool = False
    ending: bool = False
    sent: dict[int, int] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)


class SimAgent:
    """One agent process of a machine. What must outlive it is on the machine's disk; shims and ranks outlive it anyway."""

    def __init__(self, machine: Machine, dial: Dial) -> None:
        self.line: Line | None = None
        self.welcomed = False
        self._machine = machine
        self._dial = dial
        self._alive = True
        self._runs: dict[AttemptId, _Run] = {}
        self._failures = 0
        self._dialled_ms = 0
        self._lease_ms = 0
        self._lease_ends_ms = 0
        self._renewals: dict[int, int] = {}
        self._number = 0

    # Its life

    def start(self) -> None:
        """Adopts what the disk holds, and dials."""
        self._machine.agent = self
        for attempt in list(self._machine.disk.promises):
            self._hold(attempt)
        self._later(1, self._connect)

    def die(self) -> None:
        """SIGKILL: memory and connection are gone."""
        self._alive = False
        self._machine.agent = None
        if self.line is not None:
            self.line.close_at_agent("the agent died")

    def _later(self, delay_ms: int, act: Callable[[], object]) -> None:
        self._machine.timeline.after(delay_ms, lambda: act() if self._alive else None)

    def _note(self, what: str, about: object = "") -> None:
        self._machine.witness.note(f"agent {self._machine.node}", what, about)

    # Its connection

    def _connect(self) -> None:
        if self.line is not None:
            return
        self.line = self._dial(LineEnd(self._hear, self._closed))
        if self.line is None:
            self._failures += 1
            self._dial_again()
            return
        line = self.line
        self.welcomed = False
        self._renewals.clear()
        self._dialled_ms = self._machine.timeline.now_ms
        self._send(self._hello())
        self._later(WELCOME_MS_MAX, lambda: None if self.welcomed else line.close_at_agent("no welcome came"))

    def _hello(self) -> Hello:
        reports = tuple(self._report(attempt) for attempt in self._runs)
        machine = self._machine
        return Hello(machine.shape, machine.boot_id, PROTOCOL, "sim", machine.disk.epoch_seen, reports)

    def _dial_again(self) -> None:
        first, longest = BACKOFF_MS
        pause_ms = min(longest, first << min(self._failures, 10))
        self._later(self._machine.random.randint(pause_ms // 2, pause_ms), self._connect)

    def _closed(self, line: Line, why: str) -> None:
        if self._alive and line is self.line:
            self._note("lost its connection", why)
            self._failures = 0 if self.welcomed else self._failures + 1
            self.line, self.welcomed = None, False
            self._dial_again()

    def _send(self, message: Message) -> None:
        """Dropped while away: Hello says everything anyway."""
        if self.line is not None and (self.welcomed or isinstance(message, Hello | Report)):
            for said in self._machine.tongue(message):
                self.line.up(said)

    def _renew(self, line: Line) -> None:
        if line is not self.line:
            return
        self._number += 1
        self._renewals[self._number] = self._machine.timeline.now_ms
        self._send(Renew(self._number))
        self._later(self._lease_ms // 3, lambda: self._renew(line))

    # What it hears

    def _hear(self, line: Line, message: object) -> None:
        if not self._alive or line is not self.line:
            return
        if not self.welcomed and not isinstance(message, Welcome):
            line.close_at_agent("the first message is not welcome")
            return
        try:
            self._take(line, message)
        except DiskFull as error:
            self._note("cannot carry it out", error)

    def _take(self, line: Line, message: object) -> None:
        match message:
            case Welcome():
                self._take_welcome(line, message)
            case Granted(number=number, lease_ms=lease_ms):
                if number in self._renewals:
                    self._granted(self._renewals[number], lease_ms)
            case ChunkAck(attempt=attempt, rank=rank, offset=offset):
                if attempt in self._runs:
                    acked = self._runs[attempt].acked
                    acked[rank] = max(acked.get(rank, 0), offset)
                self._look()
            case StartRanks() | StopRanks() | Forget() | GiveUpNode() | GangStarted() | PlanFaults() | RequestTraces():
                self.obey(message)

    def _take_welcome(self, line: Line, welcome: Welcome) -> None:
        if self.welcomed:
            return
        try:
            admitted = self._admit(welcome.epoch)
        except DiskFull:
            line.close_at_agent("the epoch cannot be written")
            return
        if not admitted:
            line.close_at_agent(f"a control plane of epoch {welcome.epoch}, though {self._machine.disk.epoch_seen} was seen")
            return
        self.welcomed = True
        self._lease_ms = welcome.lease_ms
        self._granted(self._dialled_ms, welcome.lease_ms)
        for attempt, run in self._runs.items():
            for rank in run.promise.num_ranks:
                run.sent[rank] = run.acked[rank] = welcome.acked.get(f"records/{attempt}/{rank}", 0)
        self._renew(line)
        self._look()

    def _granted(self, sent_ms: int, lease_ms: int) -> None:
        """The lease counts from the sending of what was granted; shims are told."""
        self._lease_ends_ms = max(self._lease_ends_ms, sent_ms + lease_ms)
        self._machine.renew(self._lease_ends_ms)

    def _admit(self, epoch: int) -> bool:
        """Whether the epoch may command; a higher one is durable before it does. Raises DiskFull."""
        disk = self._machine.disk
        if epoch > disk.epoch_seen:
            disk.written()
            disk.epoch_seen = epoch
        return epoch >= disk.epoch_seen

    def obey(self, command: Command) -> None:
        """Raises DiskFull when it cannot be carried out now."""
        if not self._admit(command.epoch):
            self._note(f"refuses a stale {command.kind}", command.epoch)
            return
        self._machine.witness.obeyed(self._machine, command)
        match command:
            case StartRanks():
                self._start(command)
            case StopRanks():
                self._stop(command)
            case Forget(attempt=attempt):
                self._forget(attempt)
            case GiveUpNode(attempt=attempt, node_rank=node_rank):
                if (shim := self._machine.shims.get(attempt)) is not None:
                    shim.give_up(node_rank)
            case GangStarted(attempt=attempt):
                if (shim := self._machine.shims.get(attempt)) is not None:
                    shim.gang_started()
            case PlanFaults() | RequestTraces():
                pass  # the simulation's faults are its own, and its ranks make no steps

    def _start(self, command: StartRanks) -> None:
        attempt = command.launch.attempt
        if attempt not in self._runs:
            self._machine.disk.written()
            self._machine.disk.promises[attempt] = Promise(command.launch, command.epoch)
            self._hold(attempt)
        self._send(Report(self._report(attempt)))

    def _stop(self, command: StopRanks) -> None:
        attempt, run = command.attempt, self._runs.get(command.attempt)
        if run is None:
            ended = AttemptReport(attempt, command.epoch, "ended", (), (), self._machine.clock.now_ms())
            self._send(Report(ended))
        elif run.promise.ended is not None:
            self._send(Report(self._report(attempt)))
        else:
            self._stop_run(run, command.grace_ms)

    def _stop_run(self, run: _Run, grace_ms: int) -> None:
        """The ranks are stopped also when the wish cannot be kept; then it comes again."""
        run.stop_asked = True
        shim = self._machine.shims.get(run.promise.launch.attempt)
        if shim is not None:
            shim.stop(grace_ms)
        elif run.preparing:
            run.preparing = False
            self._fail(run)
        self._machine.disk.written()
        known = run.promise.stop_grace_ms
        if known is None or grace_ms < known:
            run.promise.stop_grace_ms = grace_ms if known is None else min(known, grace_ms)
            self.changed(run.promise.launch.attempt)

    def _forget(self, attempt: AttemptId) -> None:
        run = self._runs.get(attempt)
        if run is not None and run.promise.ended is None:
            self._note("refuses to forget what has not ended", attempt)
            return
        self._machine.disk.promises.pop(attempt, None)
        self._runs.pop(attempt, None)

    # What it holds

    def _hold(self, attempt: AttemptId) -> None:
        """Level, not edge: adopting after a restart is the same as starting."""
        run = self._runs[attempt] = _Run(self._machine.disk.promises[attempt])
        if run.promise.ended is not None:
            self._look()
        elif run.promise.shim_boot is not None:
            self.changed(attempt)
        elif run.promise.stop_grace_ms is not None:
            self._fail(run)
        else:
            run.preparing = True
            longest = SLOW_PREPARE_MS if self._machine.random.random() < 0.05 else PREPARE_MS[1]
            self._later(self._machine.random.randint(PREPARE_MS[0], longest), lambda: self._prepared(run))

    def _prepared(self, run: _Run) -> None:
        """Ranks that must not outlive the node's lease are not started without one."""
        if not run.preparing:
            return
        no_lease = run.promise.launch.on_partition == "stop" and self._lease_ends_ms <= self._machine.timeline.now_ms
        if no_lease or self._machine.code_away:
            self._later(RETRY_MS, lambda: self._prepared(run))
            return
        try:
            SimShim(self._machine, run.promise).start()
        except DiskFull:
            self._later(RETRY_MS, lambda: self._prepared(run))
            return
        run.preparing = False

    def _fail(self, run: _Run) -> None:
        """Ends an attempt whose ranks were never started, as soon as the disk takes it."""
        at_ms = self._machine.clock.now_ms()
        exits = {rank: RankExit(rank, STOPPED_EARLY, at_ms) for rank in run.promise.num_ranks}
        self._end(run, exits, Ended(at_ms))

    def _lose(self, run: _Run) -> None:
        """Ends an attempt whose shim died before it could say how."""
        killed = "the shim died without exit records; its ranks were killed"
        why = killed if run.promise.shim_boot == self._machine.boot else WITH_BOOT
        self._end(run, run.promise.exits, Ended(self._machine.clock.now_ms(), why))

    def _end(self, run: _Run, exits: dict[int, RankExit], ended: Ended) -> None:
        run.ending = True
        try:
            self._machine.disk.written()
        except DiskFull:
            self._later(RETRY_MS, lambda: self._end(run, exits, ended))
            return
        run.promise.exits, run.promise.ended = dict(exits), ended
        self.changed(run.promise.launch.attempt)

    def changed(self, attempt: AttemptId) -> None:
        """Something is new in the attempt's folder, or with its shim."""
        run = self._runs.get(attempt)
        if run is None or not self._alive:
            return
        promise = run.promise
        if promise.ended is None and promise.shim_boot is not None and attempt not in self._machine.shims and not run.ending:
            run.ending = True
            self._later(self._machine.random.randint(1, 50), lambda: self._lose(run))
        self._send(Report(self._report(attempt)))
        self._look()

    def rung(self) -> None:
        """A rank wrote a record."""
        self._look()

    def _look(self) -> None:
        """Ships records, and notices when the last byte of an ended attempt has arrived. Of what a welcome has not told yet nothing
        is known to have arrived, not even the logs, of which the model has none."""
        if not self.welcomed:
            return
        for attempt, run in self._runs.items():
            for rank, records in run.promise.records.items():
                self._ship(attempt, run, rank, records)
            done = all(run.acked.get(rank, 0) >= len(records) for rank, records in run.promise.records.items())
            if run.promise.ended is not None and not run.drained and done:
                run.drained = True
                self._send(Report(self._report(attempt)))

    def _ship(self, attempt: AttemptId, run: _Run, rank: int, records: bytearray) -> None:
        sent = run.sent.get(rank, 0)
        if sent < len(records):
            self._send(Chunk("records", attempt, rank, sent, base64.b64encode(records[sent:]).decode()))
            run.sent[rank] = len(records)

    def _report(self, attempt: AttemptId) -> AttemptReport:
        run = self._runs[attempt]
        promise, ended = run.promise, run.promise.ended
        return AttemptReport(
            attempt,
            promise.epoch,
            self._phase(run),
            promise.ranks,
            tuple(promise.exits[rank] for rank in sorted(promise.exits)),
            self._machine.clock.now_ms(),
            ended.lost if ended else "",
            ended.interrupted if ended else False,
            ended.at_ms if ended else 0,
            promise.launch.devices if self._machine.tells_devices else (),
            without=promise.without,
            awaits=promise.awaits,
        )

    def _phase(self, run: _Run) -> Phase:
        promise = run.promise
        if promise.ended is not None:
            return "ended" if run.drained else "stopping"
        orphaned = promise.shim_boot is not None and promise.launch.attempt not in self._machine.shims
        if promise.stop_grace_ms is not None or orphaned or any(one.code for one in promise.exits.values()):
            return "stopping"
        return "running" if promise.ranks else "starting"
