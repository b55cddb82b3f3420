"""What a queue has left of its quota or limit is saved for a job that has waited for it for long: else a stream of smaller jobs,
which fit into what each of them leaves, would starve a large gang. Other queues may borrow what is saved meanwhile.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.reasons import OverLimit, OverQuota
from phalanx.decide.scheduler.quotas.lines import Line, account, devices, under
from phalanx.decide.scheduler.snapshot import PendingJob

SAVES_MS: Final = 1_800_000
"""A job that has waited so long is not passed by jobs of its queue any more."""

Account = tuple[Line, str, bool]
"""A line, an entry of its quota, or of its limit (True)."""


def has_waited_long(job: PendingJob, now_ms: int) -> bool:
    return now_ms - (job.since_ms or job.facts.submitted_ms) > SAVES_MS


def short_of(path: Sequence[Line], kind: str, amount: int) -> Iterator[Account]:
    """Accounts that hold so much of a type when nothing of them is used, and do not now."""
    for line, entry, is_limit in accounts(path, kind):
        bounds, amounts = _kept_by(line, is_limit)
        if amount <= bounds[entry] < under(amounts, bounds, entry) + amount:
            yield line, entry, is_limit


def refusal(path: Sequence[Line], kind: str, amount: int, saved: dict[Account, JobId]) -> OverLimit | OverQuota | None:
    """Why a job may not have so much although it is there: one that came before it waits for it."""
    for one in accounts(path, kind) if saved else ():
        if one in saved:
            line, entry, is_limit = one
            bounds, amounts = _kept_by(line, is_limit)
            numbers = devices(bounds[entry]), devices(under(amounts, bounds, entry)), devices(amount)
            because = f"what is left is saved for {saved[one]}, which came before it"
            return OverLimit(line.name, entry, *numbers, because) if is_limit else OverQuota(line.name, entry, *numbers, because)
    return None


def accounts(path: Sequence[Line], kind: str) -> Iterator[Account]:
    for line in path:
        for is_limit in (True, False):
            entry = account(_kept_by(line, is_limit)[0], kind)
            if entry is not None:
                yield line, entry, is_limit


def _kept_by(line: Line, is_limit: bool) -> tuple[dict[str, int], dict[str, int]]:
    """What it may have, and what counts against that."""
    return (line.limit, line.held) if is_limit else (line.quota, line.used)
