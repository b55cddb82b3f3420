"""What the tracker shall know, as entries of the outbox; and which event of a job causes which entry. Pure.

An entry is written to the outbox in the transaction of its event and applied later, perhaps more than once. A run is created
only when an attempt runs, so a job that never ran leaves no run; its state is set by the platform, also when a rank was
killed before it could say so. A paused job's run waits, and so does one that was over and whose job is retried. Parameters
belong to an attempt: a run's own are those of its first one, later attempts add theirs under `attempt-N/` where they changed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.events import AttemptEnded, AttemptRunning, Event, JobRetried, ModelRegistered, StopRequested
from phalanx.core.ids import AttemptId, JobId, split_attempt
from phalanx.core.records import Metric, StepRecord
from phalanx.core.spec import JobSpec
from phalanx.core.states import StopCause
from phalanx.record.tracking.downsample import POINTS_MAX, downsample

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """An attempt of `job` runs: its run exists, in the experiment `project`, with these parameters and tags."""

    job: JobId
    attempt: AttemptId
    project: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    at_ms: int
    kind: Literal["run_started"] = field(default="run_started", kw_only=True)


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of one metric. `at_ms` is Unix time.

    A value may be NaN, which `wire.dumps` would lose: entries go through `wire.plain` and `json.dumps`, which writes it.
    """

    name: str
    step: int
    value: float
    at_ms: int


@dataclass(frozen=True, slots=True)
class MetricPoints:
    """Values for the run of `job`, at most POINTS_MAX a name: the full series is ours."""

    job: JobId
    points: tuple[MetricPoint, ...]
    kind: Literal["metric_points"] = field(default="metric_points", kw_only=True)


@dataclass(frozen=True, slots=True)
class RunWaits:
    """The job holds nothing and is not over: paused, or opened again after its end. Its next attempt goes on with the run."""

    job: JobId
    detail: str
    at_ms: int
    kind: Literal["run_waits"] = field(default="run_waits", kw_only=True)


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The job is over for good. `attempts` ran, oldest first; `detail` is one line for people."""

    job: JobId
    status: RunStatus
    attempts: tuple[AttemptId, ...]
    detail: str
    at_ms: int
    kind: Literal["run_finished"] = field(default="run_finished", kw_only=True)


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of the registered model `name`, made by `job`, whose files lie in the folder `path`."""

    name: str
    version: int
    job: JobId
    attempt: AttemptId
    path: str
    weights_digest: str
    lineage: Mapping[str, str]
    metrics: Mapping[str, float]
    at_ms: int
    kind: Literal["model_version"] = field(default="model_version", kw_only=True)


Entry = Annotated[RunStarted | RunWaits | MetricPoints | RunFinished | ModelVersion, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class TrackedJob:
    """What the control plane knows of a job when one of its events happens.

    attempts: that ran (had AttemptRunning), this event's included, oldest first. stop: why it was asked to stop, if it was.
    over: one line of how the job ended, if it did; '' while it goes on. paused: it is paused now.
    """

    spec: JobSpec
    code: str
    config: str
    by: str
    attempts: tuple[AttemptId, ...]
    stop: StopCause | None = None
    over: str = ""
    paused: bool = False


def outbox_for(event: Event, job: TrackedJob) -> list[Entry]:
    """Entries that `event` causes; none for most events."""
    match event.body:
        case AttemptRunning(job=name, attempt=attempt):
            return [_run_started(name, attempt, job, event.at_ms)]
        case AttemptEnded(job=name) | StopRequested(job=name) if job.attempts and job.paused:
            return [RunWaits(name, "paused", event.at_ms)]
        case JobRetried(job=name) if job.attempts:
            return [RunWaits(name, "waits to be tried again", event.at_ms)]
        case AttemptEnded(job=name, again=False, ok=ok, detail=detail) if job.attempts:
            return [RunFinished(name, run_status(ok, job.stop), job.attempts, detail, event.at_ms)]
        case StopRequested(job=name) if job.attempts and job.over:  # cancelled between two attempts: no attempt will end it
            return [RunFinished(name, run_status(False, job.stop), job.attempts, job.over, event.at_ms)]
        case ModelRegistered(name=model, version=version, job=name, attempt=attempt, saved=saved, lineage=lineage):
            made = ModelVersion(
                model, version, name, attempt, saved.path, saved.weights_digest, lineage, saved.metrics, event.at_ms
            )
            return [made]
        case _:
            return []


def run_status(ok: bool, stop: StopCause | None) -> RunStatus:
    """MLflow's word for how a job ended: KILLED when a user cancelled it, FAILED also at its time limit."""
    if stop == "cancel":
        return "KILLED"
    return "FINISHED" if ok and stop is None else "FAILED"


def _run_started(name: JobId, attempt: AttemptId, job: TrackedJob, at_ms: int) -> RunStarted:
    spec = job.spec
    tags = {
        "phalanx.job": name,
        "phalanx.attempt": attempt,
        "phalanx.kind": spec.kind,
        "phalanx.queue": spec.queue,
        "phalanx.code": job.code,
        "phalanx.config": job.config,
        "phalanx.by": job.by,
    }
    return RunStarted(name, attempt, spec.project, spec.name, params_of(spec), tags, at_ms)


def params_of(spec: JobSpec) -> dict[str, str]:
    """What a run is compared by: the hyperparameters as given, and the shape of the gang."""
    gang = {"num_nodes": str(spec.num_nodes), "gpus": spec.resources.gpus}
    if spec.recipe:
        gang["recipe"] = spec.recipe
    return {**gang, **{key: str(value) for key, value in spec.hyperparameters.items()}}


Measured = tuple[Sequence[StepRecord], Sequence[Metric]]


def to_deliver(entry: Entry, measured: Callable[[AttemptId], Measured]) -> list[Entry]:
    """What goes to the tracker for an outbox row: the metrics of a finished run are read only now, from the series, since they
    are not in the database; `measured` gives an attempt's steps and metrics."""
    if not isinstance(entry, RunFinished):
        return [entry]
    points = points_of({attempt: measured(attempt) for attempt in entry.attempts})
    return [MetricPoints(entry.job, points), entry] if points else [entry]


def points_of(measured: Mapping[AttemptId, Measured], limit: int = POINTS_MAX) -> tuple[MetricPoint, ...]:
    """One curve a metric across attempts: of a step done again the newest attempt's value counts, of ranks the lowest."""
    curves: dict[str, dict[int, MetricPoint]] = {}
    for attempt in sorted(measured, key=lambda one: split_attempt(one)[1]):
        steps, metrics = measured[attempt]
        both: list[StepRecord | Metric] = [*steps, *metrics]
        for record in sorted(both, key=lambda one: -one.rank):
            for point in _points(record):
                curves.setdefault(point.name, {})[point.step] = point
    thinned = (downsample([curve[step] for step in sorted(curve)], limit) for _, curve in sorted(curves.items()))
    return tuple(point for curve in thinned for point in curve)


def _points(record: StepRecord | Metric) -> list[MetricPoint]:
    if isinstance(record, Metric):
        return [MetricPoint(record.name, record.step, record.value, record.at_ms)]
    values = {
        "loss": record.loss,
        "grad_norm": record.grad_norm,
        "lr": record.lr,
        "tokens_per_s": record.tokens_per_s,
        "mfu": record.mfu,
        "step_ms": float(record.ended_ms - record.started_ms),
        **({"images_per_s": record.images_per_s} if record.images else {}),
    }
    return [MetricPoint(name, record.step, value, record.ended_ms) for name, value in values.items()]
