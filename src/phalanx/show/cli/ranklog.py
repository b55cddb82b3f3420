"""One rank's log as lines: as it grows beside a followed job, and its end when the job failed."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from phalanx.core.errors import NotFound
from phalanx.core.views import AttemptView, JobView, LogPage
from phalanx.show.cli.text import clean

if TYPE_CHECKING:
    from phalanx.client import Client

Patiently = Callable[[Callable[[], LogPage]], LogPage]
TAIL_LINES: Final = 10
LINE_CHARS_MAX: Final = 500
_REST_CHARS_MAX: Final = 64 * 1024
"""Kept of a line that has no end yet: a rank may write a gigabyte of one."""
INDENT: Final = "  "


class GrowingLog:
    """The new lines of one rank, attempt after attempt, for a job that says nothing else of how far it is.

    A job of a recipe, or one that has reported a step, has none: its progress is shown instead. What ended before the first look
    is left out.
    """

    def __init__(self, client: "Client", first: JobView, rank: int = 0) -> None:
        self._client = client
        self._rank = rank
        self._silent = bool(first.spec.get("recipe"))
        self._offsets = {str(one.attempt): 0 for one in first.attempts}
        self._over = {str(one.attempt) for one in first.attempts if one.ended_ms is not None}
        self._rest = ""

    def has_shown(self, attempt: str, rank: int) -> bool:
        """Whether that rank's log stands above, to its end."""
        return rank == self._rank and self._offsets.get(attempt, 0) > 0 and attempt in self._over

    def fresh(self, job: JobView, attempt: AttemptView, patiently: Patiently) -> Iterator[str]:
        """Whole lines since the last look; what has no newline yet waits for it, or for the attempt's end."""
        name = str(attempt.attempt)
        self._silent = self._silent or job.progress is not None
        if self._silent or name in self._over or attempt.running_ms is None:
            return
        while True:
            page = patiently(partial(self._client.logs, job.id, self._rank, name, self._offsets.get(name, 0)))
            self._offsets[name] = page.next_offset
            *lines, rest = (self._rest + page.text).split("\n")
            self._rest = _kept(rest)
            yield from (shown(text) for text in lines)
            if page.ended or page.next_offset == page.offset:
                break
        if page.ended:
            self._over.add(name)
            if self._rest:
                yield shown(self._rest)
            self._rest = ""


def failed_rank(job: JobView) -> tuple[str, int] | None:
    """(attempt, rank) to look at when the newest attempt of `job` failed: the rank that fell first.

    Where the job goes on and none fell first, they were all stopped on purpose, as for a pause.
    """
    if not job.attempts or job.outcome in ("succeeded", "cancelled") or job.state == "paused":
        return None
    newest = job.attempts[-1]
    fallen = sorted((not one.first, one.at_ms, one.rank) for one in newest.exits if one.code != 0)
    if job.state != "finished" and not any(one.first for one in newest.exits):
        return None
    return (str(newest.attempt), fallen[0][2]) if newest.ended_ms is not None and fallen else None


def log_command(job: JobView) -> str:
    """'`phalanx logs JOB --rank R`' of a job that failed, else ''."""
    fallen = failed_rank(job)
    return f"`phalanx logs {job.id} --rank {fallen[1]}`" if fallen else ""


def last_words(client: "Client", job: JobView, seen: GrowingLog) -> Sequence[str]:
    """What a failed job's first fallen rank wrote last, unless that was `seen` already, and where the rest stands."""
    fallen = failed_rank(job)
    if fallen is None:
        return []
    attempt, rank = fallen
    if seen.has_shown(attempt, rank):
        return [f"All of its log: {log_command(job)}"]
    try:
        lines = client.log_end(job.id, rank, attempt).rstrip().split("\n")[-TAIL_LINES:]
    except NotFound:  # the log never came: its node was lost with it
        lines = [""]
    if lines == [""]:
        return [f"Rank {rank} wrote nothing; see {log_command(job)}"]
    return [f"Last lines of rank {rank}:", *(shown(text) for text in lines), f"All of it: {log_command(job)}"]


def _kept(rest: str) -> str:
    """As much of an unfinished line as its beginning, and what it is redrawn with, can still show."""
    if len(rest) <= _REST_CHARS_MAX:
        return rest
    redrawn = rest.rstrip("\r").rpartition("\r")[2]
    return redrawn[:_REST_CHARS_MAX] + ("\r" if rest.endswith("\r") else "")


def shown(text: str) -> str:
    """One line of a log below the lines about the job. Of a line that is redrawn with carriage returns, what stood there last."""
    last = text.rstrip("\r").rpartition("\r")[2].expandtabs(4)
    return INDENT + clean(last if len(last) <= LINE_CHARS_MAX else last[: LINE_CHARS_MAX - 1] + "…")
