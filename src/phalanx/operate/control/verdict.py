"""How an attempt stands and how it ended, from what the nodes of its gang say: who failed first, what becomes of the job. Pure."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.core.errors import Exit
from phalanx.core.events import AttemptEnded
from phalanx.core.ids import NodeId
from phalanx.core.interruptions import WITH_BOOT, WITH_LEASE, WITH_PLATFORM
from phalanx.core.messages import AttemptReport, RankExit, RankProcess
from phalanx.core.states import StopCause, Stopping
from phalanx.decide import restarts
from phalanx.operate.control.world import AttemptRecord, JobRecord

Reports = Sequence[AttemptReport | None]
"""What each node of a gang says of it, in node rank order."""


def broken(attempt: AttemptRecord, reports: Reports) -> bool:
    """Whether the gang cannot go on: a rank failed, a node was lost or lost its part, or ended it without all of its exits."""
    return bool(_causes(attempt, reports))


def goes_without(attempt: AttemptRecord, reports: Reports) -> frozenset[int]:
    """Nodes, by their rank in the gang, without which it goes on, as its first node says. None of a gang that does not recover
    inside."""
    said = reports[0].without if attempt.gang_port and reports[0] is not None else ()
    known = (number for number, part in enumerate(attempt.placement.slices) if part.node in attempt.released)
    return frozenset((*said, *known)) - {0}


def awaited(attempt: AttemptRecord, reports: Reports) -> list[NodeId]:
    """Nodes whose shims have not reached the coordinator of a gang that recovers inside, as its first node says."""
    said = reports[0].awaits if attempt.gang_port and reports[0] is not None else ()
    return [part.node for number, part in enumerate(attempt.placement.slices) if number and number in said]


def gone(attempt: AttemptRecord, reports: Reports) -> frozenset[int]:
    """Other nodes than the first of a gang that recovers inside, that are lost or have lost their part, whatever the first says."""
    parts = enumerate(_parts(attempt, reports)) if attempt.gang_port else ()
    return frozenset(number for number, part in parts if number and part.is_gone)


def released(attempt: AttemptRecord, reports: Reports) -> list[NodeId]:
    """Nodes without which the gang goes on, of which it holds something yet though nothing of it is there, or they are lost."""
    parts = _parts(attempt, reports) if attempt.gang_port else []
    return [part.node for part in parts if part.left and part.is_over and part.node not in attempt.released]


def is_up(attempt: AttemptRecord, reports: Reports) -> bool:
    """Whether every rank has a process, or had one, whatever the phase: reports may coalesce. A node says for ever which processes
    its ranks had; an exit without one is of a rank that was never started. A gang may go on without a node that never came up."""
    return all(part.is_up or part.left for part in _parts(attempt, reports))


def is_over(attempt: AttemptRecord, reports: Reports) -> bool:
    """Whether every part has ended or is lost, whatever a lost one's node says later."""
    return all(part.is_over for part in _parts(attempt, reports))


def processes(attempt: AttemptRecord, reports: Reports) -> tuple[RankProcess, ...]:
    """Of every rank that has one, in rank order."""
    return tuple(rank for part in _parts(attempt, reports) for rank in part.processes)


def is_done(job: JobRecord, attempt: AttemptRecord, reports: Reports) -> bool:
    """Whether every rank is known to have exited with code 0, and the job has nothing more to do, though logs may still come."""
    parts = [part for part in _parts(attempt, reports) if not part.left]
    well = all(not part.lost and [item.code for item in part.exits] == [0] * len(part.ranks) for part in parts)
    return well and job.spec.kind != "service"


def verdict(job: JobRecord, attempt: AttemptRecord, reports: Reports, at_ms: int) -> AttemptEnded:
    """How the attempt ended, and whether and when another follows."""
    cause = _first(_causes(attempt, reports))
    stop = _stop(job, cause)
    moved_on = stop in ("pause", "drain", "preempt", "down")
    apart = stop is None and _fell_apart(attempt, reports, cause)
    fruitless = apart and attempt.saved_step <= job.saved_step
    cause = _charged(job, cause) if fruitless else cause
    exits = tuple(sorted((item for part in _parts(attempt, reports) for item in part.exits), key=lambda item: item.rank))
    interrupted = moved_on or (cause is not None and cause.interrupted)
    again = _again(job, attempt, cause) if stop is None else stop in ("drain", "preempt", "down")
    ended_ms = _ended_ms(attempt, reports, at_ms)
    held_ms = ended_ms - attempt.placed_ms
    put_off = again and (not interrupted or apart)
    delay_ms = restarts.delay_ms(held_ms, bool(attempt.checkpoints), job.quick_ends) if put_off else 0
    return AttemptEnded(
        job.id,
        attempt.id,
        cause is None and not moved_on,
        again,
        _detail(job, attempt, cause, stop),
        exits,
        not_before_ms=at_ms + delay_ms if delay_ms else 0,
        interrupted=interrupted,
        ended_ms=ended_ms if ended_ms != at_ms else 0,
        fruitless=fruitless,
    )


def _fell_apart(attempt: AttemptRecord, reports: Reports, cause: "_Cause | None") -> bool:
    """Whether a gang that recovers inside was interrupted though no node was lost or took its part along: a shim died, or shims
    did not reach each other. It uses up no restart, as where one was, but may come again at once and for ever."""
    if not attempt.gang_port or attempt.missed or cause is None or not cause.interrupted:
        return False
    parts = [part for part in _parts(attempt, reports) if not part.left]
    return any(part.is_orphaned or part.is_cut_off for part in parts) and not any(part.is_taken_along for part in parts)


def _charged(job: JobRecord, cause: "_Cause | None") -> "_Cause | None":
    """Of an interruption without progress: after so many others it uses up a restart, so that a job comes to an end."""
    if cause is None or job.fruitless < restarts.FRUITLESS_MAX:
        return cause
    text = f"{cause.text}; a restart is used up, as {job.fruitless} interruptions before it brought no progress either"
    return replace(cause, text=text, interrupted=False)


def _ended_ms(attempt: AttemptRecord, reports: Reports, at_ms: int) -> int:
    """When the last rank was gone: as the nodes say, if all do, though neither before the placement nor after now."""
    said = [report.ended_ms if report else 0 for report in reports]
    return min(at_ms, max(attempt.placed_ms, *said)) if all(said) else at_ms


def _stop(job: JobRecord, cause: "_Cause | None") -> StopCause | None:
    """Which wish ended it; None where none did. A trainer of ours that ends well under a pause or a drain was done before; a script
    may as well have saved its state and left, so it counts as stopped."""
    match job.state:
        case Stopping(cause="pause" | "drain" | "preempt" | "down") if cause is None and job.spec.recipe:
            return None
        case Stopping(cause=asked):
            return asked
        case _:
            return None


def _again(job: JobRecord, attempt: AttemptRecord, cause: "_Cause | None") -> bool:
    if cause is not None and (cause.interrupted or cause.refused):
        return cause.interrupted
    match job.spec.kind:
        case "service":
            return True
        case "interactive" | "shell" | "notebook":
            return False
        case _:
            mends = cause is not None and not _is_bad_input(job, cause)
            return mends and attempt.number - 1 - job.interruptions < job.spec.max_restarts


def _is_bad_input(job: JobRecord, cause: "_Cause") -> bool:
    """Our own trainers say by their exit code that the same input fails again. A script's codes mean what its author likes."""
    return bool(job.spec.recipe) and cause.code == Exit.BAD_INPUT


def _detail(job: JobRecord, attempt: AttemptRecord, cause: "_Cause | None", stop: StopCause | None) -> str:
    if stop is not None:
        words = {
            "cancel": "cancelled",
            "pause": "paused",
            "drain": "moved off a drained node",
            "preempt": _evicted(job, attempt),
            "down": "stopped with the platform",
            "max_duration": f"stopped: it ran for max_duration ({job.spec.max_duration})",
            "idle": f"idle: {job.state.why}" if isinstance(job.state, Stopping) else "idle",
        }
        return "; ".join((words[stop], *(_lost(node, why) for node, why in sorted(attempt.lost.items()))))
    if cause is None:
        return "every rank exited with code 0"
    if _is_bad_input(job, cause):
        return f"{cause.text} (bad input): {cause.said}" if cause.said else f"{cause.text} (bad input; see its log)"
    return f"{cause.text}: {cause.said}" if cause.said else cause.text


def _evicted(job: JobRecord, attempt: AttemptRecord) -> str:
    if attempt.evicted_why == "spot":
        return "moved off a node that goes away"
    if attempt.evicted_why == "home":
        return "moved to nodes that its queue is guaranteed"
    if attempt.evicted_for in (None, job.id):
        return "stopped to start again in another size"
    return f"made room for {attempt.evicted_for}"


@dataclass(frozen=True, slots=True)
class _Part:
    """One node's part of a gang and what it says of it; only what concerns the ranks it has. `lost`: why it counts as gone.

    awaits: of the first, nodes that its coordinator waited for. left: the gang goes on without it. led: the first node's shim,
    which lives, will say what a loss of this part means: that the gang goes on without it, or ends. released: the gang holds
    nothing there any more.
    """

    node: NodeId
    ranks: range
    report: AttemptReport | None
    lost: str
    left: bool = False
    led: bool = False
    released: bool = False
    awaits: tuple[NodeId, ...] = ()

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it can be there any more, though its ranks have not done all there was to do."""
        return bool(self.lost) or (self.report is not None and bool(self.report.lost or self.report.interrupted))

    @property
    def is_orphaned(self) -> bool:
        """Whether its shim died, though its node lives and nobody stopped it."""
        return not self.lost and self.report is not None and bool(self.report.lost) and not self.report.interrupted

    @property
    def is_cut_off(self) -> bool:
        """Whether its shim ended it since it did not reach another one of the gang."""
        return self.report is not None and self.report.interrupted and not self.is_taken_along

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped with its node's platform."""
        return self.report is not None and self.report.interrupted and self.report.lost in ("", WITH_PLATFORM)

    @property
    def is_taken_along(self) -> bool:
        """Whether it ended with something of its node: the platform, the lease, the boot. It is no consequence of another part's
        end."""
        return self.is_stopped or (self.report is not None and self.report.lost in (WITH_LEASE, WITH_BOOT))

    @property
    def is_over(self) -> bool:
        return bool(self.lost) or self.released or (self.report is not None and self.report.phase == "ended")

    @property
    def is_up(self) -> bool:
        return not self.lost and len(self.processes) == len(self.ranks)

    @property
    def processes(self) -> list[RankProcess]:
        by_rank = {item.rank: item for item in self.report.ranks} if self.report else {}
        return [by_rank[rank] for rank in self.ranks if rank in by_rank]

    @property
    def exits(self) -> list[RankExit]:
        by_rank = {item.rank: item for item in self.report.exits} if self.report else {}
        return [by_rank[rank] for rank in self.ranks if rank in by_rank]


def _parts(attempt: AttemptRecord, reports: Reports) -> list[_Part]:
    parts, first, without, leads = [], 0, goes_without(attempt, reports), _leads(attempt, reports)
    for number, (piece, report) in enumerate(zip(attempt.placement.slices, reports, strict=True)):
        ranks, lost = range(first, first + len(piece.devices)), attempt.lost.get(piece.node, "")
        led, released, awaits = leads and number > 0, piece.node in attempt.released, () if number else awaited(attempt, reports)
        parts.append(_Part(piece.node, ranks, report, lost, number in without, led, released, tuple(awaits)))
        first += len(piece.devices)
    return parts


def _leads(attempt: AttemptRecord, reports: Reports) -> bool:
    """Whether the gang has a coordinator that lives."""
    report = reports[0]
    there = attempt.placement.slices[0].node not in attempt.lost
    return bool(attempt.gang_port) and there and (report is None or report.phase != "ended")


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why a node's part failed, in one line; `code` is the first failed rank's exit code, if a rank failed, and `said` its error.

    When a part was `interrupted`, that is the cause: what the rest of the gang did then is its consequence. `refused`: as in the
    report. `with_node`: it came with the node's loss, or with something else of it, so it is nobody's consequence.
    """

    at_ms: int
    text: str
    code: int | None = None
    said: str = ""
    interrupted: bool = False
    refused: bool = False
    with_node: bool = False


def _first(causes: list[_Cause]) -> _Cause | None:
    """Why the gang ended; of one that was interrupted, what came with a node rather than what its other nodes made of that."""
    first = min(causes, key=lambda one: (not one.interrupted, one.at_ms, one.text), default=None)
    if first is None or not first.interrupted:
        return first
    origin = min(causes, key=lambda one: (not one.with_node, not one.interrupted, one.at_ms, one.text))
    return replace(origin, interrupted=True) if origin.with_node else first


def _causes(attempt: AttemptRecord, reports: Reports) -> list[_Cause]:
    """One for each node whose part failed."""
    parts = _parts(attempt, reports)
    all_stopped = all(part.is_stopped for part in parts)
    return [cause for part in parts if (cause := _cause(part, all_stopped)) is not None]


def _cause(part: _Part, all_stopped: bool) -> _Cause | None:
    report = part.report
    if part.left or (part.led and not _fell_by_itself(part)):
        return None
    if part.lost:
        return _Cause(0, _lost(part.node, part.lost), interrupted=True, with_node=True)
    if report is None:
        return None
    if report.interrupted:
        at_ms = report.ended_ms or report.at_ms
        text = "stopped with the platform" if all_stopped else _interrupted(part, report.lost)
        return _Cause(at_ms, text, interrupted=True, with_node=part.is_taken_along)
    if report.refused:
        return _Cause(report.ended_ms or report.at_ms, report.refused, refused=True)
    failed = [item for item in part.exits if item.code != 0]
    if failed and (any(item.first for item in failed) or not report.lost):
        first = min(failed, key=lambda item: (not item.first, item.at_ms, item.rank))
        return _Cause(first.at_ms, f"rank {first.rank} {_how(first.code)}", first.code, first.said)
    if report.lost:
        if failed:  # none of them fell by itself
            return _Cause(report.ended_ms or report.at_ms, f"stopped on node {part.node}: {report.lost}")
        text = f"node {part.node} lost its ranks: {report.lost}"
        return _Cause(report.ended_ms or report.at_ms, text, with_node=part.is_taken_along)
    if report.phase == "ended" and len(part.exits) < len(part.ranks):
        return _Cause(report.at_ms, f"node {part.node} ended it before every rank had started")
    return None


def _fell_by_itself(part: _Part) -> bool:
    """Whether it is more than a loss: a rank failed, nobody having ended it, or the part never came to run."""
    report = part.report
    if report is None or (part.is_gone and not report.refused):
        return False
    unstarted = report.phase == "ended" and len(part.exits) < len(part.ranks)
    return bool(report.refused) or any(item.first for item in part.exits) or unstarted


def _interrupted(part: _Part, why: str) -> str:
    if part.is_stopped:
        return f"node {part.node} ended with its platform"
    if part.awaits and part.is_cut_off:
        more = f" and {len(part.awaits) - 1} more" if len(part.awaits) > 1 else ""
        return f"node {part.awaits[0]}{more} did not come to the gang: {why}"
    return f"stopped on node {part.node}: {why}"


def _lost(node: NodeId, why: str) -> str:
    return f"node {node} was lost: {why}"


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
