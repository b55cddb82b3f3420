"""The fair order: urgency, then from the root down the line with the smallest share, then age.

Being late or due counts only while the queue has no more than its part: nobody passes others by asking for more, or for everything
by tomorrow.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.policy import Policy
from phalanx.decide.scheduler.quotas.lines import Line
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob
from phalanx.decide.scheduler.targets import is_late, late_since

Urgency = tuple[int, bool, bool, float]
"""Priority, negated; not failed by a node; not late; Unix milliseconds by which it has to start. The smallest goes first."""

_Place = tuple[float, int, int, JobId, PendingJob]
"""When it has to start, when it was submitted, sequence, name, the job: among those of one line, the smallest goes first."""

_WHOSE: Final = attrgetter("facts.queue", "facts.user")
_NEVER: Final = float("inf")
_SLACK: Final = 1e-9


def in_order(jobs: Sequence[PendingJob], policy: Policy, now_ms: int, tree: Tree) -> Iterator[PendingJob]:
    groups = _groups(jobs, policy, now_ms)
    parts = _Parts(tree, jobs) if any(not urgency[2] or urgency[3] < _NEVER for urgency in groups) else None
    waiting = sorted(groups, reverse=True)
    while waiting:
        urgency = waiting.pop()
        is_urgent = not urgency[2] or urgency[3] < _NEVER
        for place in _from_the_root(groups[urgency], tree):
            job = place[4]
            if is_urgent and parts is not None and parts.are_used_up(job.facts):
                plain = (urgency[0], urgency[1], True, _NEVER)
                if plain not in groups:
                    groups[plain] = []
                    waiting.append(plain)
                    waiting.sort(reverse=True)
                groups[plain].append(place)
            else:
                yield job


def _groups(jobs: Iterable[PendingJob], policy: Policy, now_ms: int) -> dict[Urgency, list[_Place]]:
    groups: dict[Urgency, list[_Place]] = {}
    since = late_since(policy, now_ms)
    for job in jobs:
        facts = job.facts
        start_ms = _NEVER if facts.deadline_ms is None else _latest_start_ms(job)
        urgency = (-facts.priority, not job.repair, not is_late(job, since), start_ms)
        group = groups.get(urgency)
        if group is None:
            group = groups[urgency] = []
        group.append((start_ms, facts.submitted_ms, facts.sequence, facts.job, job))
    return groups


def _latest_start_ms(job: PendingJob) -> int:
    """For its deadline, as far as is known how long it still runs."""
    facts = job.facts
    left_ms = max(0, facts.expected_ms - job.done_ms) if facts.expected_ms is not None else 0
    return (facts.deadline_ms or 0) - left_ms


class _Parts:
    """What part of the fleet each queue may hold before it is in no hurry any more: by weight, among queues that hold or want
    anything."""

    def __init__(self, tree: Tree, jobs: Iterable[PendingJob]) -> None:
        self._tree = tree
        active = {line for queue, user in set(map(_WHOSE, jobs)) for line in tree.lines.user(queue, user).path}
        active |= {line for line in tree.lines.all if any(line.used.values())}
        self._part = {tree.lines.root: 1.0}
        self._known: dict[str, bool] = {}
        self._moves = tree.moves
        weights: dict[Line, float] = {}
        for line in tree.lines.all:
            if line in active and line.parent is not None:
                weights[line.parent] = weights.get(line.parent, 0.0) + line.weight
        for line in tree.lines.all:  # parents come before those below them
            if line in active and line.parent is not None:
                self._part[line] = self._part[line.parent] * line.weight / weights[line.parent]

    def are_used_up(self, job: JobFacts) -> bool:
        """Of one of the queues that the job is of. What a quota guarantees is never too much."""
        if self._moves != self._tree.moves:
            self._moves = self._tree.moves
            self._known.clear()
        found = self._known.get(job.queue)
        if found is None:
            tree, part = self._tree, self._part
            path = tree.line(job).path[1:-1]
            found = self._known[job.queue] = any(line.has > part[line] + _SLACK and tree.is_over_quota(line) for line in path)
        return found


class _Stem:
    """A line with jobs, or with stems below it, of which the one with the smallest share comes first."""

    __slots__ = ("heap", "line", "places")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.places: list[_Place] = []
        self.heap: list[tuple[float, _Place, _Stem]] = []

    def entry(self) -> "tuple[float, _Place, _Stem]":
        return self.line.share, self.heap[0][1] if self.heap else self.places[-1], self


def _from_the_root(places: list[_Place], tree: Tree) -> Iterator[_Place]:
    """Shares move while jobs are taken: only of the line that the last job stood in and of those above it, unless something was
    given back."""
    places.sort(reverse=True)
    stems, root = _grown(places, tree)
    if len(stems) == 1:
        yield from reversed(places)
        return
    given = tree.given
    _pile(stems)
    while root.heap:
        way, ahead, stem, moves = list[_Stem](), 0, root, tree.moves
        while stem.heap:
            if ahead == len(way) and _is_ahead(stem.heap):
                ahead += 1
            way.append(stem)
            stem = stem.heap[0][2]
        yield stem.places.pop()
        if ahead >= len(way) - 1:
            rival = _rival(way[-1].heap)
            while stem.places and tree.moves == moves and (rival is None or stem.places[-1] < rival):
                yield stem.places.pop()
        if tree.given != given:
            given = tree.given
            _pile(stems)
            continue
        _follow(way, ahead if tree.moves == moves else 0)


def _is_ahead(heap: Sequence[tuple[float, _Place, _Stem]]) -> bool:
    """Whether the first one's share is smaller than all others', whatever stands first in it."""
    share = heap[0][0]
    return (len(heap) < 2 or share < heap[1][0]) and (len(heap) < 3 or share < heap[2][0])


def _rival(heap: Sequence[tuple[float, _Place, _Stem]]) -> _Place | None:
    """The place that comes before those of the first one, if others have as small a share."""
    second = min(heap[1:3], default=None)
    return second[1] if second is not None and second[0] == heap[0][0] else None


def _follow(way: Sequence[_Stem], ahead: int) -> None:
    """The first place of the last stem is gone. In the heaps of the first `ahead` stems the same one stays first while it has any
    left, and is brought up to date when that changes."""
    for number in range(len(way) - 1, -1, -1):
        heap = way[number].heap
        below = heap[0][2]
        if not (below.heap or below.places):
            heapq.heappop(heap)
        elif number < ahead:
            return
        else:
            heapq.heapreplace(heap, below.entry())


def _grown(places: Iterable[_Place], tree: Tree) -> tuple[list[_Stem], _Stem]:
    """Stems, those above others later, and the root."""
    stems = {tree.lines.root: (root := _Stem(tree.lines.root))}
    lines: dict[tuple[str, str], _Stem] = {}
    for place in places:
        facts = place[4].facts
        stem = lines.get((facts.queue, facts.user))
        if stem is None:
            path = tree.line(facts).path
            for line in path:
                stems.setdefault(line, _Stem(line))
            stem = lines[facts.queue, facts.user] = stems[path[0]]
        stem.places.append(place)
    return sorted(stems.values(), key=lambda stem: -len(stem.line.path)), root


def _pile(stems: Sequence[_Stem]) -> None:
    """Each stem's heap, from those below it."""
    by_line = {stem.line: stem for stem in stems}
    for stem in stems:
        stem.heap = []
    for stem in stems:
        heapq.heapify(stem.heap)
        if (stem.heap or stem.places) and stem.line.parent is not None:
            by_line[stem.line.parent].heap.append(stem.entry())
