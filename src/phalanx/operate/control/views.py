"""What is true, as the API answers it. Pure: a world, the newest waits and progress in, views out."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from phalanx.core import wire
from phalanx.core.devices import CPU_SLOT, Placement, devices_words
from phalanx.core.events import Event, EventBody
from phalanx.core.ids import JobId, NodeId
from phalanx.core.isolation import exposed
from phalanx.core.reasons import NeverFits, Reason
from phalanx.core.records import Recovered
from phalanx.core.spec import JobSpec
from phalanx.core.states import Finished, Holding, Paused, Pending, Running, Starting, Stopping
from phalanx.core.views import (
    AttemptView,
    CheckpointView,
    EventView,
    FaultView,
    FindingView,
    JobView,
    ModelView,
    NodeView,
    Progress,
    RankView,
    RecoveryView,
    WhyView,
)
from phalanx.decide.scheduler.plan import Wait
from phalanx.decide.scheduler.why.late import late_text
from phalanx.operate.control.failures import seen_by
from phalanx.operate.control.saving_places import checkpoints_at
from phalanx.operate.control.world import AttemptRecord, FaultRecord, JobRecord, ModelRecord, World

Waiting = Mapping[JobId, Wait]
"""The newest decision for each job that waits: `Controller.waiting`."""

_UNDECIDED: Final = "waits for the scheduler's next decision"


def job_view(
    world: World,
    job: JobRecord,
    waiting: Waiting,
    progress: Progress | None = None,
    now_ms: int | None = None,
    jobs_folder: Path | None = None,
) -> JobView:
    """A job as `describe` shows it. `progress` is of its newest attempt, from the series store. now_ms: Unix time, by which it is
    late or not. jobs_folder: where jobs have their folders."""
    state, spec = job.state, job.spec
    attempts = [world.attempts[attempt] for attempt in job.attempts]
    over = isinstance(state, Finished)
    return JobView(
        id=job.id,
        name=spec.name,
        project=spec.project,
        team=spec.team,
        kind=spec.kind,
        queue=spec.queue,
        priority=spec.priority,
        state=state.name,
        outcome=state.outcome if isinstance(state, Finished) else None,
        detail=state.detail if isinstance(state, Finished) else (attempts[-1].detail if attempts else ""),
        why=None if over else _sentence(world, job, waiting),
        restarts=max(0, state.attempt - 1),
        num_nodes=spec.num_nodes,
        devices=spec.resources.gpus,
        submitted_by=job.by,
        submitted_ms=job.submitted_ms,
        started_ms=job.started_ms,
        finished_ms=job.finished_ms,
        code=job.code,
        config=job.config,
        spec=wire.plain(JobSpec, spec),
        progress=progress,
        attempts=tuple(attempt_view(attempt) for attempt in attempts),
        checkpoints=tuple(view for attempt in attempts for view in _checkpoint_views(attempt)),
        model=job.model,
        collected_ms=job.collected_ms,
        array=job.array,
        array_index=job.array_index,
        deadline_ms=spec.deadline_ms(job.submitted_ms),
        late=late_of(world, job, now_ms),
        saves=_saves(world, job, attempts),
        checkpoints_at=checkpoints_at(job, jobs_folder) if jobs_folder else "",
        findings=tuple(view for attempt in attempts for view in _finding_views(attempt)),
    )


def why_view(world: World, job: JobRecord, waiting: Waiting, now_ms: int | None = None) -> WhyView:
    """Why the job is where it is. now_ms: Unix time, by which it is late or not."""
    wait = waiting.get(job.id) if isinstance(job.state, Pending) else None
    reason = wait.reason if wait else job.reason
    return WhyView(
        job=job.id,
        state=job.state.name,
        sentence=_sentence(world, job, waiting),
        reason=wire.plain(Reason, reason) if reason else None,
        position=wait.position if wait else None,
        late=late_of(world, job, now_ms),
    )


def node_views(world: World, seen_ms: Mapping[NodeId, int], strangers: bool = False) -> tuple[NodeView, ...]:
    """Every known node, by name. `seen_ms`: Unix time of the last message, where there was one since the start. strangers: whether
    there are teams that do not trust each other."""
    held = world.held()
    return tuple(
        NodeView(
            node=node,
            state="up" if record.up else "away",
            drained=record.drained,
            features=record.shape.features,
            address=record.shape.address,
            devices=record.shape.devices,
            held=held.get(node, {}),
            cpus=record.shape.cpus,
            memory_bytes=record.shape.memory_bytes,
            seen_ms=seen_ms.get(node, record.since_ms),
            isolation=record.shape.isolation,
            exposed=exposed(record.shape.isolation) if strangers else "",
        )
        for node, record in sorted(world.nodes.items())
    )


def devices_are(world: World) -> str:
    """What a device is in this fleet, in words."""
    types = {device.type for record in world.nodes.values() for device in record.shape.devices}
    gpus = ", ".join(sorted(types - {CPU_SLOT}))
    match bool(gpus), CPU_SLOT in types:
        case True, True:
            return f"GPUs ({gpus}) and CPU slots"
        case True, False:
            return f"GPUs ({gpus})"
        case False, True:
            return "CPU slots: no GPU was found, so CPU slots stand in for devices"
        case _:
            return "none yet: no node has joined"


def device_counts(world: World) -> tuple[int, int]:
    """(all devices of known nodes, those held by gangs)."""
    total = sum(len(record.shape.devices) for record in world.nodes.values())
    return total, sum(len(devices) for devices in world.held().values())


def job_counts(world: World, shown: Callable[[str], bool] = lambda team: True) -> dict[str, int]:
    """Jobs of teams that are `shown`, by state; finished ones by outcome."""
    total: Counter[str] = Counter()
    for team, counts in world.counts.items():
        total.update(counts if shown(team) else {})
    return dict(sorted(total.items()))


def model_view(model: ModelRecord) -> ModelView:
    """A model version with its lineage."""
    return ModelView(
        name=model.name,
        version=model.version,
        job=model.job,
        path=model.saved.path,
        weights_digest=model.saved.weights_digest,
        metrics=model.saved.metrics,
        lineage=model.lineage,
        created_ms=model.created_ms,
    )


def event_view(event: Event) -> EventView:
    """One line of the log, as data."""
    body = wire.plain(EventBody, event.body)
    return EventView(seq=event.seq, at_ms=event.at_ms, kind=event.body.kind, job=getattr(event.body, "job", None), body=body)


def attempt_view(attempt: AttemptRecord) -> AttemptView:
    """One launch of a job."""
    return AttemptView(
        attempt=attempt.id,
        placed_ms=attempt.placed_ms,
        running_ms=attempt.running_ms,
        ended_ms=attempt.ended_ms,
        detail=attempt.detail,
        exits=attempt.exits,
        resumed_step=attempt.resumed.step if attempt.resumed else None,
        ranks=_rank_views(attempt),
        recoveries=tuple(_recovery_view(one) for one in attempt.recoveries),
        faults=tuple(_fault_view(one) for one in attempt.faults),
    )


def _recovery_view(one: Recovered) -> RecoveryView:
    return RecoveryView(
        at_ms=one.at_ms,
        generation=one.generation,
        why=one.why,
        replaced=one.replaced,
        step=one.step,
        steps_lost=one.steps_lost,
        recovery_ms=one.recovery_ms,
        absent=one.absent,
        planned=one.planned,
    )


def _fault_view(one: FaultRecord) -> FaultView:
    return FaultView(
        number=one.plan.number, fault=one.plan.fault, sentence=one.plan.sentence(), by=one.by, at_ms=one.at_ms,
        met="; ".join(met.what() for met in one.met),
    )  # fmt: skip


def _rank_views(attempt: AttemptRecord) -> tuple[RankView, ...]:
    pids = {process.rank: process.pid for process in attempt.ranks}
    seats = [(part.node, device) for part in attempt.placement.slices for device in part.devices]
    return tuple(RankView(rank=rank, node=node, device=device, pid=pids.get(rank)) for rank, (node, device) in enumerate(seats))


def _checkpoint_views(attempt: AttemptRecord) -> list[CheckpointView]:
    return [
        CheckpointView(
            attempt=attempt.id,
            step=saved.step,
            path=saved.path,
            digest=saved.digest,
            size_bytes=saved.size_bytes,
            at_ms=saved.at_ms,
        )
        for saved in attempt.checkpoints
    ]


def _saves(world: World, job: JobRecord, attempts: Sequence[AttemptRecord]) -> str:
    if job.spec.checkpoint.every != "auto":
        return ""
    steps = sorted({saved.step for saved in attempts[-1].checkpoints}) if attempts else []
    nodes = len(attempts[-1].placement.slices) if attempts else job.spec.num_nodes
    apart = f"every {steps[-1] - steps[-2]} steps by now" if len(steps) > 1 else "as often as pays"
    return f"{apart}; {seen_by(world).sentence(nodes)}"


def _finding_views(attempt: AttemptRecord) -> list[FindingView]:
    return [
        FindingView(attempt=attempt.id, kind=found.kind, step=found.step, sentence=found.sentence(), at_ms=found.at_ms)
        for found in attempt.findings
    ]


def late_of(world: World, job: JobRecord, now_ms: int | None) -> str:
    """That its deadline has passed, or may not be kept, in words; '' of any other job, and where nobody says what time it is."""
    never = isinstance(job.state, Pending) and isinstance(job.reason, NeverFits)
    if now_ms is None or not job.spec.deadline or never or isinstance(job.state, Finished):
        return ""
    began_ms = world.attempts[job.attempt].placed_ms if job.attempt and isinstance(job.state, Holding) else None
    return late_text(job.spec.deadline_ms(job.submitted_ms), job.spec.max_duration_ms, now_ms, began_ms)


def _evicted_for(world: World, job: JobRecord) -> JobId | None:
    return world.attempts[job.attempt].evicted_for if job.attempt else None


def _makes_room(world: World, job: JobRecord) -> str:
    claimant = _evicted_for(world, job)
    if claimant not in (None, job.id):
        return f"it makes room for {claimant}"
    why = world.attempts[job.attempt].evicted_why if job.attempt is not None else None
    words = {"spot": "one of its nodes goes away", "home": "it moves to nodes that its queue is guaranteed"}
    return words.get(why or "", "it starts again in another size")


def _made_room(world: World, job: JobRecord) -> str:
    claimant = _evicted_for(world, job)
    return "" if claimant in (None, job.id) else f"; its last attempt made room for {claimant}"


def _sentence(world: World, job: JobRecord, waiting: Waiting) -> str:
    lost = world.attempts[job.attempt].lost if job.attempt and isinstance(job.state, Holding) else {}
    match job.state:
        case Pending():
            wait = waiting.get(job.id)
            reason = wait.reason if wait else job.reason
            place = f"; position {wait.position} in queue {job.spec.queue}" if wait and wait.position else ""
            return f"{reason.sentence() if reason else _UNDECIDED}{place}{_made_room(world, job)}"
        case Starting(_, placement) | Running(_, placement) if lost:
            gone = " and ".join(f"node {node} was lost ({why})" for node, why in sorted(lost.items()))
            rest = _where(world, placement, lost)
            if job.attempt and not world.attempts[job.attempt].is_given_up and job.spec.recovery.min_ranks:
                return f"{gone}; its gang goes on with fewer ranks on {rest}"
            return f"{gone}; its other ranks are being stopped on {rest}, then it starts again and no restart is used up"
        case Starting(_, placement):
            return f"its ranks are being started on {_where(world, placement)}"
        case Running(_, placement):
            return f"runs on {_where(world, placement)}"
        case Stopping(_, placement, cause):
            asked = {
                "cancel": "somebody cancelled it",
                "pause": "somebody paused it",
                "drain": "its node is drained",
                "preempt": _makes_room(world, job),
                "down": "the platform goes down",
                "max_duration": f"max_duration ({job.spec.max_duration}) is over",
                "idle": f"it is idle ({job.state.why})",
            }[cause]
            return f"stops since {asked}; holds its devices until every rank is gone on {_where(world, placement, lost)}"
        case Paused():
            return f"paused; `phalanx resume {job.id}` lets it go on from its last checkpoint"
        case Finished(_, outcome, detail):
            return f"{outcome}: {detail}"


def _where(world: World, placement: Placement, lost: Collection[NodeId] = ()) -> str:
    """Nodes and devices of a gang but for lost ones; a node that is away is called so, for nothing moves there until it is back,
    or until its lease and the kill grace are over while other nodes are heard."""
    parts = []
    for part in placement.slices:
        if part.node in lost:
            continue
        away = "" if world.nodes[part.node].up else ", away now"
        parts.append(f"{part.node} ({devices_words(part.devices, part.milli)}{away})")
    return " and ".join(parts)
