"""What was heard from nodes, folded: messages to events, levels not edges. Pure but for the draft and the sightings it is given.

A report is a level: said twice, late or out of order it changes nothing. Sightings are memory only: after a restart every
node says Hello with all it holds, so they come back by themselves.
"""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from phalanx.core.devices import NodeShape
from phalanx.core.errors import Exit
from phalanx.core.events import AttemptEnded, AttemptRunning, NodeAway, NodeUp, StopRequested
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import AttemptReport, Hello, Phase, RankExit, RankProcess, Renew, Report
from phalanx.core.states import Running, Starting, Stopping
from phalanx.decide import restarts
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.stopwatch import Stopwatch
from phalanx.operate.control.world import AttemptRecord, JobRecord, World, slice_of

PLATFORM: Final = "phalanx"
"""Who asks, when the platform itself does."""

_PHASES: Final[Sequence[Phase]] = ("starting", "running", "stopping", "ended")


@dataclass(frozen=True, slots=True)
class Heard:
    """A message, and when it came on the monotonic clock."""

    node: NodeId
    message: Hello | Report | Renew
    monotonic_ms: int


@dataclass(slots=True)
class Sightings:
    """The last that was seen of each node since this control plane started.

    greeted: shape and boot in the last Hello. heard_ms: monotonic time of the last message. reports: the furthest report of
    each attempt that a node holds, the platform's own verdict of a loss included.
    """

    greeted: dict[NodeId, tuple[NodeShape, str]] = field(default_factory=dict)
    heard_ms: dict[NodeId, int] = field(default_factory=dict)
    reports: dict[tuple[NodeId, AttemptId], AttemptReport] = field(default_factory=dict)

    def copy(self) -> "Sightings":
        """For one transaction: dropped when it fails."""
        return Sightings(dict(self.greeted), dict(self.heard_ms), dict(self.reports))

    def of(self, attempt: AttemptRecord) -> list[AttemptReport | None]:
        """What each node of the gang says of it, in node rank order."""
        return [self.reports.get((part.node, attempt.id)) for part in attempt.placement.slices]


def ready(world: World, seen: Sightings) -> frozenset[NodeId]:
    """Nodes that may be given work: up, and greeted since this control plane started."""
    return frozenset(node for node in seen.greeted if node in world.nodes and world.nodes[node].up)


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
            for report in reports:
                _note(seen, node, report)
            for attempt in _held_by(draft.world, node):
                _settle(draft, seen, node, attempt, at_ms)
        case Report(report):
            _note(seen, node, report)
            _settle(draft, seen, node, report.attempt, at_ms)


def note_away(draft: Draft, seen: Sightings, monotonic_ms: int, start_ms: int, lease_ms: int, at_ms: int) -> None:
    """Marks nodes whose lease ran out. A node not heard since `start_ms`, this control plane's start, has a lease from then."""
    for node, record in list(draft.world.nodes.items()):
        if record.up and monotonic_ms - seen.heard_ms.get(node, start_ms) > lease_ms:
            draft.add(NodeAway(node), at_ms)


def note_overdue(draft: Draft, seen: Sightings, held: Stopwatch, monotonic_ms: int, at_ms: int) -> None:
    """Asks attempts that reached their job's max_duration to stop. Not those of nodes that were not greeted since this control
    plane's start: they may have ended long ago. Nor those that are on their way out: their end says what becomes of the job."""
    for job, attempt in list(draft.world.holding()):
        limit_ms = job.spec.max_duration_ms
        if limit_ms is None or not isinstance(job.state, Starting | Running):
            continue
        if any(part.node not in seen.greeted for part in attempt.placement.slices) or _is_ending(seen.of(attempt)):
            continue
        if held.held_ms(attempt, monotonic_ms) >= limit_ms:
            draft.add(StopRequested(job.id, "max_duration", PLATFORM), at_ms)


def _is_ending(reports: Sequence[AttemptReport | None]) -> bool:
    return all(report is not None and report.phase in ("stopping", "ended") for report in reports)


def broken(attempt: AttemptRecord, reports: Sequence[AttemptReport | None]) -> bool:
    """Whether the gang cannot go on: a rank failed, a node lost its part, or ended it without all of its exits."""
    return bool(_causes(attempt, reports))


def _note_up(draft: Draft, seen: Sightings, node: NodeId, at_ms: int) -> None:
    """A node that speaks is up; the log hears of it when that, its shape or its boot is news."""
    shape, boot = seen.greeted[node]
    known = draft.world.nodes.get(node)
    if known is None or not known.up or (known.shape, known.boot) != (shape, boot):
        draft.add(NodeUp(shape, boot), at_ms)


def _note(seen: Sightings, node: NodeId, report: AttemptReport) -> None:
    """Keeps the report that is further; of two in the same phase, the later."""
    known = seen.reports.get((node, report.attempt))
    if known is None or _rank_of(report) >= _rank_of(known):
        seen.reports[node, report.attempt] = report


def _rank_of(report: AttemptReport) -> tuple[int, int]:
    return _PHASES.index(report.phase), report.at_ms


def _hold_against(world: World, seen: Sightings, node: NodeId, reports: Sequence[AttemptReport], at_ms: int) -> None:
    """Holds what a Hello lists against what the node should hold: ranks that were there and are not now are lost.

    An attempt that was never reported is none of them: its start may not have arrived, so it is sent again.
    """
    listed = {report.attempt for report in reports}
    held = _held_by(world, node)
    for of_node, attempt in list(seen.reports):
        if of_node == node and attempt not in listed and attempt not in held:
            del seen.reports[of_node, attempt]
    for attempt in held - listed:
        known = seen.reports.get((node, attempt))
        was_there = known is not None or world.attempts[attempt].running_ms is not None
        if was_there and (known is None or known.phase != "ended"):
            lost = "it came back without them"
            exits = known.exits if known else ()
            seen.reports[node, attempt] = AttemptReport(attempt, 0, "ended", (), exits, at_ms, lost)


def _held_by(world: World, node: NodeId) -> set[AttemptId]:
    return {attempt.id for _, attempt in world.holding() if slice_of(attempt.placement, node)}


def _settle(draft: Draft, seen: Sightings, node: NodeId, attempt: AttemptId, at_ms: int) -> None:
    """Moves the job when the reports of its whole gang say so; ranks that ended before anybody saw them run did run."""
    found = draft.world.current(attempt, node)
    if found is None:
        return
    job, record = found
    reports = seen.of(record)
    if isinstance(job.state, Starting) and all(_is_up(part) for part in _parts(record, reports)):
        ranks = (rank for part in _parts(record, reports) for rank in part.processes)
        draft.add(AttemptRunning(job.id, attempt, tuple(sorted(ranks, key=lambda rank: rank.rank))), at_ms)
    if all(report is not None and report.phase == "ended" for report in reports):
        draft.add(_verdict(job, record, reports, at_ms), at_ms)


def _verdict(job: JobRecord, attempt: AttemptRecord, reports: Sequence[AttemptReport | None], at_ms: int) -> AttemptEnded:
    """How the attempt ended, and whether and when another follows."""
    causes = _causes(attempt, reports)
    cause = min(causes, key=lambda one: (not one.interrupted, one.at_ms, one.text), default=None)
    exits = tuple(sorted((item for part in _parts(attempt, reports) for item in part.exits), key=lambda item: item.rank))
    interrupted = cause is not None and cause.interrupted
    again = not isinstance(job.state, Stopping) and _again(job, attempt, cause)
    ended_ms = _ended_ms(attempt, reports, at_ms)
    held_ms = ended_ms - attempt.placed_ms
    put_off = again and not interrupted
    delay_ms = restarts.delay_ms(held_ms, bool(attempt.checkpoints), job.quick_ends) if put_off else 0
    return AttemptEnded(
        job.id,
        attempt.id,
        cause is None,
        again,
        _detail(job, cause),
        exits,
        not_before_ms=at_ms + delay_ms if delay_ms else 0,
        interrupted=interrupted,
        ended_ms=ended_ms if ended_ms != at_ms else 0,
    )


def _ended_ms(attempt: AttemptRecord, reports: Sequence[AttemptReport | None], at_ms: int) -> int:
    """When the last rank was gone: as the nodes say, if all do, though neither before the placement nor after now."""
    said = [report.ended_ms if report else 0 for report in reports]
    return min(at_ms, max(attempt.placed_ms, *said)) if all(said) else at_ms


def _again(job: JobRecord, attempt: AttemptRecord, cause: "_Cause | None") -> bool:
    if cause is not None and cause.interrupted:
        return True
    match job.spec.kind:
        case "service":
            return True
        case "interactive":
            return False
        case _:
            mends = cause is not None and not _is_bad_input(job, cause)
            return mends and attempt.number - 1 - job.interruptions < job.spec.max_restarts


def _is_bad_input(job: JobRecord, cause: "_Cause") -> bool:
    """Our own trainers say by their exit code that the same input fails again. A script's codes mean what its author likes."""
    return bool(job.spec.recipe) and cause.code == Exit.BAD_INPUT


def _detail(job: JobRecord, cause: "_Cause | None") -> str:
    match job.state:
        case Stopping(cause="cancel"):
            return "cancelled"
        case Stopping():
            return f"stopped: it ran for max_duration ({job.spec.max_duration})"
        case _ if cause is None:
            return "every rank exited with code 0"
        case _:
            return f"{cause.text} (bad input; see its log)" if _is_bad_input(job, cause) else cause.text


@dataclass(frozen=True, slots=True)
class _Part:
    """One node's part of a gang and what it says of it; only what concerns the ranks it has."""

    node: NodeId
    ranks: range
    report: AttemptReport | None

    @property
    def processes(self) -> list[RankProcess]:
        by_rank = {item.rank: item for item in self.report.ranks} if self.report else {}
        return [by_rank[rank] for rank in self.ranks if rank in by_rank]

    @property
    def exits(self) -> list[RankExit]:
        by_rank = {item.rank: item for item in self.report.exits} if self.report else {}
        return [by_rank[rank] for rank in self.ranks if rank in by_rank]


def _parts(attempt: AttemptRecord, reports: Sequence[AttemptReport | None]) -> list[_Part]:
    parts, first = [], 0
    for piece, report in zip(attempt.placement.slices, reports, strict=True):
        parts.append(_Part(piece.node, range(first, first + len(piece.devices)), report))
        first += len(piece.devices)
    return parts


def _is_up(part: _Part) -> bool:
    """Every rank has a process, or had one and it exited meanwhile, whatever the phase: reports may coalesce."""
    return {item.rank for item in part.processes} | {item.rank for item in part.exits} == set(part.ranks)


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why a node's part failed, in one line; `code` is the first failed rank's exit code, if a rank failed. When a part was
    `interrupted`, that is the cause: what the rest of the gang did then is its consequence."""

    at_ms: int
    text: str
    code: int | None = None
    interrupted: bool = False


def _causes(attempt: AttemptRecord, reports: Sequence[AttemptReport | None]) -> list[_Cause]:
    """One for each node whose part failed; the earliest is why the gang ended."""
    return [cause for part in _parts(attempt, reports) if (cause := _cause(part)) is not None]


def _cause(part: _Part) -> _Cause | None:
    report = part.report
    if report is None:
        return None
    if report.interrupted:
        return _Cause(report.ended_ms or report.at_ms, "stopped with the platform", interrupted=True)
    failed = [item for item in part.exits if item.code != 0]
    if failed:
        first = min(failed, key=lambda item: (not item.first, item.at_ms, item.rank))
        return _Cause(first.at_ms, f"rank {first.rank} {_how(first.code)}", first.code)
    if report.lost:
        return _Cause(report.ended_ms or report.at_ms, f"node {part.node} lost its ranks: {report.lost}")
    if report.phase == "ended" and len(part.exits) < len(part.ranks):
        return _Cause(report.at_ms, f"node {part.node} ended it before every rank had started")
    return None


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
