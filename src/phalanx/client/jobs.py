"""What is asked about jobs, and of them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.client.checks import attempt_path, job_path, known_spec, run_path
from phalanx.client.packed import check_lock
from phalanx.client.steps import Ask, Params, Program, post, read, read_all
from phalanx.core import wire
from phalanx.core.chaos import Asked, FaultKind, FlipOf, planned
from phalanx.core.curves import POINTS, CurvesView
from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.profile import ProfileView
from phalanx.core.spec import JobSpec
from phalanx.core.trace_request import TraceRequestView, TracesAsked, check_asked
from phalanx.core.use_views import RunView
from phalanx.core.views import AttemptView, EventView, JobView, LogPage, PlanRequest, PlanView, StepPage, SubmitRequest, WhyView

Spec = JobSpec | Mapping[str, Any]


def submit(spec: Spec, workdir_pack: bytes | None = None, key: str = "") -> Program[JobView]:
    """Submit once. With a `key` (any text that the caller makes once per submit) a lost answer is asked for again, and the
    server gives back the first job; without one a lost answer raises ServerUnreachable and the outcome is unknown.

    Raises SpecError before anything is sent when the spec is not acceptable.
    """
    known = known_spec(spec)
    check_lock(known, workdir_pack)
    code = (yield from _upload(workdir_pack)) if workdir_pack is not None else ""
    request = SubmitRequest(spec=wire.plain(JobSpec, known), code=code, key=key)
    return (yield from post(JobView, "/jobs", wire.dumps(SubmitRequest, request), may_repeat=bool(key)))


def _upload(pack: bytes) -> Program[str]:
    """Content decides the name, so an upload may be repeated and a known one is left out."""
    sha = hashlib.sha256(pack).hexdigest()
    path = f"/blobs/{sha}"
    try:
        known = (yield Ask(method="HEAD", path=path, missing_ok=True)).ok
    except (UserError, StoreUnavailable):
        known = False  # an answer to HEAD has no words; what is wrong the PUT is told
    if not known:
        yield Ask(method="PUT", path=path, content=pack)
    return sha


def jobs(queue: str = "", project: str = "", state: str = "", limit: int | None = 100) -> Program[tuple[JobView, ...]]:
    """The newest `limit`, newest first; None is all of them."""
    return (yield from read_all(JobView, "/jobs", {"queue": queue, "project": project, "state": state}, limit))


def job(job: str) -> Program[JobView]:
    """One job. Raises NotFound."""
    return (yield from read(JobView, job_path(job)))


def attempts(job: str) -> Program[tuple[AttemptView, ...]]:
    """Its attempts that are kept, oldest first."""
    return (yield from read_all(AttemptView, f"{job_path(job)}/attempts"))


def attempt(job: str, attempt: str) -> Program[AttemptView]:
    """One of them, by its number or id. Raises NotFound."""
    return (yield from read(AttemptView, attempt_path(job, attempt)))


def why(job: str, changes: bool = False) -> Program[WhyView]:
    """`changes`: of a job that waits also when it is expected to start, and what would start it now."""
    return (yield from read(WhyView, f"{job_path(job)}/why", {"changes": "true" if changes else ""}))


def plan(spec: Spec) -> Program[PlanView]:
    """What would be decided of the job if it were submitted now. Nothing is. Raises SpecError."""
    body = wire.dumps(PlanRequest, PlanRequest(spec=wire.plain(JobSpec, known_spec(spec))))
    return (yield from post(PlanView, "/plan", body, may_repeat=True))


def cancel(job: str, array: bool = False) -> Program[JobView]:
    """With `array` all jobs of its array. Raises Conflict when there is nothing left to cancel."""
    return (yield from post(JobView, f"{job_path(job)}/cancel{'?array=true' if array else ''}"))


def pause(job: str) -> Program[JobView]:
    """The job lets go of its devices until it is resumed; twice is once. Raises Conflict when it has finished or ends."""
    return (yield from post(JobView, f"{job_path(job)}/pause", may_repeat=True))


def resume(job: str) -> Program[JobView]:
    """A paused job waits for devices again; one that goes on anyway is left alone. Raises Conflict when it cannot."""
    return (yield from post(JobView, f"{job_path(job)}/resume", may_repeat=True))


def retry(job: str) -> Program[JobView]:
    """Opens a job that failed or was cancelled again. Raises Conflict for any other."""
    return (yield from post(JobView, f"{job_path(job)}/retry"))


def chaos(
    job: str,
    fault: FaultKind,
    *,
    rank: int | None = None,
    step: int | None = None,
    for_ms: int | None = None,
    slow_ms: int | None = None,
    flip: FlipOf | None = None,
) -> Program[JobView]:
    """Plans a fault in the job's running attempt, see docs/chaos.md: at `step` of `rank`, or at its next one. Raises Conflict
    for a job whose file does not allow it, that does not run, or is beyond the step; SpecError."""
    asked = Asked(fault=fault, rank=rank, step=step, for_ms=for_ms, slow_ms=slow_ms, flip=flip)
    planned(asked, 1)  # what can be told here is not sent
    return (yield from post(JobView, f"{job_path(job)}/chaos", wire.dumps(Asked, asked)))


def steps(job: str, after: str = "", rank: int | None = None, attempt: str = "") -> Program[StepPage]:
    """Records newer than `after`, which is the `next` of an earlier page; '' is the start."""
    return (yield from read(StepPage, f"{job_path(job)}/steps", {"after": after, "rank": rank, "attempt": attempt}))


def curves(job: str, rank: int = 0, points: int = POINTS) -> Program[CurvesView]:
    """Loss, gradient norm, throughput and the phases of steps over a whole run: about `points` means of one rank's records."""
    return (yield from read(CurvesView, f"{job_path(job)}/curves", {"rank": rank, "points": points}))


def logs(job: str, rank: int = 0, attempt: str = "", offset: int = 0, limit: int = 65_536) -> Program[LogPage]:
    """Part of one rank's log from byte `offset` on; `attempt` '' is the newest."""
    params: Params = {"rank": rank, "attempt": attempt, "offset": offset, "limit": limit}
    return (yield from read(LogPage, f"{job_path(job)}/logs", params))


def runs(project: str = "", limit: int | None = 100) -> Program[tuple[RunView, ...]]:
    """The newest `limit` tracked runs, newest first; None is all of them."""
    return (yield from read_all(RunView, "/runs", {"project": project}, limit))


def run(job: str) -> Program[RunView]:
    """The tracked run of a job. Raises NotFound before it has begun."""
    return (yield from read(RunView, run_path(job)))


def run_metrics(job: str, rank: int = 0, points: int = POINTS) -> Program[CurvesView]:
    """What the run measured, as many steps to a point that about `points` are left."""
    return (yield from read(CurvesView, f"{run_path(job)}/metrics", {"rank": rank, "points": points}))


def events(
    job: str | None = None,
    after: int = 0,
    *,
    limit: int | None = None,
    kind: str = "",
    since_ms: int | None = None,
    newest: bool = False,
) -> Program[tuple[EventView, ...]]:
    """The log beyond event `after`, oldest first, of one job or of everything: a page of at most `limit`, the server's most
    without one. `newest`: the last ones instead of the first."""
    path = f"{job_path(job)}/events" if job is not None else "/events"
    bounds: dict[str, str | int | None] = {"limit": limit, "kind": kind, "since_ms": since_ms}
    return (yield from read(tuple[EventView, ...], path, {"after": after, **bounds, "newest": "true" if newest else None}))


def profile(job: str, attempt: str = "", first: int = 0) -> Program[ProfileView]:
    """What the traces of a job's ranks say: of its newest attempt that has any, or of `attempt`; those that begin with step
    `first`, else the last ones. Raises NotFound where there are none."""
    return (yield from read(ProfileView, f"{job_path(job)}/profile", {"attempt": attempt, "first": first}))


def request_traces(job: str, steps: int, ranks: Sequence[int] = ()) -> Program[TraceRequestView]:
    """Asks the running job to trace `steps` of its next steps on all ranks, or on `ranks`: see docs/profile.md.

    Raises Conflict for a job that does not run, cannot hear of it, is too near its end or was asked for others; SpecError."""
    asked = TracesAsked(steps=steps, ranks=tuple(ranks))
    check_asked(asked)  # what can be told here is not sent
    return (yield from post(TraceRequestView, f"{job_path(job)}/profile", wire.dumps(TracesAsked, asked)))


def trace_request(job: str, attempt: str = "", number: int = 0) -> Program[TraceRequestView]:
    """How far a request of an attempt is; without a name the newest of the newest. Raises NotFound."""
    return (yield from read(TraceRequestView, f"{job_path(job)}/profile/request", {"attempt": attempt, "number": number}))
