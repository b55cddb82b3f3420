"""What people see of jobs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from phalanx.core.devices import WHOLE, parse_devices
from phalanx.core.errors import Exit
from phalanx.core.units import show_duration, show_size
from phalanx.core.views import CheckpointView, FindingView, JobView
from phalanx.show.cli.attempts_page import attempts_parts, short
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, moment, moment_cell, pairs, section
from phalanx.show.cli.pages import mapping_rows
from phalanx.show.cli.ranklog import log_command
from phalanx.show.cli.text import number

_SECRET: Final = re.compile("TOKEN|SECRET|PASSWORD|KEY", re.IGNORECASE)


def submitted_page(job: JobView, follow: bool, phalanx: str = "phalanx") -> Iterator[RenderableType]:
    """Of an array `job` is the first. phalanx: how a person writes a command for the platform that has it."""
    array, why = job.spec.get("array"), "; ".join(part for part in (job.why or job.state, job.late) if part)
    if job.array and isinstance(array, Mapping):
        name, _, first = job.id.rpartition("-")
        last = f"{name}-{int(first) + int(array['count']) - 1}"
        yield line(f"Submitted {job.id} to {last} (array of {array['count']}){'.' if follow else f': {why}.'}")
        if not follow:
            yield line(f"Look at each as at `{phalanx} describe {job.id}`; `{phalanx} cancel --array {job.id}` ends all of them.")
        return
    yield line(f"Submitted {job.id}." if follow else f"Submitted {job.id}: {why}.")
    if not follow:
        yield line(f"Look at it with `{phalanx} follow {job.id}`, `{phalanx} describe {job.id}` or `{phalanx} logs -f {job.id}`.")


def jobs_page(jobs: Sequence[JobView], filters: Mapping[str, str], devices_are: str, now_ms: int) -> Iterator[RenderableType]:
    """`filters`: the ones in use, by option."""
    if not jobs and filters:
        asked = " ".join(f"{option} {value}" for option, value in filters.items())
        yield line(f"No job matches {asked}; `phalanx ls` shows every job.")
        return
    if not jobs:
        yield line("No jobs. Submit one with `phalanx submit job.yaml --follow`.")
        return
    head = ("JOB", "STATE", "STEP", "DEVICES", "QUEUE", "PRIORITY", "RESTARTS", "AGE", "WHY")
    yield Grid(
        head,
        (_job_row(job, now_ms) for job in jobs),
        right=("PRIORITY", "RESTARTS", "AGE"),
        drop=("PRIORITY", "QUEUE", "DEVICES", "RESTARTS", "AGE", "STEP"),
        cut="WHY",
    )
    yield line(f"Devices here: {devices_are}", style="dim")


def job_page(job: JobView, sentence: str, devices_are: str) -> Iterator[RenderableType]:
    """A job from its state down to its spec."""
    yield pairs(_summary(job, sentence, devices_are))
    if job.progress:
        yield from section("Progress", pairs(_progress(job)))
    yield from attempts_parts(job.attempts, sentence)
    if job.checkpoints:
        yield from section("Checkpoints", _checkpoints(job))
    if job.findings:
        yield from section("Health", _findings(job.findings))
    yield from section("Spec", pairs(mapping_rows(_masked(job.spec))))


def _findings(findings: Sequence[FindingView]) -> RenderableType:
    rows = [(one.kind, one.step, one.attempt, moment_cell(one.at_ms), one.sentence) for one in findings]
    return Grid(("KIND", "STEP", "ATTEMPT", "AT (UTC)", "WHAT"), rows, right=("STEP",), drop=("AT (UTC)", "ATTEMPT"), cut="WHAT")


def kept_checkpoints(job: JobView) -> Sequence[CheckpointView]:
    """Those that retention surely leaves: of each path the newest, and of these the newest `checkpoint.keep_last` and those at a
    multiple of `keep_every`; oldest step first. Which are the best is in their manifests."""
    newest = {one.path: one for one in sorted(job.checkpoints, key=lambda one: one.at_ms)}
    every = sorted(newest.values(), key=lambda one: one.step)
    last, multiple = _policy(job, "keep_last"), _policy(job, "keep_every")
    if last < 1:
        return every
    return [one for index, one in enumerate(every) if index >= len(every) - last or (multiple and one.step % multiple == 0)]


def _policy(job: JobView, name: str) -> int:
    policy = job.spec.get("checkpoint")
    value = policy.get(name) if isinstance(policy, Mapping) else None
    return value if isinstance(value, int) else 0


def _checkpoints(job: JobView) -> RenderableType:
    kept = kept_checkpoints(job)
    rows = [(one.step, one.attempt, show_size(one.size_bytes), moment_cell(one.at_ms), one.digest[:12], one.path) for one in kept]
    head = ("STEP", "ATTEMPT", "SIZE", "COMMITTED (UTC)", "DIGEST", "PATH")
    table = Grid(head, rows, right=("STEP", "SIZE"), drop=("DIGEST", "ATTEMPT", "COMMITTED (UTC)"), cut="PATH")
    removed = len({one.path for one in job.checkpoints}) > len(kept)
    if not removed:
        return table
    best = _policy(job, "keep_best")
    where = f"; `phalanx checkpoint ls {job.id}` shows which are the best {best}, which stay too" if best else ""
    return Group(table, line(f"(older ones were removed by keep_last{where})", style="dim"))


def _masked(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec with the values of variables that sound like secrets hidden. They do not belong there; a screen is worse still."""
    env = spec.get("env")
    if not isinstance(env, Mapping):
        return spec
    return {**spec, "env": {name: "(hidden)" if _SECRET.search(name) else value for name, value in env.items()}}


def outcome_page(job: JobView) -> Iterator[RenderableType]:
    yield line(outcome_text(job))


def outcome_text(job: JobView) -> str:
    """One sentence on how a job ended, or where it is."""
    if job.state == "paused":
        return paused_text(job)
    what = f"{job.id} {without_echo(f'{job.outcome}: {job.detail}')}" if job.outcome else f"{job.id} is {job.state}"
    detail = f": {job.detail}" if job.detail and not job.outcome else ""
    model = f"; model {job.model}" if job.model else ""
    return f"{what}{detail} (restarts {job.restarts}{model})"


def moved_text(job: JobView) -> str:
    """One sentence on a job that was paused, resumed or opened again: where it is now."""
    match job.state:
        case "paused":
            return paused_text(job)
        case "stopping":
            return f"{job.id} lets go of its devices; `phalanx resume {job.id}` once it is paused"
        case "pending":
            return f"{job.id} waits for devices again" if job.attempts else f"{job.id} {job.why or 'waits for devices'}"
        case state:
            return f"{job.id} is {state}"


def array_text(job: JobView) -> str:
    """One sentence on the array that was cancelled with a job of it."""
    return f"Every job of the array {job.array} that had not finished was asked to end."


def paused_text(job: JobView) -> str:
    """What a person who looks at a paused job needs to know."""
    return f"{job.id} is paused: it holds no devices, and `phalanx resume {job.id}` lets it go on from its last checkpoint"


def without_echo(sentence: str) -> str:
    """'cancelled: cancelled while waiting' says one thing twice."""
    outcome, colon, detail = sentence.partition(": ")
    return detail if colon and detail.split(" ")[0] == outcome else outcome if not detail else sentence


def outcome_exit(job: JobView) -> Exit:
    """The exit code that stands for a finished job, or for one that was paused and no longer looked at."""
    if job.state == "paused":
        return Exit.TIMEOUT
    return Exit.OK if job.outcome == "succeeded" else Exit.FAILED


def _job_row(job: JobView, now_ms: int) -> Sequence[object]:
    step = f"{job.progress.step}/{job.progress.total_steps}" if job.progress else "-"
    state = Text(job.outcome or job.state, style=_style(job)) if (job.outcome or job.state).isidentifier() else line(job.state)
    why = (job.detail if job.state in ("finished", "running") else job.why) or ""
    return (
        job.id,
        state,
        step,
        gang_devices(job),
        job.queue,
        job.priority,
        job.restarts,
        show_duration(max(0, now_ms - job.submitted_ms)),
        "; ".join(part for part in (short(why), job.late) if part),
    )


def gang_devices(job: JobView) -> str:
    """Of the whole gang: those it holds now, else those it asks for. 'H100:16', '2', or '0.25' of one."""
    try:
        asked = parse_devices(job.devices)
    except ValueError:  # a form that this version does not know
        return job.devices
    count = len(job.attempts[-1].ranks) if _holds(job) else asked.count * job.num_nodes
    return f"{'|'.join(asked.types)}{':' if asked.types else ''}{number(count * asked.milli / WHOLE)}"


def _holds(job: JobView) -> bool:
    return bool(job.attempts) and job.state in ("starting", "running", "stopping")


def _nodes_text(job: JobView) -> str:
    """'1 node', 'each of 2 nodes (asks for 3, at least 1)': those that the gang holds now, else those it asks for."""
    held = {rank.node for rank in job.attempts[-1].ranks} if _holds(job) else ()
    count, least = len(held) or job.num_nodes, job.spec.get("min_nodes") or job.num_nodes
    parts = [f"asks for {job.num_nodes}"] if count != job.num_nodes else []
    parts += [f"at least {least}"] if least != job.num_nodes else []
    nodes = "1 node" if count == 1 else f"each of {count} nodes"
    return f"{nodes} ({', '.join(parts)})" if parts else nodes


def _style(job: JobView) -> str:
    return {"succeeded": "green", "failed": "red", "cancelled": "yellow", "paused": "cyan"}.get(job.outcome or job.state, "")


def _summary(job: JobView, sentence: str, devices_are: str) -> Iterator[tuple[str, object]]:
    yield "Job", job.id
    yield "State", f"{job.state} ({job.outcome})" if job.outcome else job.state
    yield "Why", without_echo(sentence)
    if log_command(job):
        yield "Log", log_command(job)
    if job.detail and job.detail not in sentence:
        yield "Detail", job.detail
    yield "Kind", job.kind
    if job.team:
        yield "Team", job.team
    yield "Project", job.project
    yield "Queue", f"{job.queue}, priority {job.priority}"
    yield "Devices", f"{job.devices} on {_nodes_text(job)} (devices here: {devices_are})"
    if job.array:
        yield "Array", f"number {job.array_index} of {job.array}"
    yield "Restarts", job.restarts
    yield "Submitted", f"{moment(job.submitted_ms)} by {job.submitted_by}"
    yield "Started", moment(job.started_ms)
    yield "Finished", moment(job.finished_ms)
    if job.deadline_ms is not None:
        yield "Deadline", f"{moment(job.deadline_ms)}{_kept(job, job.deadline_ms)}"
    if job.collected_ms is not None:
        yield "Files", f"collected {moment(job.collected_ms)}: logs, checkpoints and work folders are gone"
    yield "Code", job.code or "- (no workdir)"
    yield "Config", job.config
    if job.saves:
        yield "Saves", job.saves
    if "://" in job.checkpoints_at:
        yield "Saves to", job.checkpoints_at
    yield "Model", job.model or "-"


def _kept(job: JobView, deadline_ms: int) -> str:
    if job.finished_ms is not None and job.finished_ms > deadline_ms:
        return f"; it finished {show_duration(job.finished_ms - deadline_ms)} after it"
    return f"; {job.late}" if job.late else ""


def _progress(job: JobView) -> Iterator[tuple[str, object]]:
    seen = job.progress
    assert seen is not None
    yield "Step", f"{seen.step} of {seen.total_steps}"
    yield "Loss", f"{seen.loss:.6g}"
    if seen.images_per_s > 0:
        yield "Images/s", f"{seen.images_per_s:,.0f}"
    yield "Tokens/s", f"{seen.tokens_per_s:,.0f}"
    if seen.data_wait_cause:
        yield "Data wait", f"{seen.data_wait_ms} ms of this step ({seen.data_wait_cause})"
    yield "MFU", f"{seen.mfu:.1%}" if seen.mfu > 0 else "- (no peak known for these devices)"
    if job.state != "finished":
        yield "ETA", "-" if seen.eta_ms is None else show_duration(seen.eta_ms)
