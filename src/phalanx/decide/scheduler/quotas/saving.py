"""What a queue has left of its quota or limit is saved for a job that has waited for it for long: else a stream of smaller jobs,
which fit into what each of them leaves, would starve a large gang. Other queues may borrow what is saved meanwhile.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from phalanx.core.ids import JobId
from phalanx.core.reasons import OverLimit, OverQuota
from phalanx.decide.scheduler.quotas.lines import Line, account, devices, under
from phalanx.decide.scheduler.snapshot import PendingJob

SAVES_MS: Final = 1_800_000
"""A job that has waited so long is not passed by jobs of its queue any more."""

Account = tuple[Line, str, bool]
"""A line, an entry of its quota, or of its limit (True)."""


class Book(NamedTuple):
    """What an account may have, and what counts against that now, in thousandths of devices."""

    account: Account
    bound: int
    used: int
    is_limit: bool


def has_waited_long(job: PendingJob, now_ms: int) -> bool:
    return now_ms - (job.since_ms or job.facts.submitted_ms) > SAVES_MS


def books(path: Sequence[Line], kind: str) -> Iterator[Book]:
    """Of the limits and quotas that devices of the type count against, the nearest line's first."""
    for line in path:
        for bounds, amounts, is_limit in ((line.limit, line.held, True), (line.quota, line.used, False)):
            entry = account(bounds, kind)
            if entry is not None:
                yield Book((line, entry, is_limit), bounds[entry], under(amounts, bounds, entry), is_limit)


def refused(book: Book, amount: int, saved_for: JobId | None = None) -> OverLimit | OverQuota:
    """Why a job may not have so much: its limit has no more, or what is left is saved for one that came before it."""
    line, entry, is_limit = book.account
    numbers = devices(book.bound), devices(book.used), devices(amount)
    because = "" if saved_for is None else f"what is left is saved for {saved_for}, which came before it"
    return OverLimit(line.name, entry, *numbers, because) if is_limit else OverQuota(line.name, entry, *numbers, because)
