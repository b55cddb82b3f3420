"""Jobs: submit, look, cancel, pause, resume, retry."""

import asyncio
import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from phalanx.core.errors import SpecError
from phalanx.core.ids import JobId
from phalanx.core.records import StepRecord
from phalanx.core.spec import JobSpec
from phalanx.core.spec_parse import parse_spec
from phalanx.core.states import Finished, JobState, Pending
from phalanx.core.views import JobView, Progress, SubmitRequest
from phalanx.operate.control import views, webhook
from phalanx.operate.control.api import blob_rights, others_files
from phalanx.operate.control.api.access import READS, SUBMITS, JobHere, JobToChange, ServicesHere, change, sees, team_for
from phalanx.operate.control.api.asker import Asker, AskerHere, directory_of
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.pages import LINK, Key, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.tags import tag_of, unless_known
from phalanx.operate.control.api.veil import veil_of
from phalanx.operate.control.blob_threads import on_blob_thread
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.refused import KEY_CHARS_MAX
from phalanx.operate.control.world import JobRecord, World

PACE_STEPS: Final = 200
"""Whose mean is what the rest is taken to go at: one slow step or one save among so many does not make the time left jump."""

router = APIRouter(tags=["jobs"])
Filter = Annotated[str, Query(max_length=100)]
IdempotencyKey = Annotated[str, Header(alias="Idempotency-Key", max_length=KEY_CHARS_MAX + 2)]
"""Bare, or in quotes as the draft of its RFC has it."""
CREATED: Final[dict[int | str, dict[str, Any]]] = {
    201: {"headers": {"Location": {"schema": {"type": "string"}, "description": "Where the job is"}}}
}


@router.post("/jobs", status_code=201, dependencies=[SUBMITS], responses=refusals(409) | CREATED)
async def submit(
    services: ServicesHere, asker: AskerHere, request: SubmitRequest, response: Response, header: IdempotencyKey = ""
) -> JobView:
    """Accepts a job, or refuses it with the one thing to change. With a key that was used before it answers with the first job, and
    checks nothing that was there then and may be gone; 409 when that was another job."""
    parsed = await asyncio.to_thread(parse_spec, dict(request.spec))  # one of the largest size holds up nobody else
    spec = with_team(services, asker, parsed)
    key = _teams_own(spec.team, _key_of(request.key, header))
    is_known = bool(key) and await asyncio.to_thread(services.store.job_of_key, key) is not None
    if not is_known:
        await asyncio.to_thread(others_files.refuse, services, asker.person, spec)  # its paths may lie on a disk that is away
        await _refuse_missing(services, asker, spec, request.code)

    def act(controller: Controller) -> JobId:
        if not is_known and services.blobs.is_doomed(request.code):  # asked where the collection dooms: nothing comes between
            raise SpecError("code", request.code, "was collected as garbage just now; submit again, which sends it again")
        return controller.submit(spec, request.code, key, asker.name)

    job = await change(services, asker, "job.submit", "", act)
    response.headers["Location"] = f"/api/v1/jobs/{job}"
    return await job_view_of(services, asker, services.control.world.jobs[job])


def _key_of(in_body: str, in_header: str) -> str:
    """The key, from wherever it was written. Raises SpecError for two."""
    named = in_header[1:-1] if len(in_header) > 1 and in_header[0] == in_header[-1] == '"' else in_header
    if in_body and named and in_body != named:
        raise SpecError("Idempotency-Key", named, f"is not the key in the body, {in_body[:80]!r}; write one of them, or the same")
    return named or in_body


async def _refuse_missing(services: Services, asker: Asker, spec: JobSpec, code: str) -> None:
    """Raises SpecError for what the job names and nobody has, or not they."""
    if code and not await on_blob_thread(blob_rights.has, services, asker.person, code):
        raise SpecError("code", code, "send the packed workdir to /api/v1/blobs first")
    if spec.environment.lock and not code:
        raise SpecError("environment.lock", spec.environment.lock, "is a file of workdir: send that packed, and name it as code")
    await _refuse_unknown_secrets(services, spec)
    if spec.notify is not None:
        loopback = not spec.team or not (await directory_of(services)).strangers
        webhook.check_literal(spec.notify.webhook, loopback)


@router.get("/jobs", dependencies=[READS], responses=LINK)
async def list_jobs(
    services: ServicesHere,
    asker: AskerHere,
    request: Request,
    response: Response,
    page: Annotated[Page, Depends(Pages("jobs", int, limit=100))],
    queue: Filter = "",
    project: Filter = "",
    state: Filter = "",
) -> tuple[JobView, ...]:
    """Jobs, newest first. `state`: also how a finished one ended, as its list shows."""
    found = (
        job
        for job in newest_first(services.control.world, page.after)
        if sees(asker, job) and queue in ("", job.spec.queue) and project in ("", job.spec.project) and state in _names(job.state)
    )
    jobs = page.cut(found, lambda job: (job.sequence,))
    return await _unless_known(services, asker, request, response, jobs)


async def _unless_known(
    services: Services, asker: Asker, request: Request, response: Response, jobs: Sequence[JobRecord]
) -> tuple[JobView, ...]:
    """The views of `jobs`. Raises NotModified: a view is made of the committed world, of what its asker may see of it, and of what
    its job waits for, has measured and is late by, which cost little to read."""
    world, newest = services.control.world, [await _newest_step(services, job) for job in jobs]
    now_ms, waiting = services.clock.now_ms(), services.control.waiting
    volatile = [
        (job.id, waiting.get(job.id), (step.step, step.ended_ms) if step else None, views.late_of(world, job, now_ms))
        for job, step in zip(jobs, newest, strict=True)
    ]
    unless_known(request, response, tag_of(asker.sight, services.control.epoch, world.seq, volatile))
    return tuple([await job_view_of(services, asker, job) for job in jobs])


def newest_first(world: World, after: Key | None) -> Iterator[JobRecord]:
    """Those before the key `after`. Jobs lie in the order of their numbers."""
    known = list(world.jobs.values())
    end = bisect_left(known, int(after[0]), key=lambda job: job.sequence) if after else len(known)
    return (known[at] for at in range(end - 1, -1, -1))


def _names(state: JobState) -> tuple[str, ...]:
    """What asks for it: nothing, its name, and of a finished one its outcome."""
    return ("", state.name, state.outcome) if isinstance(state, Finished) else ("", state.name)


@router.get("/jobs/{job}", dependencies=[READS])
async def get_job(services: ServicesHere, asker: AskerHere, request: Request, response: Response, job: JobHere) -> JobView:
    """One job."""
    (view,) = await _unless_known(services, asker, request, response, (job,))
    return view


@router.post("/jobs/{job}/cancel", dependencies=[SUBMITS], responses=refusals(409))
async def cancel(services: ServicesHere, asker: AskerHere, job: JobToChange, array: Annotated[bool, Query()] = False) -> JobView:
    """Asks it to end; its ranks get SIGTERM, and SIGKILL later. `array`: with it all jobs of its array."""
    await change(services, asker, "job.cancel", job.id, lambda controller: controller.cancel(job.id, asker.name, array))
    return await job_view_of(services, asker, services.control.world.jobs[job.id])


@router.post("/jobs/{job}/pause", dependencies=[SUBMITS], responses=refusals(409))
async def pause(services: ServicesHere, asker: AskerHere, job: JobToChange) -> JobView:
    """Asks it to let go of its devices until it is resumed. Asking twice is asking once."""
    await change(services, asker, "job.pause", job.id, lambda controller: controller.pause(job.id, asker.name))
    return await job_view_of(services, asker, services.control.world.jobs[job.id])


@router.post("/jobs/{job}/resume", dependencies=[SUBMITS], responses=refusals(409))
async def resume(services: ServicesHere, asker: AskerHere, job: JobToChange) -> JobView:
    """A paused job waits for devices again; one that goes on anyway is left alone."""
    await change(services, asker, "job.resume", job.id, lambda controller: controller.resume(job.id, asker.name))
    return await job_view_of(services, asker, services.control.world.jobs[job.id])


@router.post("/jobs/{job}/retry", dependencies=[SUBMITS], responses=refusals(409))
async def retry(services: ServicesHere, asker: AskerHere, job: JobToChange) -> JobView:
    """Opens a job that failed or was cancelled again, from its last checkpoint and with all its restarts before it."""
    await change(services, asker, "job.retry", job.id, lambda controller: controller.retry(job.id, asker.name))
    return await job_view_of(services, asker, services.control.world.jobs[job.id])


async def _refuse_unknown_secrets(services: Services, spec: JobSpec) -> None:
    """Raises SpecError for a secret that is not stored: better now than when its ranks shall start."""
    signing = (spec.notify.secret,) if spec.notify and spec.notify.secret else ()
    for field, names in (("secrets", spec.secrets), ("secret_files", spec.secret_files), ("notify.secret", signing)):
        missing = await asyncio.to_thread(services.secrets.missing, names, spec.team) if names else ()
        if missing:
            raise SpecError(field, missing[0], f"is not stored; set it first: `phalanx secret set {missing[0]}`")


def with_team(services: Services, asker: Asker, spec: JobSpec) -> JobSpec:
    """The spec of the team for which they submit. Raises SpecError, Forbidden."""
    return replace(spec, team=team_for(services, asker.person, spec.team, "member"))


def _teams_own(team: str, key: str) -> str:
    """Keys are each team's own: with another's a submit would be answered with their job. One that is too long is told so later."""
    own = bool(team and key) and len(key) <= KEY_CHARS_MAX
    return f"{team}:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}" if own else key


async def job_view_of(services: Services, asker: Asker, job: JobRecord) -> JobView:
    """With where its newest attempt stands."""
    newest, before = await _newest_step(services, job), None
    if newest is not None and job.attempt is not None:
        before = await asyncio.to_thread(services.series.step_before, job.attempt, newest, PACE_STEPS)
    progress = progress_of(newest, before) if newest else None
    view = views.job_view(
        services.control.world, job, services.control.waiting, progress, services.clock.now_ms(), services.home / "jobs"
    )
    return veil_of(services, asker).job(view, job.spec)


async def _newest_step(services: Services, job: JobRecord) -> StepRecord | None:
    """Of its newest attempt; None of a job that waits."""
    if job.attempt is None or isinstance(job.state, Pending):
        return None
    return await asyncio.to_thread(services.series.last_step, job.attempt)


def progress_of(newest: StepRecord, before: StepRecord | None = None) -> Progress:
    """Where a run stands by its newest step. The rest is taken to go as fast as the steps since `before`, saves and waits among
    them; where there is none, as that step."""
    steps_left, left_s = newest.total_steps - newest.step, None
    if before is not None and newest.ended_ms > before.ended_ms:
        left_s = steps_left * (newest.ended_ms - before.ended_ms) / 1000 / (newest.step - before.step)
    elif newest.tokens > 0 and newest.tokens_per_s > 0:
        left_s = steps_left * newest.tokens / newest.tokens_per_s
    return Progress(
        step=newest.step,
        total_steps=newest.total_steps,
        loss=newest.loss,
        tokens_per_s=newest.tokens_per_s,
        mfu=newest.mfu,
        eta_ms=None if left_s is None else max(0, round(left_s * 1000)),
        data_wait_ms=newest.data_wait_ms,
        data_wait_cause=newest.data_wait_cause,
        images_per_s=newest.images_per_s,
    )
