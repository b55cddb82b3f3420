"""Who is guaranteed what it asks for, and so comes first; and who of a queue may not be passed by that any more."""

import math
from collections.abc import Callable

from phalanx.decide.scheduler.quotas.fair import Ask
from phalanx.decide.scheduler.quotas.saving import Account
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import PendingJob

_Alike = tuple[str, tuple[str, ...]]
"""Of an ask: the queue, and the types of devices."""


class Guarantees:
    """Whether jobs are guaranteed what they ask for. Who is not would take what nobody is guaranteed, or borrow: all these stand in
    one line, else those who need not borrow would pass for ever one that asks for more. What is not guaranteed once is not for the
    whole decision, since what is used only grows, but for evictions; nor is more of the same."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._moves = -1
        self._bounds: dict[_Alike, tuple[float, int]] = {}  # the least that is not, the most that is

    def lack(self, ask: Ask) -> bool:
        if self._tree.moves != self._moves:
            self._moves = self._tree.moves
            self._bounds = {alike: (least, -1) for alike, (least, _) in self._bounds.items()}
        queue, types, amount = ask
        least, most = self._bounds.get((queue, types), (math.inf, -1))
        if amount >= least:
            return True
        if amount <= most:
            return False
        found = not self._tree.is_within(queue, types, amount)
        self._bounds[queue, types] = (amount, most) if found else (least, amount)
        return found


class Passed:
    """Jobs that have waited for long and ask for more than they are guaranteed. Those that come after them in their queue, or take
    of a quota or limit what they ask for themselves, do not pass them by being guaranteed less: else a stream of small jobs would
    keep a large one of its own queue waiting for ever."""

    def __init__(self, tree: Tree, may_start: Callable[[PendingJob], bool]) -> None:
        self._tree, self._may_start = tree, may_start
        self._queues: set[str] = set()
        self._needs: dict[Account, int] = {}
        self._seen: set[Ask] = set()
        self._room: dict[tuple[_Alike, int, int], float] = {}

    def add(self, job: PendingJob, ask: Ask) -> None:
        if ask in self._seen or not self._tree.saves_for(job) or not self._may_start(job):
            return
        self._seen.add(ask)
        for account, amount in self._tree.needs(job.facts).items():
            self._needs[account] = max(amount, self._needs.get(account, 0))
        if self._tree.may_have(job.facts):
            self._queues.add(ask[0])

    def would_be_by(self, ask: Ask) -> bool:
        """Whether who asks for this would pass one of them."""
        if not self._seen:
            return False
        queue, types, amount = ask
        key = (queue, types), len(self._seen), self._tree.moves
        if key not in self._room:
            self._room[key] = self._tree.room_beside(queue, types, self._needs)
        return queue in self._queues or amount > self._room[key]
