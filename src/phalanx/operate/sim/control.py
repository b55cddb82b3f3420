"""One life of the control plane's process: the real controller amid what `control_thread`, `agent_socket` and `ingest` do."""

import base64
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

from phalanx.core.errors import LinkDown, StoreUnavailable, UserError
from phalanx.core.ids import AttemptId, NodeId, split_attempt
from phalanx.core.messages import PROTOCOL, Chunk, ChunkAck, Command, Granted, Hello, Renew, Report, Welcome
from phalanx.decide.scheduler import Plan, Snapshot
from phalanx.decide.scheduler.memory import Memory
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.ports import Clock
from phalanx.operate.control.questions import Answerer, Asker
from phalanx.operate.control.shape import check_shape
from phalanx.operate.control.store import Store
from phalanx.operate.control.world import World
from phalanx.operate.sim.faults import Crash, Faults
from phalanx.operate.sim.network import Line
from phalanx.operate.sim.timeline import Timeline
from phalanx.record.telemetry.records import decode

TICK_MS: Final = 1_000
DECIDE_MS: Final = (1, 40)
TICK_GAP_MS: Final = 2_000
"""As `control.leases`: longer between two ticks, and this control plane stood."""

HELLO_MS_MAX: Final = 10_000
SLOW_DECIDE_MS: Final = 4_000
"""The decision is made in another process, which may be slow; the world goes on meanwhile."""

Journal = dict[tuple[AttemptId, int], bytearray]
"""The server's durable copy of ranks' records. Like the database it outlives the process."""

Decide = Callable[[Snapshot, Memory], Plan]
"""The scheduler, with what its process remembers."""

T = TypeVar("T")


class SimLink:
    """The controller's `NodeLink` over a simulated connection."""

    def __init__(self, node: NodeId, line: Line, faults: Faults) -> None:
        self.node = node
        self.line = line
        self._faults = faults

    def send(self, commands: Sequence[Command]) -> None:
        if not self.line.open_at_server:
            raise LinkDown(f"{self.node} cannot be reached")
        for command in commands:
            self._faults.crash_point("before a command is sent")
            self.line.down(command)
        self._faults.crash_point("after commands were sent")


class ControlWitness:
    """Who is told what control planes do. Here: nobody."""

    def took_lead(self, server: "SimServer") -> None:
        """A controller was made."""

    def ticked(self, server: "SimServer") -> None:
        """A tick was completed."""


@dataclass(slots=True, kw_only=True)
class Life:
    """What a life needs from outside, the same for each of them. `actor`: whose code runs now."""

    store: Store
    clock: Clock
    timeline: Timeline
    faults: Faults
    settings: Settings
    decide: Decide
    witness: ControlWitness
    journal: Journal = field(default_factory=dict)
    actor: "SimServer | None" = None

    @property
    def random(self) -> Random:
        return self.faults.random


class SimServer:
    """From its start until a crash. `number` tells lives apart; `over` is called once when it ends, with why.

    A paused one does nothing, like a stopped process: what comes meanwhile waits, and is done when it goes on.
    """

    def __init__(self, number: int, life: Life, over: Callable[["SimServer", BaseException], None]) -> None:
        self.number = number
        self.alive = True
        self.paused = False
        self.links: dict[NodeId, SimLink] = {}
        self.heard_ms: dict[NodeId, int] = {}
        self._newest: dict[NodeId, int] = {}
        self.started_ms = life.timeline.now_ms
        self.ticks = 0
        self.gaps: list[tuple[int, int]] = []
        self._observed_ms = life.timeline.now_ms
        self._life = life
        self._over = over
        self._controller: Controller | None = None
        self._backlog: list[Callable[[], object]] = []
        self._due = 0
        self._asker, self._answerer, self._memory = Asker(), Answerer(), Memory()
        self._ticking = False
        self._woken = False

    @property
    def ready(self) -> bool:
        return self.alive and self._controller is not None

    @property
    def controller(self) -> Controller:
        assert self._controller is not None, "it has not started"
        return self._controller

    @property
    def world(self) -> World:
        return self.controller.world

    def start(self) -> None:
        try:
            self.run(self._take_over)
        except StoreUnavailable as away:
            self.end(away)

    def _take_over(self) -> None:
        life = self._life
        self._controller = Controller(life.store, life.clock, self.links, life.settings)
        life.witness.took_lead(self)
        going = [attempt.id for attempt in self.world.attempts.values() if attempt.ended_ms is None]
        self._acknowledged(going)
        self._tick_in(1)

    def run(self, act: Callable[[], T]) -> T | None:
        """Does it inside this process, if that still is: a crash ends the process there, a bug likewise."""
        if not self.alive:
            return None
        if self.paused:
            self._backlog.append(act)
            return None
        outer, self._life.actor = self._life.actor, self
        try:
            return act()
        except (StoreUnavailable, UserError, ValueError):
            raise
        except (Crash, Exception) as end:  # noqa: BLE001 (whatever else leaves the controller ends its process, as in control_thread)
            self.end(end)
        finally:
            self._life.actor = outer
        return None

    def end(self, why: BaseException) -> None:
        """The process is gone: every connection breaks, memory is lost."""
        if not self.alive:
            return
        self.alive = False
        self._backlog.clear()
        for link in list(self.links.values()):
            link.line.breaks()
        self._over(self, why)

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        """Everything that waited happens now, in order."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for act in backlog:
            self.quietly(act)

    def quietly(self, act: Callable[[], object]) -> None:
        """A database that is away is told to nobody who could do anything."""
        with contextlib.suppress(StoreUnavailable):
            self.run(act)

    # Ticks, as control_thread

    def wake(self) -> None:
        """Something changed: the next tick starts at once."""
        if self._ticking:
            self._woken = True
        else:
            self._tick_in(1)

    def _tick_in(self, delay_ms: int) -> None:
        self._due += 1
        due = self._due
        self._life.timeline.after(delay_ms, lambda: self.run(self._tick) if due == self._due else None)

    def _tick(self) -> None:
        self._ticking, self._woken = True, False
        try:
            snapshot = self.controller.observe()
        except StoreUnavailable:
            self._end_tick(put_off=True)
            return
        self._note_gap()
        self._life.faults.crash_point("between observe and carry_out")
        longest = SLOW_DECIDE_MS if self._life.faults.happens("delayed", 0.25) else DECIDE_MS[1]
        delay_ms = self._life.random.randint(DECIDE_MS[0], longest)
        self._life.timeline.after(delay_ms, lambda: self.run(lambda: self._carry_out(snapshot)))

    def _note_gap(self) -> None:
        self.gaps.append((self._life.timeline.now_ms, self.stood_ms()))
        self.gaps = [gap for gap in self.gaps if gap[1]]
        self._observed_ms = self._life.timeline.now_ms

    def stood_ms(self) -> int:
        """How much longer than between two ticks it is since the last one that was whole."""
        return max(0, self._life.timeline.now_ms - self._observed_ms - TICK_GAP_MS)

    def silence_ms(self, node: NodeId) -> int:
        """Of a node, or of this control plane's own start; without the time in which it stood itself."""
        heard_ms, now_ms = self.heard_ms.get(node, self.started_ms), self._life.timeline.now_ms
        for at_ms, excess_ms in (*self.gaps, (now_ms, self.stood_ms())):
            if at_ms > heard_ms:
                heard_ms = min(at_ms, heard_ms + excess_ms)
        return now_ms - heard_ms

    def _carry_out(self, snapshot: Snapshot) -> None:
        seen = self._answerer.snapshot(self._asker.question(snapshot))
        plan = self._life.decide(seen, self._memory)
        try:
            self.controller.carry_out(plan)
        except StoreUnavailable:
            self._end_tick(put_off=True)
            return
        self.ticks += 1
        self._life.witness.ticked(self)
        self._end_tick(put_off=False)

    def _end_tick(self, put_off: bool) -> None:
        self._ticking = False
        self._tick_in(1 if self._woken and not put_off else TICK_MS)

    # Connections, as agent_socket

    def hear(self, line: Line, message: object) -> None:
        """One message of a connection."""
        self.quietly(lambda: self._hear(line, message))

    def accepted(self, line: Line) -> None:
        """A connection on which a Hello is waited for, not for ever."""

        def give_up() -> None:
            if all(link.line is not line for link in self.links.values()):
                line.close_at_server("no hello came")

        self._life.timeline.after(HELLO_MS_MAX, lambda: self.run(give_up))

    def closed(self, line: Line) -> None:
        """The connection is over at this end."""

        def leave() -> None:
            for node, link in list(self.links.items()):
                if link.line is line:
                    del self.links[node]

        self.run(leave)

    def _hear(self, line: Line, message: object) -> None:
        if not line.open_at_server:
            return
        node = next((node for node, link in self.links.items() if link.line is line), None)
        try:
            if isinstance(message, Hello):
                self._enter(line, message)
            elif node is not None:
                self._take(node, line, message)
        except (ValueError, StoreUnavailable) as error:
            line.close_at_server(str(error))

    def _enter(self, line: Line, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise ValueError("another protocol")
        check_shape(hello.shape)
        for report in hello.attempts:
            split_attempt(report.attempt)
        acked = self._acknowledged([report.attempt for report in hello.attempts])
        line.down(Welcome(self.controller.lead_above(hello.epoch_seen), self._life.settings.lease_ms, acked))
        node = hello.shape.node
        if line.number < self._newest.get(node, 0):
            raise ValueError("a newer connection of this node was there before")
        self._newest[node] = line.number
        older = self.links.get(node)
        self.links[node] = SimLink(node, line, self._life.faults)
        self._tell(node, hello)
        if older is not None and older.line is not line:
            older.line.close_at_server("a newer connection of this node took over")
        self.wake()

    def _take(self, node: NodeId, line: Line, message: object) -> None:
        match message:
            case Renew(number=number):
                self._tell(node, message)
                line.down(Granted(number, self._life.settings.lease_ms))
            case Report():
                self._tell(node, message)
                self.wake()
            case Chunk():
                line.down(self._ingest(node, message))

    def _tell(self, node: NodeId, message: Hello | Report | Renew) -> None:
        self.heard_ms[node] = self._life.timeline.now_ms
        self.controller.heard(node, message)

    # Records, as ingest

    def _ingest(self, node: NodeId, chunk: Chunk) -> ChunkAck:
        data = base64.b64decode(chunk.data)
        if self._node_of(chunk.attempt, chunk.rank) != node:
            return ChunkAck(chunk.stream, chunk.attempt, chunk.rank, chunk.offset + len(data))
        held = self._life.journal.setdefault((chunk.attempt, chunk.rank), bytearray())
        if chunk.offset <= len(held):
            held[chunk.offset : chunk.offset + len(data)] = data
        self._read(node, chunk.attempt, chunk.rank)
        return ChunkAck(chunk.stream, chunk.attempt, chunk.rank, len(held))

    def _acknowledged(self, attempts: Collection[AttemptId]) -> dict[str, int]:
        """What is durable, once all of it is taken in."""
        ends = {}
        for (attempt, rank), held in self._life.journal.items():
            if attempt in attempts:
                node = self._node_of(attempt, rank)
                if node is not None:
                    self._read(node, attempt, rank)
                ends[f"records/{attempt}/{rank}"] = len(held)
        return ends

    def _read(self, node: NodeId, attempt: AttemptId, rank: int) -> None:
        offset = self.controller.records_offset(attempt, rank)
        decoded = decode(bytes(self._life.journal[attempt, rank][offset:]), rank)
        if decoded.consumed:
            self.controller.facts(node, attempt, rank, offset + decoded.consumed, decoded.facts)
            if decoded.facts:
                self.wake()

    def _node_of(self, attempt: AttemptId, rank: int) -> NodeId | None:
        record = self.world.attempts.get(attempt)
        nodes = [part.node for part in record.placement.slices for _ in part.devices] if record else []
        return nodes[rank] if 0 <= rank < len(nodes) else None
