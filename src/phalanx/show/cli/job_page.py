"""What people see of jobs."""

from collections.abc import Iterable, Iterator, Sequence
from signal import Signals

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.errors import Exit
from phalanx.core.messages import RankExit
from phalanx.core.units import show_duration, show_size
from phalanx.core.views import AttemptView, JobView, WhyView
from phalanx.show.cli.output import grid, line, moment, pairs, section
from phalanx.show.cli.pages import mapping_rows


def submitted_page(job: JobView, follow: bool) -> Iterator[RenderableType]:
    yield line(f"Submitted {job.id}: {job.why or job.state}.")
    if not follow:
        yield line(f"Look at it with `phalanx describe {job.id}`, `phalanx logs -f {job.id}` or `phalanx wait {job.id}`.")


def jobs_page(jobs: Sequence[JobView], devices_are: str, now_ms: int) -> Iterator[RenderableType]:
    if not jobs:
        yield line("No jobs. Submit one with `phalanx submit job.yaml --follow`.")
        return
    head = ("JOB", "STATE", "STEP", "DEVICES", "QUEUE", "PRIORITY", "RESTARTS", "AGE", "WHY")
    yield grid(head, (_job_row(job, now_ms) for job in jobs), right=("PRIORITY", "RESTARTS", "AGE"))
    yield line(f"Devices here: {devices_are}", style="dim")


def job_page(job: JobView, sentence: str, devices_are: str) -> Iterator[RenderableType]:
    """A job from its state down to its spec."""
    yield pairs(_summary(job, sentence, devices_are))
    if job.progress:
        yield from section("Progress", pairs(_progress(job)))
    yield from section("Attempts", _attempts(job.attempts))
    if job.checkpoints:
        rows = [
            (one.step, one.attempt, show_size(one.size_bytes), moment(one.at_ms), one.digest[:12], one.path)
            for one in job.checkpoints
        ]
        yield from section(
            "Checkpoints", grid(("STEP", "ATTEMPT", "SIZE", "COMMITTED", "DIGEST", "PATH"), rows, right=("STEP", "SIZE"))
        )
    yield from section("Spec", pairs(mapping_rows(job.spec)))


def why_page(view: WhyView) -> Iterator[RenderableType]:
    yield line(f"{view.job} is {view.state}: {view.sentence}")
    if view.position is not None:
        yield line(f"Position in line: {view.position}")


def outcome_page(job: JobView) -> Iterator[RenderableType]:
    yield line(outcome_text(job))


def outcome_text(job: JobView) -> str:
    """One sentence on how a job ended, or where it is."""
    what = f"{job.id} {job.outcome}" if job.outcome else f"{job.id} is {job.state}"
    detail = f": {job.detail}" if job.detail else ""
    model = f"; model {job.model}" if job.model else ""
    return f"{what}{detail} (restarts {job.restarts}{model})"


def outcome_exit(job: JobView) -> Exit:
    """The exit code that stands for a finished job."""
    return Exit.OK if job.outcome == "succeeded" else Exit.FAILED


def exits_text(exits: Iterable[RankExit]) -> str:
    """'rank 1 SIGKILL first, rank 0 SIGTERM', or 'all ranks 0'."""
    known = sorted(exits, key=lambda one: (not one.first, one.rank))
    if known and all(one.code == 0 for one in known):
        return "all ranks exited 0"
    return ", ".join(f"rank {one.rank} {exit_word(one.code)}{' first' if one.first else ''}" for one in known) or "-"


def exit_word(code: int) -> str:
    """'exited 3' or 'SIGKILL'."""
    if code >= 0:
        return f"exited {code}"
    return Signals(-code).name if -code in set(Signals) else f"signal {-code}"


def _job_row(job: JobView, now_ms: int) -> Sequence[object]:
    step = f"{job.progress.step}/{job.progress.total_steps}" if job.progress else "-"
    state = Text(job.outcome or job.state, style=_style(job)) if (job.outcome or job.state).isidentifier() else line(job.state)
    why = (job.why if job.state == "pending" else job.detail) or ""
    return (
        job.id,
        state,
        step,
        job.devices,
        job.queue,
        job.priority,
        job.restarts,
        show_duration(max(0, now_ms - job.submitted_ms)),
        why,
    )


def _style(job: JobView) -> str:
    return {"succeeded": "green", "failed": "red", "cancelled": "yellow"}.get(job.outcome or "", "")


def _summary(job: JobView, sentence: str, devices_are: str) -> Iterator[tuple[str, object]]:
    yield "Job", job.id
    yield "State", f"{job.state} ({job.outcome})" if job.outcome else job.state
    yield "Why", sentence
    if job.detail and job.detail not in sentence:
        yield "Detail", job.detail
    yield "Kind", job.kind
    yield "Project", job.project
    yield "Queue", f"{job.queue}, priority {job.priority}"
    yield "Devices", f"{job.devices} on {job.num_nodes} node{'s' if job.num_nodes != 1 else ''} (devices here: {devices_are})"
    yield "Restarts", job.restarts
    yield "Submitted", f"{moment(job.submitted_ms)} by {job.submitted_by}"
    yield "Started", moment(job.started_ms)
    yield "Finished", moment(job.finished_ms)
    yield "Code", job.code or "- (no workdir)"
    yield "Config", job.config
    yield "Model", job.model or "-"


def _progress(job: JobView) -> Iterator[tuple[str, object]]:
    seen = job.progress
    assert seen is not None
    yield "Step", f"{seen.step} of {seen.total_steps}"
    yield "Loss", f"{seen.loss:.6g}"
    yield "Tokens/s", f"{seen.tokens_per_s:,.0f}"
    yield "MFU", f"{seen.mfu:.1%}" if seen.mfu > 0 else "- (no peak known for these devices)"
    yield "ETA", "-" if seen.eta_ms is None else show_duration(seen.eta_ms)


def _attempts(attempts: Sequence[AttemptView]) -> RenderableType:
    if not attempts:
        return line("none yet")
    head = ("ATTEMPT", "PLACED", "RAN", "RESUMED AFTER", "RANKS", "EXITS", "DETAIL")
    return grid(head, (_attempt_row(one) for one in attempts))


def _attempt_row(one: AttemptView) -> Sequence[object]:
    ran = "-" if one.running_ms is None else "running" if one.ended_ms is None else show_duration(one.ended_ms - one.running_ms)
    resumed = "-" if one.resumed_step is None else f"step {one.resumed_step}"
    ranks = ", ".join(f"{rank.rank}@{rank.node}/{rank.device}" + (f" pid {rank.pid}" if rank.pid else "") for rank in one.ranks)
    return one.attempt, moment(one.placed_ms), ran, resumed, ranks or "-", exits_text(one.exits), one.detail
