"""Waiting for a job and reading its logs as they grow. Both outlive a server that is killed and started again."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from phalanx.core.errors import NotFound, WaitTimeout, WorldError
from phalanx.core.views import JobView, LogPage

if TYPE_CHECKING:
    from phalanx.client.api import Client

END_BYTES: Final = 65_536


def wait(client: "Client", job: str, timeout_s: float | None, poll_s: float, patience_s: float) -> JobView:
    """See Client.wait."""
    end_s = None if timeout_s is None else client.now_s() + timeout_s
    while True:
        patience_left_s = patience_s if end_s is None else max(0.0, min(patience_s, end_s - client.now_s()))
        try:
            view = client.patient(lambda: client.job(job), patience_left_s)
        except WorldError as error:
            if patience_left_s >= patience_s:  # the patience ended, not the time
                raise
            raise WaitTimeout(f"{job} was not seen to finish in {timeout_s:g} s, and now {error}") from error
        if view.state == "finished":
            return view
        if end_s is not None and client.now_s() >= end_s:
            goes_on = f"`phalanx resume {job}` lets it go on" if view.state == "paused" else "it goes on"
            raise WaitTimeout(f"{job} is still {view.state} after {timeout_s:g} s; {goes_on}, and `phalanx wait {job}` waits again")
        client.rest(poll_s if end_s is None else max(0.0, min(poll_s, end_s - client.now_s())))


def logs(client: "Client", job: str, rank: int, attempt: str, poll_s: float, patience_s: float) -> Iterator[LogPage]:
    """See Client.follow_logs."""
    current = attempt or _next_attempt(client, job, "", poll_s, patience_s)
    while current:
        yield from _one_attempt(client, job, rank, current, poll_s, patience_s)
        current = "" if attempt else _next_attempt(client, job, current, poll_s, patience_s)


def log_end(client: "Client", job: str, rank: int, attempt: str) -> str:
    """See Client.log_end. Bisects by the pages' word that nothing follows them: how long the log is, no page says."""
    page = client.logs(job, rank, attempt, 0, END_BYTES)
    if page.ended or not page.text:
        return page.text
    low, high = 0, END_BYTES  # something follows the page at `low`
    while _goes_on(client.logs(job, rank, attempt, high, END_BYTES)):
        low, high = high, 2 * high
    while high - low > END_BYTES:
        middle = (low + high) // 2
        low, high = (middle, high) if _goes_on(client.logs(job, rank, attempt, middle, END_BYTES)) else (low, middle)
    page = client.logs(job, rank, attempt, low, END_BYTES)
    return page.text + client.logs(job, rank, attempt, page.next_offset, END_BYTES).text


def _goes_on(page: LogPage) -> bool:
    return bool(page.text) and not page.ended


def _one_attempt(client: "Client", job: str, rank: int, attempt: str, poll_s: float, patience_s: float) -> Iterator[LogPage]:
    offset = 0
    while True:
        page = client.patient(partial(client.logs, job, rank, attempt, offset), patience_s)
        if page.text:
            yield page
        if page.ended and page.next_offset == offset:
            return
        if page.next_offset == offset:
            client.rest(poll_s)
        offset = page.next_offset


def _next_attempt(client: "Client", job: str, seen: str, poll_s: float, patience_s: float) -> str:
    """The attempt after `seen`, or the newest when `seen` is ''; waited for. '' once the job has finished without one."""
    while True:
        view = client.patient(lambda: client.job(job), patience_s)
        names = [str(one.attempt) for one in view.attempts]
        if seen and seen not in names:
            raise NotFound("attempt", seen, f"is not an attempt of {job}")
        later = names[names.index(seen) + 1 :] if seen else names[-1:]
        if later:
            return later[0]
        if view.state == "finished":
            return ""
        client.rest(poll_s)
