"""Who may be asked to give devices back to whom.

A job that its line deserves (`fair.py`) may take from lines that have more than they deserve. Each such move makes the sum of what
lines have too much smaller, and changes nothing of what anybody deserves, so moves end: nothing goes back and forth.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.decide.scheduler.quotas import quota
from phalanx.decide.scheduler.quotas.fair import Ask, Fair
from phalanx.decide.scheduler.quotas.lines import Line, account, under
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import JobFacts, Snapshot
from phalanx.decide.scheduler.where.ground import Mask

_SLACK: Final = 0.5
"""Of a thousandth of a device: parts are floats, what is held is whole."""


class _Ways(NamedTuple):
    """From one queue to those with gangs. mine: the lines on my way up that are not on theirs, each such way once, and `way`, which
    of them it is for each queue. theirs: how many of the first lines on their way up are not on mine, for each queue."""

    mine: tuple[tuple[Line, ...], ...]
    way: NDArray[np.intp]
    theirs: NDArray[np.intp]


class _Terms(NamedTuple):
    """Of a queue and a type. bounds: of each way up to what it has in common with others, what is used, and how much may be by
    share; left: of the one that leaves most. guaranteed: the longest way, if it is guaranteed some. nothing: no rights on any."""

    ways: tuple[tuple[Line, ...], ...]
    bounds: tuple[tuple[int, float], ...]
    guaranteed: tuple[Line, ...]
    left: float
    nothing: tuple[str, ...]


class _Bounds(NamedTuple):
    """Of a type. most: what of it each line deserves, and under what of its quota, if it has one."""

    most: tuple[tuple[Line, float, str | None], ...]
    is_owner: Mask
    is_owned: Mask
    """Whether lines, and queues with gangs, are guaranteed some; after the lines stands one that is."""


class _Firm(NamedTuple):
    """On the way up from each queue with gangs, the number of lines below the first one that has no more than it deserves; and
    below the first such that is guaranteed some of the type."""

    any: NDArray[np.intp]
    owner: NDArray[np.intp]


class Deserts:
    """Of one decision. It follows what is used of `tree`. Masks are over `gangs`, and not to be changed. asks: how often each is
    asked for by all that wait."""

    def __init__(self, snapshot: Snapshot, tree: Tree, gangs: Gangs, asks: Callable[[], Mapping[Ask, int]]) -> None:
        self._policy = snapshot.policy
        self._tree = tree
        self._gangs = gangs
        self.fair = Fair(tree, gangs, asks)
        self._kinds = {kind: number for number, kind in enumerate(tree.capacity)}
        self._queues = tuple(tree.lines.queue(name) for name in gangs.queues)
        self._paths = tuple(queue.path for queue in self._queues)  # shares among users order jobs, and take nothing back
        self._under: dict[Line, tuple[list[int], list[int]]] = {}
        for number, path in enumerate(self._paths):
            for place, line in enumerate(path):
                queues, places = self._under.setdefault(line, ([], []))
                queues.append(number)
                places.append(place)
        numbers = {line: number for number, line in enumerate(self._under)}
        longest = max(map(len, self._paths), default=0) + 1
        ends = [len(numbers)] * longest  # beyond each way up stands one that has no more than it deserves
        ways = [([numbers[line] for line in path] + ends)[:longest] for path in self._paths]
        self._way_up = np.array(ways, np.intp).reshape(-1, longest)
        self._most: dict[str, _Bounds] = {}
        self._nobody = np.zeros(len(gangs.all), np.bool_)
        self._ranked: NDArray[np.intp] | None = None
        self._ways: dict[Line, _Ways] = {}
        self._within: dict[Line, Mask] = {}
        self._last: dict[str, Mask] = {}
        self._right_of: dict[tuple[Line, str, int], tuple[str, ...]] = {}
        self._moves = tree.moves
        self._reclaimable: dict[tuple[Line, str, tuple[str, ...], int], Mask] = {}
        self._protected: dict[tuple[Line, str], Mask] = {}
        self._known_terms: dict[tuple[Line, str], _Terms] = {}
        self._firm: dict[str, _Firm] = {}

    def _follow(self) -> None:
        """Forgets what was found out before something was taken or let go of."""
        if self._moves != self._tree.moves:
            self._moves = self._tree.moves
            self._right_of.clear()
            self._reclaimable.clear()
            self._protected.clear()
            self._known_terms.clear()
            self._firm.clear()

    def reclaimable(self, job: JobFacts, kind: str, num_devices: int) -> Mask:
        """Gangs that the job may have ended for it: its line deserves what it asks for, and theirs have more than they deserve. Of
        a queue's gangs it is those that came last, of the lowest priority. Where no quota says so, higher priorities stay."""
        mine, rights = self._path(job), self.rights(job, kind, num_devices)
        if not any(rights):
            return self._nobody
        key = (mine[0], kind, rights, job.priority)
        if key not in self._reclaimable:
            self._reclaimable[key] = self._found_reclaimable(job, mine, kind, rights)
        return self._reclaimable[key]

    def may_reclaim(self, job: JobFacts, kind: str, num_devices: int, number: int) -> bool:
        """Whether that one of them is among these, when it is asked of one after the other while they let go."""
        mine, queue = self._path(job), int(self._gangs.queue[number])
        ways = self._from(mine)
        right = self._right(ways.mine[ways.way[queue]], kind, num_devices * job.shape.request.milli)
        is_lower = right == "owner" or (right == "share" and self._gangs.priority[number] <= job.priority)
        lines = self._paths[queue][: ways.theirs[queue]]
        have_more = lines != () and all(self._has_too_much(line, kind) for line in lines)
        return bool(is_lower and have_more and self._came_last(kind)[number])

    def deserves(self, job: JobFacts, kind: str, num_devices: int) -> bool:
        """Whether the job may take so much from some other queue, had that too much."""
        return any(self.rights(job, kind, num_devices))

    def rights(self, job: JobFacts, kind: str, num_devices: int) -> tuple[str, ...]:
        """By what it may take so much from other queues, for each way up to what it has in common with them."""
        self._follow()
        mine, amount = self._path(job), num_devices * job.shape.request.milli
        key = (mine[0], kind, amount)
        found = self._right_of.get(key)
        if found is None:
            terms = self._terms(mine, kind)
            owner = quota.guarantor(terms.guaranteed, kind, amount) if terms.guaranteed else None
            found = self._right_of[key] = terms.nothing
            if owner is not None or amount <= terms.left:
                found = self._right_of[key] = tuple(
                    "owner" if owner is not None and owner in own else "share" if used + amount <= most else ""
                    for own, (used, most) in zip(terms.ways, terms.bounds, strict=True)
                )
        return found

    def _terms(self, mine: Sequence[Line], kind: str) -> _Terms:
        key = (mine[0], kind)
        if key not in self._known_terms:
            ways = self._from(mine).mine
            bounds = tuple(self._bound(own, kind) for own in ways)
            longest = max(ways, key=len, default=())  # each of them is the first part of it
            guaranteed = longest if any(account(line.quota, kind) is not None for line in longest) else ()
            left = max((most - used for used, most in bounds), default=-1.0)
            self._known_terms[key] = _Terms(ways, bounds, guaranteed, left, ("",) * len(ways))
        return self._known_terms[key]

    def _found_reclaimable(self, job: JobFacts, mine: Sequence[Line], kind: str, rights: Sequence[str]) -> Mask:
        ways = self._from(mine)
        strong, weak = (np.array([right == by for right in rights], np.bool_)[ways.way] for by in ("owner", "share"))
        too_much = (ways.theirs > 0) & (self._firm_on(kind).any >= ways.theirs)
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
        mine = self._path(job)
        key = (mine[0], kind)
        if key not in self._protected:
            self._protected[key] = self._found_protected(mine, kind)
        return self._protected[key]

    def protects(self, job: JobFacts, kind: str, number: int) -> bool:
        """Whether that one of them is among these, when it is asked of one after the other while they let go."""
        if not self._tree.has_quotas:
            return False
        queue = int(self._gangs.queue[number])
        theirs = self._paths[queue][: self._from(self._path(job)).theirs[queue]]
        guaranteed = [line for line in theirs if account(line.quota, kind) is not None]
        if not all(self._has_too_much(line, kind) for line in guaranteed):
            return True
        return self._queues[queue] in guaranteed and not self._came_last(kind)[number]

    def _found_protected(self, mine: Sequence[Line], kind: str) -> Mask:
        theirs, firm, at = self._from(mine).theirs, self._firm_on(kind), self._gangs.queue
        whole, partly = firm.owner < theirs, self._bounds_on(kind).is_owned & (theirs > 0)
        found: Mask = whole[at] | (partly[at] & ~self._came_last(kind))
        return found

    def _firm_on(self, kind: str) -> _Firm:
        if kind not in self._firm:
            bounds = self._bounds_on(kind)
            more = [
                (line.used.get(kind, 0) if entry is None else under(line.used, line.quota, entry)) > most
                for line, most, entry in bounds.most
            ]
            firm = ~np.array([*more, False], np.bool_)
            anyone, owner = firm[self._way_up], (firm & bounds.is_owner)[self._way_up]
            self._firm[kind] = _Firm(anyone.argmax(axis=1), owner.argmax(axis=1))
        return self._firm[kind]

    def _bounds_on(self, kind: str) -> _Bounds:
        if kind not in self._most:
            entries = [account(line.quota, kind) for line in self._under]
            most = tuple(
                (line, self.fair.deserves(line, kind) + _SLACK, entry) for line, entry in zip(self._under, entries, strict=True)
            )
            is_owned = np.array([account(queue.quota, kind) is not None for queue in self._queues], np.bool_)
            is_owner = np.array([*(entry is not None for entry in entries), True], np.bool_)
            self._most[kind] = _Bounds(most, is_owner, is_owned)
        return self._most[kind]

    def _path(self, job: JobFacts) -> tuple[Line, ...]:
        return self._tree.lines.queue(job.queue).path

    def within(self, queue: Line) -> Mask:
        """Gangs of the queue and of those below it."""
        if queue not in self._within:
            inside = np.array([queue in one.path for one in self._queues], np.bool_)
            self._within[queue] = inside[self._gangs.queue] if self._gangs.all else self._nobody
        return self._within[queue]

    def _from(self, mine: Sequence[Line]) -> _Ways:
        if mine[0] not in self._ways:
            num_mine, theirs = np.zeros((2, len(self._queues)), np.intp)
            for place, line in reversed([*enumerate(mine)]):  # of lines that are on both ways, the lowest counts
                queues, places = self._under.get(line, ([], []))
                num_mine[queues], theirs[queues] = place, places
            each, way = np.unique(num_mine, return_inverse=True)
            self._ways[mine[0]] = _Ways(tuple(tuple(mine[:num]) for num in each.tolist()), way, theirs)
        return self._ways[mine[0]]

    def _right(self, own: Sequence[Line], kind: str, amount: int) -> str:
        """By what the job may take from lines that it is not of: a guarantee, its share, or nothing. A share is only taken for a
        queue that the policy names: under the empty policy a new name would be a claim on a part of the fleet."""
        return "owner" if quota.guarantor(tuple(own), kind, amount) is not None else self._share(own, kind, amount)

    def _share(self, own: Sequence[Line], kind: str, amount: int) -> str:
        used, most = self._bound(own, kind)
        return "share" if used + amount <= most else ""

    def _bound(self, own: Sequence[Line], kind: str) -> tuple[int, float]:
        """What the line that is the first of these uses, and may by its share."""
        if not own or own[-1].name not in self._policy.queues or account(own[-1].quota, kind) is not None:
            return 0, -1.0
        return own[-1].used.get(kind, 0), self.fair.of(kind).get(own[-1], 0.0) + _SLACK

    def _has_too_much(self, line: Line, kind: str) -> bool:
        entry = account(line.quota, kind)
        used = line.used.get(kind, 0) if entry is None else under(line.used, line.quota, entry)
        return used > self.fair.deserves(line, kind) + _SLACK

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
            deserves = np.array([self.fair.deserves(queue, kind) for queue in self._queues], np.float64)
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


def _counts(line: Line, runs_on: str, kind: str) -> bool:
    """Whether devices of one type are part of what a line has of another."""
    entry = account(line.quota, kind)
    return runs_on == kind or (entry is not None and account(line.quota, runs_on) == entry)
