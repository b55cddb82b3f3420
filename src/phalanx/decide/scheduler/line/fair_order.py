"""The fair order: urgency, then from the root down the line with the smallest share, then age.

Being late or due counts only while the queue has no more than its part: nobody passes others by asking for more, or for everything
by tomorrow.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.policy import Policy
from phalanx.decide.scheduler.line.sweeps import Batch
from phalanx.decide.scheduler.quotas.lines import Line
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob
from phalanx.decide.scheduler.targets import is_late, late_since

Urgency = tuple[int, bool, bool, float]
"""Priority, negated; not failed by a node; not late; Unix milliseconds by which it has to start. The smallest goes first."""

_Place = tuple[float, int, int, JobId, Batch]
"""When it has to start, when it was submitted, sequence, name, all of the first job of the batch: among those of one line, the
smallest goes first."""

_QUEUE: Final = attrgetter("first.facts.queue")
_WHOSE: Final = attrgetter("first.facts.queue", "first.facts.user")
_NEVER: Final = float("inf")
_SLACK: Final = 1e-9


def in_order(batches: Sequence[Batch], policy: Policy, now_ms: int, tree: Tree) -> Iterator[Batch]:
    """Whoever takes one decides its first job at least (`Batch.at`), and others up to `Batch.end` while nobody takes anything."""
    groups = _groups(batches, policy, now_ms)
    parts = _Parts(tree, batches) if any(_is_urgent(urgency) for urgency in groups) else None
    waiting = sorted(groups, reverse=True)
    while waiting:
        urgency = waiting.pop()
        if parts is None or not _is_urgent(urgency):
            yield from _from_the_root(groups[urgency], tree)
            continue
        for batch in _from_the_root(groups[urgency], tree):
            if parts.are_used_up(batch.first.facts):
                plain = (urgency[0], urgency[1], True, _NEVER)
                if plain not in groups:
                    groups[plain] = []
                    waiting.append(plain)
                    waiting.sort(reverse=True)
                groups[plain].append(_place(urgency[3], batch.rest()))
            else:
                yield batch


def _is_urgent(urgency: Urgency) -> bool:
    return not urgency[2] or urgency[3] < _NEVER


def _groups(batches: Iterable[Batch], policy: Policy, now_ms: int) -> dict[Urgency, list[_Place]]:
    groups: dict[Urgency, list[_Place]] = {}
    since = late_since(policy, now_ms)
    for batch in batches:
        job = batch.jobs[batch.at]
        start_ms = _NEVER if job.facts.deadline_ms is None else _latest_start_ms(job)
        urgency = (-job.facts.priority, not job.repair, not is_late(job, since), start_ms)
        group = groups.get(urgency)
        if group is None:
            group = groups[urgency] = []
        group.append(_place(start_ms, batch))
    return groups


def _place(start_ms: float, batch: Batch) -> _Place:
    facts = batch.jobs[batch.at].facts
    return start_ms, facts.submitted_ms, facts.sequence, facts.job, batch


def _latest_start_ms(job: PendingJob) -> int:
    """For its deadline, as far as is known how long it still runs."""
    facts = job.facts
    left_ms = max(0, facts.expected_ms - job.done_ms) if facts.expected_ms is not None else 0
    return (facts.deadline_ms or 0) - left_ms


class _Parts:
    """What part of the fleet each queue may hold before it is in no hurry any more: by weight, among queues that hold or want
    anything."""

    def __init__(self, tree: Tree, batches: Iterable[Batch]) -> None:
        self._tree = tree
        active = {line for queue in set(map(_QUEUE, batches)) for line in tree.lines.queue(queue).path}
        active |= {line for line in tree.lines.queues if any(line.used.values())}
        self._part = {tree.lines.root: 1.0}
        self._known: dict[str, bool] = {}
        self._moves = tree.moves
        weights: dict[Line, float] = {}
        queues = [line for line in tree.lines.queues if line in active]  # parents before those below them
        for line in (*queues, *_beside_queues(tree, batches)):
            if line.parent is not None:
                weights[line.parent] = weights.get(line.parent, 0.0) + line.weight
        for line in queues:
            if line.parent is not None:
                self._part[line] = self._part[line.parent] * line.weight / weights[line.parent]

    def are_used_up(self, job: JobFacts) -> bool:
        """Of one of the queues that the job is of. What a quota guarantees is never too much."""
        if self._moves != self._tree.moves:
            self._moves = self._tree.moves
            self._known.clear()
        found = self._known.get(job.queue)
        if found is None:
            tree, part = self._tree, self._part
            path = tree.lines.queue(job.queue).path[:-1]
            found = self._known[job.queue] = any(line.has > part[line] + _SLACK and tree.is_over_quota(line) for line in path)
        return found


def _beside_queues(tree: Tree, batches: Iterable[Batch]) -> Iterator[Line]:
    """Users with jobs or devices in queues that have others below them: among those, each has a part of their own."""
    above = {line.parent.name for line in tree.lines.queues if line.parent is not None}
    wanting = {whose for whose in map(_WHOSE, batches) if whose[0] in above}
    holding = {whose for whose in (*tree.held.by_user, *tree.lines.users) if whose[0] in above}
    for whose in sorted(wanting | holding):
        line = tree.lines.user(*whose)
        if whose in wanting or any(line.used.values()):
            yield line


class _Stem:
    """A line with jobs, or with stems below it, of which the one with the smallest share comes first."""

    __slots__ = ("heap", "line", "places")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.places: list[_Place] = []
        self.heap: list[tuple[float, _Place, _Stem]] = []

    def entry(self) -> "tuple[float, _Place, _Stem]":
        return self.line.share, self.heap[0][1] if self.heap else self.places[-1], self

    def decided(self) -> None:
        """Some of the first batch, which comes later in line now, or all of it."""
        start_ms, *_, batch = self.places[-1]
        if batch.at == len(batch.jobs):
            self.places.pop()
        else:
            self.places[-1] = _place(start_ms, batch)


def _from_the_root(places: list[_Place], tree: Tree) -> Iterator[Batch]:
    left = yield from _at_rest(places, tree)
    if left:
        yield from _as_shares_move(left, tree)


def _at_rest(places: list[_Place], tree: Tree) -> Generator[Batch, None, list[_Place]]:
    """While nothing is taken, lines come one after the other: those with the smallest share whole, and only then the next. Returns
    what is left once something was. A queue takes turns with what is beside it and has an equal share; that is left, with all, to
    `_as_shares_move`."""
    piles: dict[tuple[float, ...], list[_Place]] = {}
    queues: dict[str, tuple[float, ...]] = {}
    seen: dict[tuple[float, ...], Line] = {}
    for place in places:
        batch = place[4]
        facts = batch.jobs[batch.at].facts
        shares = queues.get(facts.queue)
        if shares is None:
            path = tree.lines.queue(facts.queue).path[-2::-1]
            shares = queues[facts.queue] = tuple(line.share for line in path)
            if any(seen.setdefault(shares[:depth], line) is not line for depth, line in enumerate(path, 1)):
                return places
        piles.setdefault((*shares, tree.lines.share(facts.queue, facts.user)), []).append(place)
    if not piles.keys().isdisjoint(seen):  # of a user who stands beside queues
        return places
    ordered, moves = sorted(piles), tree.moves
    for number, shares in enumerate(ordered):
        yield from _oldest_first(piles[shares], tree)
        if tree.moves != moves:
            return [place for one in ordered[number:] for place in piles[one]]
    return []


def _oldest_first(places: list[_Place], tree: Tree) -> Iterator[Batch]:
    """Until something is taken. What was decided is gone from `places` then."""
    heapq.heapify(places)
    moves = tree.moves
    while places and tree.moves == moves:
        start_ms, *_, batch = places[0]
        _bound(batch, start_ms, min(places[1:3]) if len(places) > 1 else None)
        yield batch
        if batch.at == len(batch.jobs):
            heapq.heappop(places)
        else:
            heapq.heapreplace(places, _place(start_ms, batch))


def _bound(batch: Batch, start_ms: float, rival: _Place | None) -> None:
    """It is decided up to the rival, who stands in a line with as small a share and comes after its first job."""
    batch.end = len(batch.jobs)
    if rival is not None and rival[0] <= start_ms and batch.end > batch.at + 1:
        batch.stop_before(rival[1:4])


def _as_shares_move(places: list[_Place], tree: Tree) -> Iterator[Batch]:
    """Shares move while jobs are taken: only of the line that the last job stood in and of those above it, unless something was
    given back."""
    places.sort(reverse=True)
    stems, root = _grown(places, tree)
    given = tree.given
    _pile(stems)
    while root.heap:
        way, ahead, stem, moves = list[_Stem](), 0, root, tree.moves
        while stem.heap:
            if ahead == len(way) and _is_ahead(stem.heap):
                ahead += 1
            way.append(stem)
            stem = stem.heap[0][2]
        yield from _up_to_rivals(stem, [] if ahead == len(way) else [_rival(one.heap) for one in way], tree)
        if tree.given != given:
            given = tree.given
            _pile(stems)
            continue
        _follow(way, ahead if tree.moves == moves else 0)


def _up_to_rivals(stem: _Stem, rivals: Iterable[_Place | None], tree: Tree) -> Iterator[Batch]:
    """Batches of the line that comes first, while it does: until something is taken, or a job in a line with as small a share is
    older than the next one."""
    rival = min((one for one in rivals if one is not None), default=None)
    moves = tree.moves
    while stem.places and tree.moves == moves and (rival is None or stem.places[-1] < rival):
        start_ms, *_, batch = stem.places[-1]
        _bound(batch, start_ms, rival)
        yield batch
        stem.decided()


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
        facts = place[4].first.facts
        stem = lines.get((facts.queue, facts.user))
        if stem is None:
            path = tree.line(facts).path
            for line in path:
                if line not in stems:
                    stems[line] = _Stem(line)
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
