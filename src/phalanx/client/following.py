"""Waiting for a job, its logs and its traces as they grow. All outlive a server that is killed and started again."""

from collections.abc import Generator
from functools import partial
from typing import Any, Final

from phalanx.client import jobs
from phalanx.client.checks import job_path
from phalanx.client.steps import Give, Giving, Hear, Listen, Now, Program, Rest, Step, patiently
from phalanx.core import wire
from phalanx.core.errors import NotFound, RateLimited, ServerUnreachable, StoreUnavailable, WaitTimeout, WorldError
from phalanx.core.trace_request import TraceRequestView
from phalanx.core.views import JobView, LogPage

END_BYTES: Final = 65_536
AGAIN_S: Final = 0.5
"""Before a stream that ended without a word is opened again."""

WRITTEN_S_MAX: Final = 900.0
"""From the last of the steps on: a trace is summed up in ten minutes or not at all, and then sent."""


def wait(job: str, timeout_s: float | None = None, poll_s: float = 1.0, patience_s: float = 120.0) -> Program[JobView]:
    """The job once it has finished; a paused one is waited for until it is resumed and ends.

    Raises WaitTimeout after `timeout_s`, ServerUnreachable once the server was away for `patience_s` on end."""
    end_s = None if timeout_s is None else (yield Now()) + timeout_s
    while True:
        patience_left_s = patience_s if end_s is None else max(0.0, min(patience_s, end_s - (yield Now())))
        try:
            view = yield from patiently(partial(jobs.job, job), patience_left_s)
        except WorldError as error:
            if patience_left_s >= patience_s:  # the patience ended, not the time
                raise
            raise WaitTimeout(f"{job} was not seen to finish in {timeout_s:g} s, and now {error}") from error
        if view.state == "finished":
            return view
        if end_s is not None and (yield Now()) >= end_s:
            goes_on = f"`phalanx resume {job}` lets it go on" if view.state == "paused" else "it goes on"
            raise WaitTimeout(f"{job} is still {view.state} after {timeout_s:g} s; {goes_on}, and `phalanx wait {job}` waits again")
        yield Rest(poll_s if end_s is None else max(0.0, min(poll_s, end_s - (yield Now()))))


def follow_logs(job: str, rank: int = 0, attempt: str = "", poll_s: float = 0.5, patience_s: float = 120.0) -> Giving[LogPage]:
    """Pages of one rank's log as they grow, attempt after attempt, until the job has finished; only `attempt` when given.

    A page without text is not yielded. A server that is away for less than `patience_s` on end is waited for. The server tells what
    comes; one that does not, or has no stream left, is asked each `poll_s` instead.
    """
    place = yield from _begun(job, rank, attempt, patience_s)
    place = yield from _told(job, rank, attempt, place, patience_s)
    yield from _asked(job, rank, attempt, place, poll_s, patience_s)


def _begun(job: str, rank: int, attempt: str, patience_s: float) -> Generator[Step | Give[LogPage], Any, str]:
    """The first page, and the place (`attempt@offset`) after it; '' where the job has not started yet. Raises NotFound for what is
    not there: a stream would wait for it."""
    try:
        page = yield from patiently(partial(jobs.logs, job, rank, attempt), patience_s)
    except NotFound as error:
        if attempt or error.field != "attempt":
            raise
        return ""
    if page.text:
        yield Give(page)
    return f"{page.attempt}@{page.next_offset}"


def _told(job: str, rank: int, attempt: str, place: str, patience_s: float) -> Generator[Step | Give[LogPage], Any, str]:
    """What follows `place`, as the server tells it, and up to where it did. A stream ends with its token too, so at its end the
    rest is asked for."""
    away_since_s: float | None = None
    while True:
        try:
            yield Listen(f"{job_path(job)}/logs/stream", {"rank": rank, "attempt": attempt}, place)
            while (heard := (yield Hear())) is not None:
                away_since_s = None
                if heard.kind == "end":
                    return place
                place = heard.at or place
                if heard.kind == "log":
                    yield Give(wire.loads(LogPage, heard.data))
        except NotFound as error:
            if error.field != "path":
                raise
            return place  # a server from before there were streams
        except (RateLimited, StoreUnavailable):
            return place
        except ServerUnreachable:
            now_s = yield Now()
            away_since_s = now_s if away_since_s is None else away_since_s
            if now_s - away_since_s >= patience_s:
                raise
        yield Rest(AGAIN_S)  # a server that ends closes its streams first


def _asked(job: str, rank: int, attempt: str, place: str, poll_s: float, patience_s: float) -> Giving[LogPage]:
    """Page by page, from a place on."""
    known, _, offset = place.rpartition("@")
    current = known or attempt or (yield from _next_attempt(job, "", poll_s, patience_s))
    at = int(offset or 0)
    while current:
        yield from _one_attempt(job, rank, current, at, poll_s, patience_s)
        at = 0
        current = "" if attempt else (yield from _next_attempt(job, current, poll_s, patience_s))


def log_end(job: str, rank: int = 0, attempt: str = "") -> Program[str]:
    """About the last 64 KiB of one rank's log, all of a shorter one, however long it is."""
    # Bisects by the pages' word that nothing follows them: how long the log is, no page says.
    page = yield from jobs.logs(job, rank, attempt, 0, END_BYTES)
    if page.ended or not page.text:
        return page.text
    low, high = 0, END_BYTES  # something follows the page at `low`
    while _goes_on((yield from jobs.logs(job, rank, attempt, high, END_BYTES))):
        low, high = high, 2 * high
    while high - low > END_BYTES:
        middle = (low + high) // 2
        goes_on = _goes_on((yield from jobs.logs(job, rank, attempt, middle, END_BYTES)))
        low, high = (middle, high) if goes_on else (low, middle)
    page = yield from jobs.logs(job, rank, attempt, low, END_BYTES)
    return page.text + (yield from jobs.logs(job, rank, attempt, page.next_offset, END_BYTES)).text


def follow_traces(asked: TraceRequestView, poll_s: float = 1.0, patience_s: float = 120.0) -> Giving[TraceRequestView]:
    """How the request comes on, until each rank's summary is there or will not be: `profile` has them then. Raises
    ServerUnreachable once the server was away for `patience_s` on end."""
    view, made_s = asked, None if asked.at_step < asked.last else (yield Now())
    while view.left and not view.ended:
        if made_s is not None and (yield Now()) - made_s >= WRITTEN_S_MAX:
            return
        yield Rest(poll_s)
        seen = yield from patiently(partial(jobs.trace_request, asked.job, asked.attempt, asked.number), patience_s)
        if made_s is None and seen.at_step >= seen.last:
            made_s = yield Now()
        if seen != view:
            yield Give(seen)
        view = seen


def _goes_on(page: LogPage) -> bool:
    return bool(page.text) and not page.ended


def _one_attempt(job: str, rank: int, attempt: str, offset: int, poll_s: float, patience_s: float) -> Giving[LogPage]:
    while True:
        page = yield from patiently(partial(jobs.logs, job, rank, attempt, offset), patience_s)
        if page.text:
            yield Give(page)
        if page.ended and page.next_offset == offset:
            return
        if page.next_offset == offset:
            yield Rest(poll_s)
        offset = page.next_offset


def _next_attempt(job: str, seen: str, poll_s: float, patience_s: float) -> Program[str]:
    """The attempt after `seen`, or the newest when `seen` is ''; waited for. '' once the job has finished without one."""
    while True:
        view = yield from patiently(partial(jobs.job, job), patience_s)
        names = [str(one.attempt) for one in view.attempts]
        if seen and seen not in names:
            raise NotFound("attempt", seen, f"is not an attempt of {job}")
        later = names[names.index(seen) + 1 :] if seen else names[-1:]
        if later:
            return later[0]
        if view.state == "finished":
            return ""
        yield Rest(poll_s)
