"""What lines are guaranteed: who is within a guarantee, who borrows, and what may be lent.

A line that holds less than its quota commits all of it, one that holds more commits what it holds. A job that makes some line above
it commit no more is within that line's guarantee. Else it takes from what nobody is guaranteed, and where that is not enough it
borrows what others are guaranteed and do not use.
"""

from collections.abc import Mapping
from itertools import pairwise

from phalanx.core.policy import ANY
from phalanx.decide.scheduler.quotas.lines import Line, account, under


def commit(path: tuple[Line, ...], kind: str, amount: int) -> None:
    """`amount` more of a type (less, if negative) is held in the first line of `path`."""
    arriving, loose = amount, 0
    for line in path:
        above = _above(line, kind, arriving, loose)
        line.committed[kind] = line.committed.get(kind, 0) + arriving
        line.committed[ANY] = line.committed.get(ANY, 0) + loose
        line.unnamed += loose if kind in line.quota else arriving + loose
        arriving, loose = above


def guarantee(line: Line) -> None:
    """Commits the line's quota, of which nothing is held yet; the lines above it come first."""
    for kind, quota in line.quota.items():
        if kind != ANY:
            commit(line.path[1:], kind, quota)
    loose = line.quota.get(ANY, 0)
    for above in line.path[1:]:
        left = _above(above, ANY, 0, loose)[1]
        above.committed[ANY] = above.committed.get(ANY, 0) + loose
        above.unnamed += loose
        loose = left


def guarantor(path: tuple[Line, ...], kind: str, amount: int) -> Line | None:
    """The nearest line within whose quota so much more of the type is; None when it is within none, or when one below may not use
    more than its own."""
    arriving, loose = amount, 0
    for line in path:
        entry = account(line.quota, kind)
        if entry is not None:
            more = arriving if entry == kind else arriving + loose
            committed = line.committed.get(kind, 0) if entry == kind else line.unnamed
            if committed + more <= line.quota[entry]:
                return line
            if not line.queue.borrow:
                return None
        arriving, loose = _above(line, kind, arriving, loose)
    return None


def encroaches(path: tuple[Line, ...], kind: str, amount: int, capacity: Mapping[str, int]) -> bool:
    """Whether so much more is only there while others do not use what they are guaranteed. `capacity`: of the fleet by type."""
    arriving, loose = amount, 0
    for line in path[:-1]:
        arriving, loose = _above(line, kind, arriving, loose)
    root = path[-1]
    whole = sum(root.committed.values()) + arriving + loose
    return root.committed.get(kind, 0) + arriving > capacity.get(kind, 0) or whole > sum(capacity.values())


def _above(line: Line, kind: str, arriving: int, loose: int) -> tuple[int, int]:
    """What more the line commits of the one above when `arriving` more of a type, and `loose` more of any, are committed of it."""
    quota = line.quota
    if not quota:
        return arriving, loose
    unnamed = arriving + loose
    if kind in quota:
        before = line.committed.get(kind, 0)
        unnamed, arriving = loose, max(quota[kind], before + arriving) - max(quota[kind], before)
    if ANY in quota:
        loose += max(0, quota[ANY] - line.unnamed - unnamed) - max(0, quota[ANY] - line.unnamed)
    return arriving, loose


def keep(path: tuple[Line, ...], kind: str) -> bool:
    """Works out again what the lines of `path` keep of their quota for themselves, after what they use of a type has changed;
    whether that is something else now."""
    changed = False
    for line in path:
        above = line.parent
        if above is None:
            break
        for entry in {kind, ANY}:
            kept = max(_own(line, entry), line.below.get(entry, 0))
            change = kept - line.kept.get(entry, 0)
            if change:
                line.kept[entry] = kept
                above.below[entry] = above.below.get(entry, 0) + change
                changed = True
    return changed


def kept_by_others(queue: Line) -> dict[str, int]:
    """What is kept from the queue's own jobs, by those below it and those beside its path, by type; of any type under ANY."""
    found = dict(queue.below)
    for line, above in pairwise(queue.path):
        for entry, amount in above.below.items():
            found[entry] = found.get(entry, 0) + amount - line.kept.get(entry, 0)
    return found


def _own(line: Line, entry: str) -> int:
    """A queue that does not lend keeps all that it does not use, others what their own jobs wait for."""
    if entry not in line.quota:
        return 0
    idle = max(0, line.quota[entry] - under(line.used, line.quota, entry))
    return min(idle, line.waiting.get(entry, 0)) if line.queue.lend else idle
