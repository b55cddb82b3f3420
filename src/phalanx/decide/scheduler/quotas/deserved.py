"""What lines deserve, and who may be asked to give devices back to whom.

A line deserves its quota, or where it has none its part, by weight, of what is left: at most what those in it hold and ask for, and
what some do not want goes to the others (max-min fairness). A job that its line deserves may take from lines that have more than
they deserve. Each such move makes the sum of what lines have too much smaller, and changes nothing of what anybody deserves, so
moves end: nothing goes back and forth.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.quotas import quota
from phalanx.decide.scheduler.quotas.lines import Line, account, under
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import JobFacts, RunningJob, Snapshot
from phalanx.decide.scheduler.where.ground import Mask

_Fair = dict[Line, float]
_Asks = Counter[tuple[Line, tuple[str, ...], int]]
_SLACK: Final = 0.5
"""Of a thousandth of a device: parts are floats, what is held is whole."""


class Deserts:
    """Of one decision. It follows what is used of `tree`. Masks are over `gangs`."""

    def __init__(self, snapshot: Snapshot, tree: Tree, gangs: Sequence[RunningJob]) -> None:
        self._snapshot = snapshot
        self._tree = tree
        self._gangs = gangs
        self._priority = np.array([gang.facts.priority for gang in gangs], np.int64)
        number: dict[Line, int] = {}
        self._line = np.array([number.setdefault(tree.line(gang.facts).path[1], len(number)) for gang in gangs], np.intp)
        self._queues = tuple(number)
        self._kinds = [tree.kind(gang.placement) for gang in gangs]
        self._amount = np.array([gang.placement.world_size * gang.facts.shape.request.milli for gang in gangs], np.int64)
        self._stays = np.array([not gang.stopping for gang in gangs], np.bool_)
        self._ranked: NDArray[np.intp] | None = None
        self._ways: dict[Line, tuple[list[tuple[Line, ...]], list[tuple[Line, ...]]]] = {}
        self._nobody = np.zeros(len(gangs), np.bool_)
        self._within: dict[Line, Mask] = {}
        self._fair: dict[str, _Fair] = {}
        self._last: dict[str, Mask] = {}
        self._asked: _Asks | None = None
        self._moves = tree.moves
        self._reclaimable: dict[tuple[Line, str, int, int], Mask] = {}
        self._protected: dict[tuple[Line, str], Mask] = {}
        self._too_much: dict[tuple[Line, str], bool] = {}

    def _follow(self) -> None:
        """Forgets what was found out before something was taken or let go of."""
        if self._moves != self._tree.moves:
            self._moves = self._tree.moves
            self._reclaimable.clear()
            self._protected.clear()
            self._too_much.clear()

    def reclaimable(self, job: JobFacts, kind: str, num_devices: int) -> Mask:
        """Gangs that the job may have ended for it: its line deserves what it asks for, and theirs have more than they deserve. Of
        a queue's gangs it is those that came last, of the lowest priority. Where no quota says so, higher priorities stay."""
        self._follow()
        mine = self._tree.line(job).path
        amount = num_devices * job.shape.request.milli
        key = (mine[1], kind, amount, job.priority)
        if key not in self._reclaimable:
            self._reclaimable[key] = self._found_reclaimable(job, mine, kind, amount)
        return self._reclaimable[key]

    def deserves(self, job: JobFacts, kind: str, num_devices: int) -> bool:
        """Whether the job may take so much from some other queue, had that too much."""
        mine = self._tree.line(job).path
        amount = num_devices * job.shape.request.milli
        return any(self._right(own, kind, amount) for own in set(self._apart(mine)[0]))

    def _found_reclaimable(self, job: JobFacts, mine: Sequence[Line], kind: str, amount: int) -> Mask:
        ways, apart = self._apart(mine)
        by_way = {own: self._right(own, kind, amount) for own in set(ways)}
        if not any(by_way.values()):
            return self._nobody
        rights = [by_way[own] for own in ways]
        strong, weak = (np.array([right == by for right in rights], np.bool_) for by in ("owner", "share"))
        too_much = np.array([lines != () and all(self._has_too_much(line, kind) for line in lines) for lines in apart], np.bool_)
        if not too_much.any():
            return self._nobody
        at = self._line
        allowed = strong[at] | (weak[at] & (self._priority <= job.priority))
        found: Mask = allowed & too_much[at] & self._came_last(kind)
        return found

    def protected(self, job: JobFacts, kind: str) -> Mask:
        """Gangs on the type that run within a guarantee that the job has no part in: they stay, whatever their priority."""
        if not self._gangs or not self._tree.has_quotas:
            return np.zeros(len(self._gangs), np.bool_)
        self._follow()
        mine = self._tree.line(job).path
        key = (mine[1], kind)
        if key not in self._protected:
            self._protected[key] = self._found_protected(mine, kind)
        return self._protected[key]

    def _found_protected(self, mine: Sequence[Line], kind: str) -> Mask:
        whole, partly = np.zeros((2, len(self._queues)), np.bool_)
        for number, (queue, apart) in enumerate(zip(self._queues, self._apart(mine)[1], strict=True)):
            guaranteed = [line for line in apart if account(line.quota, kind) is not None]
            whole[number] = not all(self._has_too_much(line, kind) for line in guaranteed)
            partly[number] = queue in guaranteed
        found: Mask = whole[self._line] | (partly[self._line] & ~self._came_last(kind))
        return found

    def within(self, queue: Line) -> Mask:
        """Gangs of the queue and of those below it."""
        if queue not in self._within:
            inside = np.array([queue in one.path for one in self._queues], np.bool_)
            self._within[queue] = inside[self._line] if self._gangs else self._nobody
        return self._within[queue]

    def _apart(self, mine: Sequence[Line]) -> tuple[list[tuple[Line, ...]], list[tuple[Line, ...]]]:
        """For each queue with gangs, the lines on my way up that are not on its own, and the other way round."""
        if mine[1] not in self._ways:
            ways = [_apart(mine, queue.path) for queue in self._queues]
            self._ways[mine[1]] = ways, [_apart(queue.path, mine) for queue in self._queues]
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
        if not own:
            return ""
        if quota.guarantor(tuple(own), kind, amount) is not None:
            return "owner"
        fits = own[-1].used.get(kind, 0) + amount <= self.fair(kind).get(own[-1], 0.0) + _SLACK
        is_named = own[-1].name in self._snapshot.policy.queues
        return "share" if fits and is_named and account(own[-1].quota, kind) is None else ""

    def _has_too_much(self, line: Line, kind: str) -> bool:
        found = self._too_much.get((line, kind))
        if found is None:
            entry = account(line.quota, kind)
            used = line.used.get(kind, 0) if entry is None else under(line.used, line.quota, entry)
            found = self._too_much[line, kind] = used > self._deserves(line, kind) + _SLACK
        return found

    def _deserves(self, line: Line, kind: str) -> float:
        entry = account(line.quota, kind)
        return self.fair(kind).get(line, 0.0) if entry is None else line.quota[entry]

    def _came_last(self, kind: str) -> Mask:
        """Gangs that their queue has no part left for, after those that may not be ended, are of higher priority, or older."""
        if kind not in self._last:
            if self._ranked is None:
                self._ranked = np.array(sorted(range(len(self._gangs)), key=lambda at: _rank(self._gangs[at])), np.intp)
            alike = [{one for one in self._tree.capacity if _counts(line, one, kind)} for line in self._queues]
            counts = self._stays & np.array(
                [kind_of in alike[line] for kind_of, line in zip(self._kinds, self._line, strict=True)], np.bool_
            )
            at = self._ranked[counts[self._ranked]]
            at = at[np.argsort(self._line[at], kind="stable")]
            line, held = self._line[at], np.cumsum(self._amount[at])
            before = np.concatenate([[0], held])[np.searchsorted(line, line)]
            deserves = np.array([self._deserves(queue, kind) for queue in self._queues], np.float64)
            found = self._last[kind] = self._nobody.copy()
            found[at] = held - before > deserves[line] + _SLACK
        return self._last[kind]

    def _wanted(self, kind: str) -> dict[Line, int]:
        """What lines hold of a type and ask for. Evictions do not change it: who is evicted asks again."""
        wanted: dict[Line, int] = {}
        capacity = self._tree.capacity.get(kind, 0)
        for (queue, types, amount), times in self._asks().items():
            if amount <= capacity and (not types or kind in types):
                for line in queue.path:
                    wanted[line] = wanted.get(line, 0) + amount * times
        return wanted

    def _asks(self) -> _Asks:
        """How often queues hold or ask for so much of any of certain types."""
        if self._asked is None:
            found = self._asked = _Asks()
            for line, kind, amount in zip(self._line, self._kinds, self._amount, strict=True):
                found[self._queues[line], (kind,), int(amount)] += 1
            for job in self._snapshot.pending:
                if not job.unmet and not job.failed:
                    shape = job.facts.shape
                    asks = shape.num_devices * shape.request.milli
                    found[self._tree.line(job.facts).path[1], shape.request.types, asks] += 1
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


def _rank(gang: RunningJob) -> tuple[bool, int, int, JobId]:
    """What may not be ended has the queue's part first: it never borrows."""
    return gang.facts.preemptible, -gang.facts.priority, gang.placed_ms, gang.facts.job
