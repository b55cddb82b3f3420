"""The log folded into spans: which devices existed, which were away, who held them, and why free ones stayed free. Pure."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from phalanx.core.devices import NodeShape, Placement
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    Event,
    JobEvicted,
    JobSubmitted,
    JobWaits,
    NodeAway,
    NodeDrained,
    NodeUndrained,
    NodeUp,
    PartLost,
    PartReleased,
    RankSaid,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId, split_attempt
from phalanx.core.reasons import Reason
from phalanx.core.records import Recovered
from phalanx.core.spec import Kind
from phalanx.record.telemetry.ledger.categories import IDLE
from phalanx.record.telemetry.ledger.waiting import waits_as

K = TypeVar("K")
V = TypeVar("V")
FOREVER: Final = 2**63
"""End of what has not ended: beyond any Unix time in milliseconds."""

Span = tuple[int, int]
"""[start, end) in Unix milliseconds."""


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device of the fleet."""

    node: NodeId
    index: int


@dataclass(slots=True)
class Hold:
    """An attempt has its devices during [start, end). `running_ms`: every rank had a process; `stop_ms`: asked to stop, or a node
    of it was lost, which is the end of all of it. `absent`: of ranks without which the gang went on, the spans in which it did.
    generation: the newest that was told of.

    released: since when it holds nothing of a node any more, of a gang that recovers inside (`recovers`) and goes on without it.
    Otherwise a lost node's devices are held like the others' until the attempt ends: only then does the job let go of them. Free
    from then on, they are unhealthy until the node speaks again. The stop of ranks that come back with it, at most the kill grace,
    is in no event, and so goes with the free time after it.
    """

    job: JobId
    attempt: AttemptId
    kind: Kind
    placement: Placement
    start: int
    end: int = FOREVER
    running_ms: int = FOREVER
    stop_ms: int = FOREVER
    recovers: bool = False
    released: dict[NodeId, int] = field(default_factory=dict)
    absent: dict[int, list[Span]] = field(default_factory=dict)
    generation: int = 0

    def goes_on_without(self, ranks: Iterable[int], generation: int, now: int) -> None:
        """From now on, unless a later generation was told of before: what ranks say comes in any order."""
        if generation <= self.generation:
            return
        self.generation, away = generation, set(ranks) & set(range(self.placement.world_size))
        for rank in away | set(self.absent):
            spans = self.absent.setdefault(rank, [])
            since = spans.pop()[0] if spans and spans[-1][1] == FOREVER else None
            if rank in away:
                spans.append((now if since is None else since, FOREVER))
            elif since is not None:
                spans.append((since, now))

    def copied(self) -> "Hold":
        """As it is now, of one that goes on."""
        return replace(self, released=dict(self.released), absent={rank: list(spans) for rank, spans in self.absent.items()})

    def end_on(self, node: NodeId) -> int:
        return min(self.end, self.released.get(node, FOREVER))

    @property
    def number(self) -> int:
        return split_attempt(self.attempt)[1]

    def devices(self) -> list[DeviceId]:
        """In rank order."""
        return [device for device, _ in self.shares()]

    def shares(self) -> list[tuple[DeviceId, int]]:
        """Likewise, with the thousandths that it has of each."""
        return [(DeviceId(part.node, index), part.milli) for part in self.placement.slices for index in part.devices]


@dataclass(slots=True)
class History:
    """What `fold` found.

    present: of each device the spans in which its node had it, with its type. away, drained: of each node. holds: in order of
    placement.
    idle_as: (time, category) changes of what a free device's time is booked as, the first at time 0.
    """

    present: dict[DeviceId, list[tuple[int, int, str]]] = field(default_factory=dict)
    away: dict[NodeId, list[Span]] = field(default_factory=dict)
    drained: dict[NodeId, list[Span]] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    idle_as: list[tuple[int, str]] = field(default_factory=lambda: [(0, IDLE)])


def fold(events: Iterable[Event]) -> History:
    """The whole log, oldest first. A clock that was set back is held still until it catches up: time only grows."""
    folding = Folding()
    folding.take(events)
    return folding.history()


class Folding:
    """The log folded so far. As `fold` does it of a whole one, and goes on with what comes later."""

    def __init__(self) -> None:
        self._now = 0
        self._history = History()
        self._shapes: dict[NodeId, tuple[int, dict[int, str]]] = {}
        self._away: dict[NodeId, int] = {}
        self._drained: dict[NodeId, int] = {}
        self._held: dict[AttemptId, Hold] = {}
        self._line = _Line()

    def take(self, events: Iterable[Event]) -> None:
        """The next ones of the log."""
        for event in events:
            self._now = max(self._now, event.at_ms)
            self._take(event, self._now)

    def history(self) -> History:
        """What the log says so far, in which what has no end has none. What is taken later changes nothing of it."""
        past = self._history
        lasting = [
            (DeviceId(node, index), (since, FOREVER, kind))
            for node, (since, devices) in self._shapes.items()
            for index, kind in devices.items()
        ]
        return History(
            present=_with(past.present, lasting),
            away=_with(past.away, ((node, (since, FOREVER)) for node, since in self._away.items())),
            drained=_with(past.drained, ((node, (since, FOREVER)) for node, since in self._drained.items())),
            holds=[hold.copied() if hold.attempt in self._held else hold for hold in past.holds],
            idle_as=list(past.idle_as),
        )

    def _take(self, event: Event, now: int) -> None:
        self._take_fleet(event, now)
        self._take_holds(event, now)
        self._take_parts(event, now)
        self._line.take(event)
        if self._line.idle_as != self._history.idle_as[-1][1]:
            self._history.idle_as.append((now, self._line.idle_as))

    def _take_fleet(self, event: Event, now: int) -> None:
        match event.body:
            case NodeUp(shape=shape):
                self._end_away(shape.node, now)
                devices = _types(shape)
                if shape.node not in self._shapes or self._shapes[shape.node][1] != devices:
                    self._end_shape(shape.node, now)
                    self._shapes[shape.node] = (now, devices)
            case NodeAway(node=node):
                self._away.setdefault(node, now)
            case NodeDrained(node=node):
                self._drained.setdefault(node, now)
            case NodeUndrained(node=node):
                self._end_drained(node, now)

    def _take_holds(self, event: Event, now: int) -> None:
        match event.body:
            case AttemptPlaced(job=job, attempt=attempt, placement=placement) if attempt not in self._held:
                kind, recovers = self._line.kind(job), bool(event.body.gang_port)
                self._held[attempt] = Hold(job, attempt, kind, placement, now, recovers=recovers)
                self._history.holds.append(self._held[attempt])
            case AttemptRunning(attempt=attempt) if attempt in self._held:
                self._held[attempt].running_ms = min(self._held[attempt].running_ms, now)
            case AttemptEnded(attempt=attempt) if attempt in self._held:
                hold = self._held.pop(attempt)
                hold.end = min(now, max(hold.start, event.body.ended_ms)) if event.body.ended_ms else now
            case StopRequested(job=job) | JobEvicted(job=job):
                for hold in self._held.values():
                    if hold.job == job:
                        hold.stop_ms = min(hold.stop_ms, now)

    def _take_parts(self, event: Event, now: int) -> None:
        match event.body:
            case PartLost(attempt=attempt, node=node) if attempt in self._held:
                hold = self._held[attempt]
                if not hold.recovers or any(part.node == node for part in hold.placement.slices[:1]):
                    hold.stop_ms = min(hold.stop_ms, now)
            case PartReleased(attempt=attempt, node=node) if attempt in self._held:
                self._held[attempt].released.setdefault(node, now)
            case RankSaid(attempt=attempt, fact=Recovered(absent=absent, generation=generation)) if attempt in self._held:
                self._held[attempt].goes_on_without(absent, generation, now)

    def _end_shape(self, node: NodeId, now: int) -> None:
        since, devices = self._shapes.pop(node, (now, {}))
        for index, kind in devices.items():
            self._history.present.setdefault(DeviceId(node, index), []).append((since, now, kind))

    def _end_away(self, node: NodeId, now: int) -> None:
        if node in self._away:
            self._history.away.setdefault(node, []).append((self._away.pop(node), now))

    def _end_drained(self, node: NodeId, now: int) -> None:
        if node in self._drained:
            self._history.drained.setdefault(node, []).append((self._drained.pop(node), now))


class _Line:
    """The waiting jobs in order (higher priority, then older), to know whose reason a free device's time is booked under."""

    def __init__(self) -> None:
        self._specs: dict[JobId, tuple[int, int, Kind]] = {}
        self._reasons: dict[JobId, str] = {}
        self._waiting: list[tuple[int, int, JobId]] = []

    def kind(self, job: JobId) -> Kind:
        return self._specs[job][2] if job in self._specs else "batch"

    @property
    def idle_as(self) -> str:
        """A job without a reason yet does not count: its turn comes within this tick."""
        return self._reasons[self._waiting[0][2]] if self._waiting else IDLE

    def take(self, event: Event) -> None:
        match event.body:
            case JobSubmitted(job=job, spec=spec):
                self._specs.setdefault(job, (-spec.priority, event.seq, spec.kind))
            case JobWaits(job=job, reason=reason):
                self._leave(job)
                self._wait(job, reason)
            case AttemptPlaced(job=job) | AttemptEnded(job=job) | StopRequested(job=job) | JobEvicted(job=job):
                self._leave(job)

    def _wait(self, job: JobId, reason: Reason) -> None:
        self._leave(job)
        category = waits_as(reason)
        if category is None:
            return
        self._reasons[job] = category
        insort(self._waiting, self._place(job))

    def _leave(self, job: JobId) -> None:
        if self._reasons.pop(job, None) is not None:
            del self._waiting[bisect_left(self._waiting, self._place(job))]

    def _place(self, job: JobId) -> tuple[int, int, JobId]:
        priority, seq, _ = self._specs.setdefault(job, (0, 0, "batch"))
        return priority, seq, job


def _with(past: Mapping[K, list[V]], lasting: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """`past`, copied, with one more at the end of each that `lasting` names."""
    found = {name: list(spans) for name, spans in past.items()}
    for name, span in lasting:
        found.setdefault(name, []).append(span)
    return found


def _types(shape: NodeShape) -> dict[int, str]:
    return {device.index: device.type for device in shape.devices}
