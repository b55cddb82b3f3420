"""The fair order: urgency, then from the root down the line with the smallest share, then age.

Being late or due counts only while the queue has no more than its part: nobody passes others by asking for more, or for everything
by tomorrow.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from phalanx.core.policy import Policy
from phalanx.decide.scheduler.line.stems import Place, as_shares_move, oldest_first, place, youngest
from phalanx.decide.scheduler.line.sweeps import Batch, Sweep, Urgency
from phalanx.decide.scheduler.quotas.lines import Line
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.targets import late_since

_Row = tuple[Urgency, tuple[float, ...], Place]
"""Of a batch: with the shares of the lines that it stands in, from below the root down."""

_NEVER: Final = float("inf")
_SLACK: Final = 1e-9

RESTS_MAX: Final = 16
"""Times that the row is put in order anew because something was taken: cheaper than heaps while few jobs start."""


class _Standing(NamedTuple):
    """Of a queue: the shares of the lines that it is in, from below the root down; the same with that of a user who has nothing
    and had nothing; and what is used of each type, which shares of its users follow even where its own does not."""

    shares: tuple[float, ...]
    newcomer: tuple[float, ...]
    used: tuple[int, ...]


class FairOrder:
    """Of one decision. `batches`: all that wait."""

    def __init__(self, batches: Sequence[Batch], policy: Policy, now_ms: int, tree: Tree) -> None:
        self._batches, self._tree = batches, tree
        self._late_since = late_since(policy, now_ms)
        self._known_parts: _Parts | None = None
        self._standings: dict[str, _Standing] = {}
        self._used_up: dict[str, bool] = {}
        self._known: dict[str, dict[int, tuple[Urgency, tuple[float, ...]]]] = defaultdict(dict)

    def of(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """Some of them, or what is left of these. Whoever takes one decides its first job at least (`Batch.at`), and others up to
        `Batch.end` while nobody takes anything."""
        rows = self._in_order([], batches)
        for _ in range(RESTS_MAX):
            if self._is_tied(rows):
                break
            rows = self._in_order(*(yield from self._at_rest(rows)))
            if not rows:
                return
        yield from self._as_shares_move([row[2][4] for row in rows])

    def _at_rest(self, rows: list[_Row]) -> Generator[Batch, None, tuple[list[_Row], list[Batch]]]:
        """While nothing is taken, all stand in one row. Once something was, returns what is left: untouched, and in part."""
        at, moves = 0, self._tree.moves
        while at < len(rows):
            urgency, shares, first = rows[at]
            places, at = [first], at + 1
            until = first if len(first[4].jobs) == 1 else youngest(first)
            while at < len(rows) and rows[at][2] < until and rows[at][1] == shares and rows[at][0] == urgency:
                places.append(rows[at][2])
                until = max(until, youngest(rows[at][2]))
                at += 1
            batch = first[4]
            if len(places) > 1:
                yield from oldest_first([*places], self._tree)
            else:
                batch.end = len(batch.jobs)
                while batch.at < batch.end and self._tree.moves == moves:
                    yield batch
            if self._tree.moves != moves:
                return rows[at:], [place[4] for place in places if place[4].at < len(place[4].jobs)]
        return [], []

    def _in_order(self, rows: list[_Row], batches: Sequence[Batch]) -> list[_Row]:
        """`rows` and `batches`. Rows of queues whose shares, or whose hurry, are others now get other places."""
        moved = {queue for queue, standing in self._standings.items() if self._standing(queue) != standing}
        moved |= {queue for queue, was in self._used_up.items() if self._parts.are_used_up(queue) != was}
        for queue in moved:
            self._standings.pop(queue)
            self._used_up.pop(queue, None)
            self._known.pop(queue, None)
        stay = [row for row in rows if row[2][4].queue not in moved] if moved else rows
        again = [row[2][4] for row in rows if row[2][4].queue in moved] if moved else []
        return sorted([*stay, *map(self._row, [*again, *batches])])

    def _row(self, batch: Batch) -> _Row:
        sweep = batch.part_of
        if sweep is None or batch.at:
            sweep = batch.sweep
            return *self._placed(sweep), (*sweep.place, batch)
        known = self._known[batch.queue]
        found = known.get(id(sweep))
        if found is None:
            found = known[id(sweep)] = self._placed(sweep)  # `batches` hold it, so that no other gets its number
        return *found, (*sweep.place, batch)

    def _placed(self, sweep: Sweep) -> tuple[Urgency, tuple[float, ...]]:
        """Where it stands until its queue moves."""
        queue, urgency = sweep.ask[0], sweep.urgency(self._late_since)
        standing = self._standings.get(queue)
        if standing is None:
            standing = self._standings[queue] = self._standing(queue)
        share = self._tree.lines.share(sweep.whose)
        if _is_urgent(urgency) and self._is_used_up(queue):
            urgency = (urgency[0], urgency[1], True, _NEVER)
        return urgency, (*standing.shares, share) if share else standing.newcomer

    def _is_used_up(self, queue: str) -> bool:
        if queue not in self._used_up:
            self._used_up[queue] = self._parts.are_used_up(queue)
        return self._used_up[queue]

    def _standing(self, queue: str) -> _Standing:
        path = self._tree.lines.queue(queue).path
        shares = tuple([line.share for line in path[-2::-1]])
        return _Standing(shares, (*shares, 0.0), tuple(path[0].used.values()))

    def _is_tied(self, rows: Iterable[_Row]) -> bool:
        """Whether queues, or a queue and a user beside it, have equal shares and take turns."""
        seen: dict[tuple[float, ...], Line] = {}
        for queue, (shares, *_) in self._standings.items():
            path = self._tree.lines.queue(queue).path[-2::-1]
            if any(seen.setdefault(shares[:depth], line) is not line for depth, line in enumerate(path, 1)):
                return True
        return any(row[1] in seen for row in rows)

    def _as_shares_move(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        groups: dict[Urgency, list[Place]] = {}
        for batch in batches:
            urgency = batch.sweep.urgency(self._late_since)
            groups.setdefault(urgency, []).append(place(urgency[3], batch))
        waiting = sorted(groups, reverse=True)
        while waiting:
            urgency = waiting.pop()
            if not _is_urgent(urgency):
                yield from as_shares_move(groups[urgency], self._tree)
                continue
            for batch in as_shares_move(groups[urgency], self._tree):
                if self._parts.are_used_up(batch.first.facts.queue):
                    plain = (urgency[0], urgency[1], True, _NEVER)
                    if plain not in groups:
                        groups[plain] = []
                        waiting.append(plain)
                        waiting.sort(reverse=True)
                    groups[plain].append(place(urgency[3], batch.rest()))
                else:
                    yield batch

    @property
    def _parts(self) -> "_Parts":
        if self._known_parts is None:
            self._known_parts = _Parts(self._tree, self._batches)
        return self._known_parts


def _is_urgent(urgency: Urgency) -> bool:
    return not urgency[2] or urgency[3] < _NEVER


class _Parts:
    """What part of the fleet each queue may hold before it is in no hurry any more: by weight, among queues that hold or want
    anything."""

    def __init__(self, tree: Tree, batches: Iterable[Batch]) -> None:
        self._tree = tree
        whose = {(batch.part_of or batch.sweep).whose for batch in batches}
        active = {line for queue in {queue for queue, _ in whose} for line in tree.lines.queue(queue).path}
        active |= {line for line in tree.lines.queues if any(line.used.values())}
        self._part = {tree.lines.root: 1.0}
        self._known: dict[str, bool] = {}
        self._moves = tree.moves
        weights: dict[Line, float] = {}
        queues = [line for line in tree.lines.queues if line in active]  # parents before those below them
        for line in (*queues, *_beside_queues(tree, whose)):
            if line.parent is not None:
                weights[line.parent] = weights.get(line.parent, 0.0) + line.weight
        for line in queues:
            if line.parent is not None:
                self._part[line] = self._part[line.parent] * line.weight / weights[line.parent]

    def are_used_up(self, queue: str) -> bool:
        """Of the queue, or of one that it is part of. What a quota guarantees is never too much."""
        if self._moves != self._tree.moves:
            self._moves = self._tree.moves
            self._known.clear()
        found = self._known.get(queue)
        if found is None:
            tree, part = self._tree, self._part
            path = tree.lines.queue(queue).path[:-1]
            found = self._known[queue] = any(line.has > part[line] + _SLACK and tree.is_over_quota(line) for line in path)
        return found


def _beside_queues(tree: Tree, waiting: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Users with jobs or devices in queues that have others below them: among those, each has a part of their own."""
    above = {line.parent.name for line in tree.lines.queues if line.parent is not None}
    wanting = {whose for whose in waiting if whose[0] in above}
    holding = {whose for whose in (*tree.held.by_user, *tree.lines.users) if whose[0] in above}
    for whose in sorted(wanting | holding):
        line = tree.lines.user(*whose)
        if whose in wanting or any(line.used.values()):
            yield line
