"""The line with the smallest share first, while jobs that are taken make shares move: of the line that the last job stood in and of
those above it. Heaps of lines, so that each job costs by the depth of the tree."""

import heapq
from collections.abc import Iterable, Iterator, Sequence

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.line.sweeps import Batch
from phalanx.decide.scheduler.quotas.lines import Line
from phalanx.decide.scheduler.quotas.share import Tree

Place = tuple[float, int, int, JobId, Batch]
"""When it has to start (Unix milliseconds), when it was submitted, sequence, name, all of the first job of the batch that is not
decided: among those of one line, the smallest goes first."""


def place(start_ms: float, batch: Batch) -> Place:
    facts = batch.jobs[batch.at].facts
    return start_ms, facts.submitted_ms, facts.sequence, facts.job, batch


def youngest(place: Place) -> tuple[float, int, int, JobId]:
    """Of the batch's last job."""
    facts = place[4].jobs[-1].facts
    return place[0], facts.submitted_ms, facts.sequence, facts.job


def oldest_first(places: list[Place], tree: Tree) -> Iterator[Batch]:
    """Of lines with equal shares, until something is taken. What was decided is gone from `places` then."""
    heapq.heapify(places)
    moves = tree.moves
    while places and tree.moves == moves:
        start_ms, *_, batch = places[0]
        _bound(batch, start_ms, min(places[1:3]) if len(places) > 1 else None)
        yield batch
        if batch.at == len(batch.jobs):
            heapq.heappop(places)
        else:
            heapq.heapreplace(places, place(start_ms, batch))


def _bound(batch: Batch, start_ms: float, rival: Place | None) -> None:
    """It is decided up to the rival, who stands in a line with as small a share and comes after its first job."""
    batch.end = len(batch.jobs)
    if rival is not None and rival[0] <= start_ms and batch.end > batch.at + 1:
        batch.stop_before(rival[1:4])


class _Stem:
    """A line with jobs, or with stems below it, of which the one with the smallest share comes first."""

    __slots__ = ("heap", "line", "places")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.places: list[Place] = []
        self.heap: list[tuple[float, Place, _Stem]] = []

    def entry(self) -> "tuple[float, Place, _Stem]":
        return self.line.share, self.heap[0][1] if self.heap else self.places[-1], self

    def decided(self) -> None:
        """Some of the first batch, which comes later in line now, or all of it."""
        start_ms, *_, batch = self.places[-1]
        if batch.at == len(batch.jobs):
            self.places.pop()
        else:
            self.places[-1] = place(start_ms, batch)


def as_shares_move(places: list[Place], tree: Tree) -> Iterator[Batch]:
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


def _up_to_rivals(stem: _Stem, rivals: Iterable[Place | None], tree: Tree) -> Iterator[Batch]:
    """Batches of the line that comes first, while it does: until something is taken, or a job in a line with as small a share is
    older than the next one."""
    rival = min((one for one in rivals if one is not None), default=None)
    moves = tree.moves
    while stem.places and tree.moves == moves and (rival is None or stem.places[-1] < rival):
        start_ms, *_, batch = stem.places[-1]
        _bound(batch, start_ms, rival)
        yield batch
        stem.decided()


def _is_ahead(heap: Sequence[tuple[float, Place, _Stem]]) -> bool:
    """Whether the first one's share is smaller than all others', whatever stands first in it."""
    share = heap[0][0]
    return (len(heap) < 2 or share < heap[1][0]) and (len(heap) < 3 or share < heap[2][0])


def _rival(heap: Sequence[tuple[float, Place, _Stem]]) -> Place | None:
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


def _grown(places: Iterable[Place], tree: Tree) -> tuple[list[_Stem], _Stem]:
    """Stems, those above others later, and the root."""
    stems = {tree.lines.root: (root := _Stem(tree.lines.root))}
    lines: dict[tuple[str, str], _Stem] = {}
    for one in places:
        facts = one[4].first.facts
        stem = lines.get((facts.queue, facts.user))
        if stem is None:
            path = tree.line(facts).path
            for line in path:
                if line not in stems:
                    stems[line] = _Stem(line)
            stem = lines[facts.queue, facts.user] = stems[path[0]]
        stem.places.append(one)
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
