"""Traces that people ask a running job for, as the event that follows; or why it cannot be. Pure: a world in, an event out."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from phalanx.core import features
from phalanx.core.artifact_names import FILES_MAX
from phalanx.core.errors import Conflict, SpecError
from phalanx.core.events import TracesRequested
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.records import StepRecord
from phalanx.core.states import Running
from phalanx.core.trace_request import UNASKABLE, MissedView, TraceRequest, TraceRequestView, TracesAsked, check_asked
from phalanx.operate.control.asked import job_of
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.world import AttemptRecord, JobRecord, TraceRecord, World

AHEAD_MS: Final = 5_000
"""So long before the first of them a request is made: by then each rank has it, also where a server or an agent stalls a while."""
AHEAD_STEPS: Final = 2
"""At least: the one that is being made while its predecessor's record is under way, and one to get ready in."""
OLD_MS_MAX: Final = 30_000
"""A newest step that ended longer ago, and a step's time more, says little of where the job is now: its records are held up."""
FILES_OF_TRACE: Final = 3
"""That a rank leaves for a request: its trace, and what it says as JSON and as text."""
FILES_FOR_TRACES: Final = FILES_MAX // 2
"""Beyond so many files of an attempt no more are asked for: they count for good, and the rest is for what its ranks leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Where an attempt stood when somebody looked, which says nothing of one that followed since. step_ms: of the faster of the
    steps looked at. files: of the attempt that are kept."""

    attempt: AttemptId
    newest: StepRecord
    step_ms: float
    files: int


def pace_of(attempt: AttemptId, newest: StepRecord, before: StepRecord | None, files: int) -> Pace:
    """before: an earlier step of the same rank. A step that took long, such as one with a save, must not make the rest look slow:
    the first of them would be past before every rank has heard."""
    times_ms: list[float] = [newest.ended_ms - newest.started_ms]
    if before is not None and before.step < newest.step:
        times_ms += [before.ended_ms - before.started_ms, (newest.ended_ms - before.ended_ms) / (newest.step - before.step)]
    return Pace(attempt=attempt, newest=newest, step_ms=max(1.0, min(times_ms)), files=files)


def requested(
    world: World, seen: Sightings, job: JobId, asked: TracesAsked, pace: Pace | None, by: str, now_ms: int
) -> TracesRequested:
    """Raises NotFound, Conflict, SpecError."""
    check_asked(asked)
    record = job_of(world, job)
    attempt = _running(world, record)
    _refuse_ranks(attempt, asked)
    _refuse_deaf(world, seen, attempt, asked)
    if pace is None or pace.attempt != attempt.id:
        fix = "it has not said a step yet; ask once it makes some (a script says them by phalanx.run(), see docs/library.md)"
        raise Conflict("job", job, fix)
    _refuse_old(job, pace, now_ms)
    _refuse_second(attempt, pace.newest.step)
    _refuse_many(attempt, asked, pace.files)
    first = pace.newest.step + AHEAD_STEPS + math.ceil(AHEAD_MS / pace.step_ms)
    number = attempt.traces[-1].request.number + 1 if attempt.traces else 1
    request = TraceRequest(number=number, first=first, count=asked.steps, ranks=asked.ranks)
    _refuse_end(record, request, pace.newest)
    _refuse_overlap(record, request)
    return TracesRequested(job, attempt.id, request, by)


def view_of(job: JobRecord, attempt: AttemptRecord, traces: TraceRecord, there: Collection[int], at_step: int) -> TraceRequestView:
    """there: ranks whose summary has come, whatever else they said."""
    request = traces.request
    missed = {one.rank: one.why for one in traces.missed if one.rank not in there and request.is_of(one.rank)}
    of = request.ranks or range(attempt.placement.world_size)
    return TraceRequestView(
        job=job.id, attempt=attempt.id, number=request.number, first=request.first, last=request.last, ranks=request.ranks,
        by=traces.by, at_ms=traces.at_ms, at_step=at_step, traced=sum(rank in there for rank in of),
        missed=tuple(MissedView(rank=rank, why=why) for rank, why in sorted(missed.items())),
        left=tuple(rank for rank in of if rank not in there and rank not in missed and rank not in attempt.absent),
        ended=attempt.ended_ms is not None,
    )  # fmt: skip


def _running(world: World, job: JobRecord) -> AttemptRecord:
    if job.spec.kind != "train":
        raise Conflict("job", job.id, f"traces are of steps, which jobs of kind: train have; it is of kind: {job.spec.kind}")
    if not isinstance(job.state, Running) or job.attempt is None:
        raise Conflict(
            "job", job.id, f"it is {job.state.name}; ask for traces while it runs, or in its file: profile: {{first: 100}}"
        )
    return world.attempts[job.attempt]


def _refuse_ranks(attempt: AttemptRecord, asked: TracesAsked) -> None:
    size = attempt.placement.world_size
    unknown = [rank for rank in asked.ranks if rank >= size]
    if unknown:
        raise SpecError("ranks", unknown[0], f"{attempt.id} has no such rank; write 0 to {size - 1}")
    if asked.ranks and set(asked.ranks) <= set(attempt.absent):
        raise Conflict("ranks", asked.ranks[0], f"{attempt.id} goes on without it now; name others, or none for all that there are")


def _refuse_deaf(world: World, seen: Sightings, attempt: AttemptRecord, asked: TracesAsked) -> None:
    """A node of an asked rank that would not hear of it: its ranks leave no trace, and those of others wait for none."""
    nodes = _nodes_of(attempt, asked.ranks)
    for part, report in zip(attempt.placement.slices, seen.of(attempt), strict=True):
        node = world.nodes[part.node]
        if part.node in attempt.released or part.node not in nodes:
            continue
        if features.TRACES not in node.shape.features:
            fix = f"the agent of node {part.node} is too old to ask its ranks for traces; update it, or ask in the job's file"
            raise Conflict("job", attempt.job, fix)
        if report is not None and report.traces == UNASKABLE:
            fix = f"an older agent started its ranks on {part.node}, which hear of no request; its next attempt's will"
            raise Conflict("job", attempt.job, fix)
        if not node.up:
            raise Conflict("job", attempt.job, f"nothing was heard of node {part.node} for a while; ask again once it is back")


def _nodes_of(attempt: AttemptRecord, ranks: Collection[int]) -> frozenset[NodeId]:
    """On which these ranks lie; without ranks, or for all of them, each."""
    nodes = [part.node for part in attempt.placement.slices for _ in part.devices]
    return frozenset(node for rank, node in enumerate(nodes) if not ranks or rank in ranks)


def _refuse_old(job: JobId, pace: Pace, now_ms: int) -> None:
    """By the clock of the rank's node. It may be far beyond that step, and the first to be traced would be past on all ranks."""
    age_ms = now_ms - pace.newest.ended_ms
    if age_ms > OLD_MS_MAX + pace.step_ms:
        fix = f"its newest step is {age_ms // 1000} s old by its node's clock; ask again once its records have come"
        raise Conflict("job", job, fix)


def _asked_of(attempt: AttemptRecord, ranks: Collection[int]) -> frozenset[int]:
    """The ranks that may leave a trace: those without which its gang goes on do not."""
    return frozenset(ranks or range(attempt.placement.world_size)) - frozenset(attempt.absent)


def _refuse_many(attempt: AttemptRecord, asked: TracesAsked, files: int) -> None:
    of, left = len(_asked_of(attempt, asked.ranks)), max(0, FILES_FOR_TRACES - files) // FILES_OF_TRACE
    if of <= left:
        return
    fix = f"{attempt.id} has {files} of at most {FILES_FOR_TRACES} files with traces, and each rank leaves {FILES_OF_TRACE} more"
    more = f"name at most {left}, as with --rank 0" if left else "its next attempt begins with none"
    raise Conflict("ranks", of, f"{fix}; {more}")


def _refuse_second(attempt: AttemptRecord, at_step: int) -> None:
    """Until its steps are made: then the traces are only written, which goes on beside others."""
    if not attempt.traces:
        return
    known = attempt.traces[-1]
    waited_for = _asked_of(attempt, known.request.ranks) - {one.rank for one in known.missed}
    if at_step < known.request.last and waited_for:
        fix = f"{known.request.steps_text()} are asked for already, and it is at step {at_step}; ask again after them"
        raise Conflict("steps", known.request.count, fix)


def _refuse_end(job: JobRecord, request: TraceRequest, newest: StepRecord) -> None:
    """A script that has not said how many steps it makes says as many as it has made."""
    total = newest.total_steps
    if (job.spec.recipe or total > newest.step) and request.last > total:
        fix = f"it is at step {newest.step} and ends with step {total}, too soon for {request.steps_text()}"
        fewer = total - request.first + 1
        raise Conflict(
            "steps", request.count, f"{fix}; ask for at most {fewer}" if fewer > 0 else f"{fix}; ask sooner the next time"
        )


def _refuse_overlap(job: JobRecord, request: TraceRequest) -> None:
    asked = job.spec.profile
    if asked is None or request.first > asked.first + asked.count - 1 or request.last < asked.first:
        return
    last = asked.first + asked.count - 1
    raise Conflict("steps", request.count, f"its file asks for steps {asked.first} to {last} already; ask again after them")
