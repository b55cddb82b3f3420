"""What was heard from nodes, folded: messages to events, levels not edges. Pure but for the draft and the sightings it is given.

A report is a level: said twice, late or out of order it changes nothing. Sightings are memory only: after a restart every
node says Hello with all it holds, so they come back by themselves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from phalanx.core.activity import Signal
from phalanx.core.devices import NodeShape
from phalanx.core.events import AttemptRunning, NodeUp, PartReleased, StopRequested
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.isolation import keeps_apart
from phalanx.core.messages import Activity, AttemptReport, Hello, Phase, Renew, Report
from phalanx.core.states import Running, Starting
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.stopwatch import Stopwatch
from phalanx.operate.control.verdict import Reports, is_over, is_up, processes, released, verdict
from phalanx.operate.control.world import AttemptRecord, World

PLATFORM: Final = "phalanx"
"""Who asks, when the platform itself does."""

EPOCH_MAX: Final = 2**53
"""No home is led so often."""

EPOCH_LEAP: Final = 2**20
"""How far ahead of the database a node may honestly be: by the leaders since the copy was made from which it was restored. Without
this one node that lies would bring the epochs to their end at once, and every honest one that followed would be refused."""

_PHASES: Final[Sequence[Phase]] = ("starting", "running", "stopping", "ended")


@dataclass(frozen=True, slots=True)
class Heard:
    """A message, and when it came on the monotonic clock."""

    node: NodeId
    message: Hello | Report | Renew | Activity
    monotonic_ms: int


@dataclass(slots=True)
class Sightings:
    """The last that was seen of each node since this control plane started. Times are monotonic.

    greeted: shape and boot in the last Hello. heard_ms: of the last message. reports: the furthest report since the last Hello of
    each attempt that a node holds, the platform's own verdict of a loss included. started: of which a node was told to start its
    part and has said nothing since.

    activity: of each attempt, when its signs of work were last told, and which. warned: when whoever works in it was told that it
    is idle.

    ticked_ms: of the last tick. start_ms: of this control plane's start, which stands for the last message of a node that has
    not spoken since. quiet_ms: when nobody at all was within its lease, last. `leases` moves these three.
    """

    greeted: dict[NodeId, tuple[NodeShape, str]] = field(default_factory=dict)
    heard_ms: dict[NodeId, int] = field(default_factory=dict)
    reports: dict[tuple[NodeId, AttemptId], AttemptReport] = field(default_factory=dict)
    started: set[tuple[NodeId, AttemptId]] = field(default_factory=set)
    activity: dict[AttemptId, tuple[int, tuple[Signal, ...]]] = field(default_factory=dict)
    warned: dict[AttemptId, int] = field(default_factory=dict)
    ticked_ms: int = 0
    start_ms: int = 0
    quiet_ms: int = 0

    @classmethod
    def since(cls, monotonic_ms: int) -> "Sightings":
        """Of a control plane that starts now."""
        return cls(ticked_ms=monotonic_ms, start_ms=monotonic_ms, quiet_ms=monotonic_ms)

    def copy(self) -> "Sightings":
        """For one transaction: dropped when it fails."""
        return Sightings(
            dict(self.greeted),
            dict(self.heard_ms),
            dict(self.reports),
            set(self.started),
            dict(self.activity),
            dict(self.warned),
            self.ticked_ms,
            self.start_ms,
            self.quiet_ms,
        )

    def of(self, attempt: AttemptRecord) -> Reports:
        """What each node of the gang says of it, in node rank order."""
        return [self.reports.get((part.node, attempt.id)) for part in attempt.placement.slices]


def is_believable(epoch_seen: int, epoch: int) -> bool:
    """Whether a node can have seen a leader of that number when this one's is `epoch`."""
    return 0 <= epoch_seen <= min(EPOCH_MAX, epoch + EPOCH_LEAP)


def ready(world: World, seen: Sightings, strangers: bool) -> frozenset[NodeId]:
    """Nodes that may be given work: up, greeted since this control plane started, and not drained. strangers: whether teams do not
    trust each other; then nodes that keep jobs apart alone."""
    nodes = world.nodes
    up = frozenset(node for node in seen.greeted if node in nodes and nodes[node].up and not nodes[node].drained)
    return up - exposed(world) if strangers else up


def exposed(world: World) -> frozenset[NodeId]:
    """Nodes on which one job can reach another."""
    return frozenset(node for node, record in world.nodes.items() if not keeps_apart(record.shape.isolation))


def alive(world: World, seen: Sightings) -> frozenset[NodeId]:
    """Nodes where ranks live, or may: as they say themselves; of those that were not greeted, as the world says."""
    said = {node for (node, _), report in seen.reports.items() if report.phase != "ended"} | {node for node, _ in seen.started}
    return frozenset(said | {node for node, held in world.held().items() if held and node not in seen.greeted})


def take_in(draft: Draft, seen: Sightings, heard: Heard, at_ms: int) -> None:
    """Folds one message into the sightings, and what follows from it into the draft."""
    node, message = heard.node, heard.message
    if isinstance(message, Hello):
        if message.shape.node != node or not math.isfinite(message.shape.cpus):
            return
        seen.greeted[node] = (message.shape, message.boot)
    elif node not in seen.greeted:
        return
    seen.heard_ms[node] = heard.monotonic_ms
    _note_up(draft, seen, node, at_ms)
    match message:
        case Hello(attempts=reports):
            _hold_against(draft.world, seen, node, reports, at_ms)
            seen.reports.update({(node, report.attempt): report for report in reports})
            for attempt in _held_by(draft.world, node):
                settle(draft, seen, attempt, at_ms)
        case Report(report):
            _note(draft.world, seen, node, report)
            if draft.world.current(report.attempt, node) is not None:
                settle(draft, seen, report.attempt, at_ms)
        case Activity(attempt, signals) if draft.world.current(attempt, node) is not None:
            seen.activity[attempt] = (heard.monotonic_ms, signals)


def note_overdue(draft: Draft, seen: Sightings, held: Stopwatch, monotonic_ms: int, at_ms: int) -> None:
    """Asks attempts that reached their job's max_duration to stop. Not those of nodes that were not greeted since this control
    plane's start: they may have ended long ago. Nor those that are on their way out: their end says what becomes of the job."""
    for job, attempt in list(draft.world.holding()):
        limit_ms = job.spec.max_duration_ms
        if limit_ms is None or not isinstance(job.state, Starting | Running):
            continue
        if any(part.node not in seen.greeted and part.node not in attempt.lost for part in attempt.held.slices):
            continue
        if attempt.is_given_up or _is_ending(seen.of(attempt)):
            continue
        if held.held_ms(attempt, monotonic_ms) >= limit_ms:
            draft.add(StopRequested(job.id, "max_duration", PLATFORM), at_ms)


def note_released(draft: Draft, seen: Sightings, at_ms: int) -> None:
    """Takes from gangs what they have of nodes without which they go on, as their first node says, once nothing of the gang is
    there any more or the node is lost."""
    for job, attempt in list(draft.world.holding()):
        reports = seen.of(attempt)
        for node in released(attempt, reports):
            draft.add(PartReleased(job.id, attempt.id, node), at_ms)


def settle(draft: Draft, seen: Sightings, attempt: AttemptId, at_ms: int) -> None:
    """Moves the job of an attempt that holds devices when the reports of its whole gang say so; ranks that ended before anybody
    saw them run did run."""
    record = draft.world.attempts[attempt]
    job, reports = draft.world.jobs[record.job], seen.of(record)
    if isinstance(job.state, Starting) and is_up(record, reports):
        draft.add(AttemptRunning(job.id, attempt, processes(record, reports)), at_ms)
    if is_over(record, reports):
        draft.add(verdict(job, record, reports, at_ms), at_ms)


def _is_ending(reports: Reports) -> bool:
    return all(report is not None and report.phase in ("stopping", "ended") for report in reports)


def _note_up(draft: Draft, seen: Sightings, node: NodeId, at_ms: int) -> None:
    """A node that speaks is up; the log hears of it when that, its shape or its boot is news."""
    shape, boot = seen.greeted[node]
    known = draft.world.nodes.get(node)
    if known is None or not known.up or (known.shape, known.boot) != (shape, boot):
        draft.add(NodeUp(shape, boot), at_ms)


def _note(world: World, seen: Sightings, node: NodeId, report: AttemptReport) -> None:
    """Keeps the report that says more: of a later phase, of more exits, of a gang that goes on without more nodes, of later faults
    and requests, of more processes: a clock that was set back must not make that old. Of two that say as much the later one."""
    seen.started.discard((node, report.attempt))
    known = seen.reports.get((node, report.attempt))
    recovers = _recovers(world, report.attempt)
    if known is None or _rank_of(report, recovers) >= _rank_of(known, recovers):
        seen.reports[node, report.attempt] = report


def _rank_of(report: AttemptReport, recovers: bool) -> tuple[int, ...]:
    """Processes of a gang that recovers inside come and go."""
    said = (_PHASES.index(report.phase), len(report.exits), len(report.without), report.faults, report.traces)
    return (*said, report.at_ms) if recovers else (*said, len(report.ranks), report.at_ms)


def _recovers(world: World, attempt: AttemptId) -> bool:
    record = world.attempts.get(attempt)
    return record is not None and world.jobs[record.job].spec.recovery.in_gang


def _hold_against(world: World, seen: Sightings, node: NodeId, reports: Sequence[AttemptReport], at_ms: int) -> None:
    """Holds what a Hello lists against what the node should hold: ranks that were there and are not now are lost. What it does list
    lives as it says, whatever was made of an earlier one: two machines may go by one name.

    An attempt that was never reported is none of them: its start may not have arrived, so it is sent again. What was sent over
    the connection before this one arrives no more.
    """
    listed = {report.attempt for report in reports}
    held = _held_by(world, node)
    seen.started = {start for start in seen.started if start[0] != node}
    for of_node, attempt in list(seen.reports):
        if of_node == node and attempt not in listed and attempt not in held:
            del seen.reports[of_node, attempt]
    for attempt in [attempt for attempt in held if attempt not in listed]:
        known = seen.reports.get((node, attempt))
        was_there = known is not None or world.attempts[attempt].running_ms is not None
        if was_there and (known is None or known.phase != "ended"):
            lost = "it came back without them"
            exits = known.exits if known else ()
            seen.reports[node, attempt] = AttemptReport(attempt, 0, "ended", (), exits, at_ms, lost)


def _held_by(world: World, node: NodeId) -> list[AttemptId]:
    """In one order: what is heard gives the same events in the same order, also in another process."""
    return [attempt for attempt in world.on_nodes.get(node, ()) if world.current(attempt, node) is not None]
