"""Waiting for a job, its logs and its traces as they grow. All outlive a server that is killed and started again."""

from functools import partial
from typing import Final

from phalanx.client import jobs
from phalanx.client.steps import Give, Giving, Now, Program, Rest, patiently
from phalanx.core.errors import NotFound, WaitTimeout, WorldError
from phalanx.core.trace_request import TraceRequestView
from phalanx.core.views import JobView, LogPage

END_BYTES: Final = 65_536
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

    A page without text is not yielded. A server that is away for less than `patience_s` on end is waited for.
    """
    current = attempt or (yield from _next_attempt(job, "", poll_s, patience_s))
    while current:
        yield from _one_attempt(job, rank, current, poll_s, patience_s)
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


def _one_attempt(job: str, rank: int, attempt: str, poll_s: float, patience_s: float) -> Giving[LogPage]:
    offset = 0
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
