"""What lines deserve, and who may be asked to give devices back to whom.

A line deserves its quota, or where it has none its part, by weight, of what is left: at most what those in it hold and ask for, and
what some do not want goes to the others (max-min fairness). A job that its line deserves may take from lines that have more than
they deserve. Each such move makes the sum of what lines have too much smaller, and changes nothing of what anybody deserves, so
moves end: nothing goes back and forth.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.decide.scheduler.quotas import quota
from phalanx.decide.scheduler.quotas.lines import Line, account, under
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Snapshot
from phalanx.decide.scheduler.where.ground import Mask

Alike = tuple[PendingJob, int]
"""One of those that wait, and how many are like it."""

_Fair = dict[Line, float]
_Asks = dict[tuple[str, tuple[str, ...], int], int]
_SLACK: Final = 0.5
"""Of a thousandth of a device: parts are floats, what is held is whole."""


class _Ways(NamedTuple):
    """From one queue to those with gangs. mine: the lines on my way up that are not on theirs, each such way once, and `way`, which
    of them it is for each queue. theirs: the other way round, for each queue."""

    mine: tuple[tuple[Line, ...], ...]
    way: NDArray[np.intp]
    theirs: tuple[tuple[Line, ...], ...]


class Deserts:
    """Of one decision. It follows what is used of `tree`. Masks are over `gangs`, and not to be changed. waiting: all that wait."""

    def __init__(self, snapshot: Snapshot, tree: Tree, gangs: Gangs, waiting: Callable[[], Iterable[Alike]]) -> None:
        self._policy = snapshot.policy
        self._tree = tree
        self._gangs = gangs
        self._waiting = waiting
        self._kinds = {kind: number for number, kind in enumerate(tree.capacity)}
        self._queues = tuple(tree.lines.queue(name) for name in gangs.queues)
        self._nobody = np.zeros(len(gangs.all), np.bool_)
        self._ranked: NDArray[np.intp] | None = None
        self._ways: dict[Line, _Ways] = {}
        self._within: dict[Line, Mask] = {}
        self._fair: dict[str, _Fair] = {}
        self._last: dict[str, Mask] = {}
        self._asked: _Asks | None = None
        self._right_of: dict[tuple[Line, str, int], tuple[str, ...]] = {}
        self._moves = tree.moves
        self._reclaimable: dict[tuple[Line, str, tuple[str, ...], int], Mask] = {}
        self._protected: dict[tuple[Line, str], Mask] = {}
        self._too_much: dict[tuple[Line, str], bool] = {}

    def _follow(self) -> None:
        """Forgets what was found out before something was taken or let go of."""
        if self._moves != self._tree.moves:
            self._moves = self._tree.moves
            self._right_of.clear()
            self._reclaimable.clear()
            self._protected.clear()
            self._too_much.clear()

    def reclaimable(self, job: JobFacts, kind: str, num_devices: int) -> Mask:
        """Gangs that the job may have ended for it: its line deserves what it asks for, and theirs have more than they deserve. Of
        a queue's gangs it is those that came last, of the lowest priority. Where no quota says so, higher priorities stay."""
        mine, rights = self._tree.line(job).path, self.rights(job, kind, num_devices)
        if not any(rights):
            return self._nobody
        key = (mine[1], kind, rights, job.priority)
        if key not in self._reclaimable:
            self._reclaimable[key] = self._found_reclaimable(job, mine, kind, rights)
        return self._reclaimable[key]

    def may_reclaim(self, job: JobFacts, kind: str, num_devices: int, number: int) -> bool:
        """Whether that one of them is among these, when it is asked of one after the other while they let go."""
        mine, queue = self._tree.line(job).path, int(self._gangs.queue[number])
        ways = self._from(mine)
        right = self._right(ways.mine[ways.way[queue]], kind, num_devices * job.shape.request.milli)
        is_lower = right == "owner" or (right == "share" and self._gangs.priority[number] <= job.priority)
        lines = ways.theirs[queue]
        have_more = lines != () and all(self._found_too_much(line, kind) for line in lines)
        return bool(is_lower and have_more and self._came_last(kind)[number])

    def deserves(self, job: JobFacts, kind: str, num_devices: int) -> bool:
        """Whether the job may take so much from some other queue, had that too much."""
        return any(self.rights(job, kind, num_devices))

    def rights(self, job: JobFacts, kind: str, num_devices: int) -> tuple[str, ...]:
        """By what it may take so much from other queues, for each way up to what it has in common with them."""
        self._follow()
        mine, amount = self._tree.line(job).path, num_devices * job.shape.request.milli
        key = (mine[1], kind, amount)
        if key not in self._right_of:
            ways = self._from(mine).mine  # each of them is the first part of the longest
            owner = quota.guarantor(max(ways, key=len, default=()), kind, amount)
            self._right_of[key] = tuple("owner" if owner in own else self._share(own, kind, amount) for own in ways)
        return self._right_of[key]

    def _found_reclaimable(self, job: JobFacts, mine: Sequence[Line], kind: str, rights: Sequence[str]) -> Mask:
        ways = self._from(mine)
        strong, weak = (np.array([right == by for right in rights], np.bool_)[ways.way] for by in ("owner", "share"))
        too_much = np.array(
            [lines != () and all(self._has_too_much(line, kind) for line in lines) for lines in ways.theirs], np.bool_
        )
        if not too_much.any():
            return self._nobody
        at = self._gangs.queue
        allowed = strong[at] | (weak[at] & (self._gangs.priority <= job.priority))
        found: Mask = allowed & too_much[at] & self._came_last(kind)
        return found

    def protected(self, job: JobFacts, kind: str) -> Mask:
        """Gangs on the type that run within a guarantee that the job has no part in: they stay, whatever their priority."""
        if not self._gangs.all or not self._tree.has_quotas:
            return self._nobody
        self._follow()
        mine = self._tree.line(job).path
        key = (mine[1], kind)
        if key not in self._protected:
            self._protected[key] = self._found_protected(mine, kind)
        return self._protected[key]

    def protects(self, job: JobFacts, kind: str, number: int) -> bool:
        """Whether that one of them is among these, when it is asked of one after the other while they let go."""
        if not self._tree.has_quotas:
            return False
        queue = int(self._gangs.queue[number])
        guaranteed = [line for line in self._from(self._tree.line(job).path).theirs[queue] if account(line.quota, kind) is not None]
        if not all(self._found_too_much(line, kind) for line in guaranteed):
            return True
        return self._queues[queue] in guaranteed and not self._came_last(kind)[number]

    def _found_protected(self, mine: Sequence[Line], kind: str) -> Mask:
        whole, partly = np.zeros((2, len(self._queues)), np.bool_)
        for number, (queue, apart) in enumerate(zip(self._queues, self._from(mine).theirs, strict=True)):
            guaranteed = [line for line in apart if account(line.quota, kind) is not None]
            whole[number] = not all(self._has_too_much(line, kind) for line in guaranteed)
            partly[number] = queue in guaranteed
        at = self._gangs.queue
        found: Mask = whole[at] | (partly[at] & ~self._came_last(kind))
        return found

    def within(self, queue: Line) -> Mask:
        """Gangs of the queue and of those below it."""
        if queue not in self._within:
            inside = np.array([queue in one.path for one in self._queues], np.bool_)
            self._within[queue] = inside[self._gangs.queue] if self._gangs.all else self._nobody
        return self._within[queue]

    def _from(self, mine: Sequence[Line]) -> _Ways:
        if mine[1] not in self._ways:
            ways = [_apart(mine, queue.path) for queue in self._queues]
            each = tuple(dict.fromkeys(ways))
            way = np.array([each.index(one) for one in ways], np.intp)
            self._ways[mine[1]] = _Ways(each, way, tuple(_apart(queue.path, mine) for queue in self._queues))
        return self._ways[mine[1]]

    def fair(self, kind: str) -> _Fair:
        """What each line deserves of a type, in thousandths of devices; lines that want none are left out."""
        if kind not in self._fair:
            root = self._tree.lines.root
            found: _Fair = {root: float(self._tree.capacity.get(kind, 0))}
            _divide(root, kind, self._wanted(kind), found)
            self._fair[kind] = found
        return self._fair[kind]

    def _right(self, own: Sequence[Line], kind: str, amount: int) -> str:
        """By what the job may take from lines that it is not of: a guarantee, its share, or nothing. A share is only taken for a
        queue that the policy names: under the empty policy a new name would be a claim on a part of the fleet."""
        return "owner" if quota.guarantor(tuple(own), kind, amount) is not None else self._share(own, kind, amount)

    def _share(self, own: Sequence[Line], kind: str, amount: int) -> str:
        if not own:
            return ""
        fits = own[-1].used.get(kind, 0) + amount <= self.fair(kind).get(own[-1], 0.0) + _SLACK
        is_named = own[-1].name in self._policy.queues
        return "share" if fits and is_named and account(own[-1].quota, kind) is None else ""

    def _has_too_much(self, line: Line, kind: str) -> bool:
        found = self._too_much.get((line, kind))
        if found is None:
            found = self._too_much[line, kind] = self._found_too_much(line, kind)
        return found

    def _found_too_much(self, line: Line, kind: str) -> bool:
        entry = account(line.quota, kind)
        used = line.used.get(kind, 0) if entry is None else under(line.used, line.quota, entry)
        return used > self._deserves(line, kind) + _SLACK

    def _deserves(self, line: Line, kind: str) -> float:
        entry = account(line.quota, kind)
        return self.fair(kind).get(line, 0.0) if entry is None else line.quota[entry]

    def _came_last(self, kind: str) -> Mask:
        """Gangs that their queue has no part left for, after those that may not be ended, are of higher priority, or older."""
        if kind not in self._last:
            counts = np.array(
                [[*(_counts(line, one, kind) for one in self._kinds), False] for line in self._queues], np.bool_
            )  # the last one is for gangs on no type, which have the number -1
            at = self._in_rank()
            at = at[counts[self._gangs.queue[at], self._gangs.kind[at]]]
            line, held = self._gangs.queue[at], np.cumsum(self._gangs.amount[at])
            before = np.concatenate([[0], held])[np.searchsorted(line, line)]
            deserves = np.array([self._deserves(queue, kind) for queue in self._queues], np.float64)
            found = self._last[kind] = self._nobody.copy()
            found[at] = held - before > deserves[line] + _SLACK
        return self._last[kind]

    def _in_rank(self) -> NDArray[np.intp]:
        """Gangs that stay, by queue. What may not be ended has the queue's part first: it never borrows. Then priorities count,
        and who is older."""
        if self._ranked is None:
            gangs = self._gangs
            ranked = np.lexsort((gangs.placed_ms, -gangs.priority, gangs.preemptible, gangs.queue))
            self._ranked = ranked[~gangs.stopping[ranked]]
        return self._ranked

    def _wanted(self, kind: str) -> dict[Line, int]:
        """What lines hold of a type and ask for. Evictions do not change it: who is evicted asks again."""
        capacity, gangs = self._tree.capacity.get(kind, 0), self._gangs
        runs = (gangs.kind == self._kinds.get(kind, len(self._kinds))) & (gangs.amount <= capacity)
        held = np.bincount(gangs.queue[runs], gangs.amount[runs], len(self._queues))
        of_queue = Counter({name: int(amount) for name, amount in zip(gangs.queues, held, strict=True)})
        for (name, types, amount), times in self._asks().items():
            if amount <= capacity and (not types or kind in types):
                of_queue[name] += amount * times
        wanted: dict[Line, int] = {}
        for name, amount in of_queue.items():
            for line in self._tree.lines.queue(name).path:
                wanted[line] = wanted.get(line, 0) + amount
        return wanted

    def _asks(self) -> _Asks:
        """How often queues ask for so much of any of certain types."""
        if self._asked is None:
            found = self._asked = _Asks()
            for job, times in self._waiting():
                if not job.unmet and not job.failed:
                    shape, request = job.facts.shape, job.facts.shape.request
                    key = (job.facts.queue, request.types, request.count * shape.num_nodes * request.milli)
                    found[key] = found.get(key, 0) + times
        return self._asked


def _counts(line: Line, runs_on: str, kind: str) -> bool:
    """Whether devices of one type are part of what a line has of another."""
    entry = account(line.quota, kind)
    return runs_on == kind or (entry is not None and account(line.quota, runs_on) == entry)


def _divide(line: Line, kind: str, wanted: dict[Line, int], found: _Fair) -> None:
    """Of what a line deserves, what those below it do."""
    below = [child for child in line.children if wanted.get(child, 0) > 0]
    owners = [child for child in below if account(child.quota, kind) is not None]
    for child in owners:
        found[child] = float(child.quota[account(child.quota, kind) or kind])
    left = found[line] - sum(min(found[child], wanted[child]) for child in owners)
    others = sorted((child for child in below if child not in found), key=lambda child: (wanted[child] / child.weight, child.name))
    weight = sum(child.weight for child in others)
    for child in others:  # whoever wants the least for its weight gets it whole, the rest goes to the others
        found[child] = min(float(wanted[child]), max(0.0, left) * child.weight / weight)
        left, weight = left - found[child], weight - child.weight
    for child in below:
        _divide(child, kind, wanted, found)


def _apart(mine: Sequence[Line], other: Iterable[Line]) -> tuple[Line, ...]:
    """Queues on the way up that the other has not, without users: shares among those order jobs, and take nothing back."""
    common = set(other)
    return tuple(line for line in mine if line not in common and "/" not in line.name)
