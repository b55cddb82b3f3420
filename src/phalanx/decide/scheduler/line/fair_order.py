"""The fair order: urgency, then from the root down the line with the smallest share, then age.

Being late or due counts only while the queue has no more than its part: nobody passes others by asking for more, or for everything
by tomorrow.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from phalanx.core.policy import Policy
from phalanx.decide.scheduler.line.stems import Place, as_shares_move, oldest_first, place
from phalanx.decide.scheduler.line.sweeps import Batch
from phalanx.decide.scheduler.quotas.lines import Line
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob
from phalanx.decide.scheduler.targets import is_late, late_since

Urgency = tuple[int, bool, bool, float]
"""Priority, negated; not failed by a node; not late; Unix milliseconds by which it has to start. The smallest goes first."""

_Row = tuple[Urgency, tuple[float, ...], Place]
"""Of a batch: with the shares of the lines that it stands in, from below the root down."""

_NEVER: Final = float("inf")
_SLACK: Final = 1e-9


class FairOrder:
    """Of one decision. `batches`: all that wait."""

    def __init__(self, batches: Sequence[Batch], policy: Policy, now_ms: int, tree: Tree) -> None:
        self._batches, self._tree = batches, tree
        self._late_since = late_since(policy, now_ms)
        self._known_parts: _Parts | None = None

    def of(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """Some of them, or what is left of these. Whoever takes one decides its first job at least (`Batch.at`), and others up to
        `Batch.end` while nobody takes anything."""
        left = yield from self._at_rest(batches)
        yield from self._as_shares_move(left)

    def _at_rest(self, batches: Sequence[Batch]) -> Generator[Batch, None, Sequence[Batch]]:
        """While nothing is taken, all stand in one row. Returns what is left once something was; all of it where a queue takes
        turns with what is beside it and has an equal share."""
        rows = self._rows(batches)
        if rows is None:
            return batches
        rows.sort()
        moves = self._tree.moves
        for _, alike in groupby(enumerate(rows), key=lambda one: one[1][:2]):
            tied = list(alike)
            yield from oldest_first([row[2] for _, row in tied], self._tree)
            if self._tree.moves != moves:
                left = (row[2][4] for row in rows[tied[0][0] :])
                return [batch for batch in left if batch.at < len(batch.jobs)]
        return ()

    def _rows(self, batches: Iterable[Batch]) -> list[_Row] | None:
        """None where queues, or a queue and a user beside it, have equal shares."""
        lines, rows = self._tree.lines, list[_Row]()
        queues: dict[str, tuple[float, ...]] = {}
        seen: dict[tuple[float, ...], Line] = {}
        for batch in batches:
            facts = batch.jobs[batch.at].facts
            shares = queues.get(facts.queue)
            if shares is None:
                path = lines.queue(facts.queue).path[-2::-1]
                shares = queues[facts.queue] = tuple(line.share for line in path)
                if any(seen.setdefault(shares[:depth], line) is not line for depth, line in enumerate(path, 1)):
                    return None
            urgency = self._urgency(batch)
            start_ms = urgency[3]
            if _is_urgent(urgency) and self._parts.are_used_up(facts):
                urgency = (urgency[0], urgency[1], True, _NEVER)
            rows.append((urgency, (*shares, lines.share(facts.queue, facts.user)), place(start_ms, batch)))
        return None if any(row[1] in seen for row in rows) else rows

    def _as_shares_move(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        groups: dict[Urgency, list[Place]] = {}
        for batch in batches:
            urgency = self._urgency(batch)
            groups.setdefault(urgency, []).append(place(urgency[3], batch))
        waiting = sorted(groups, reverse=True)
        while waiting:
            urgency = waiting.pop()
            if not _is_urgent(urgency):
                yield from as_shares_move(groups[urgency], self._tree)
                continue
            for batch in as_shares_move(groups[urgency], self._tree):
                if self._parts.are_used_up(batch.first.facts):
                    plain = (urgency[0], urgency[1], True, _NEVER)
                    if plain not in groups:
                        groups[plain] = []
                        waiting.append(plain)
                        waiting.sort(reverse=True)
                    groups[plain].append(place(urgency[3], batch.rest()))
                else:
                    yield batch

    def _urgency(self, batch: Batch) -> Urgency:
        job = batch.jobs[batch.at]
        start_ms = _NEVER if job.facts.deadline_ms is None else _latest_start_ms(job)
        return -job.facts.priority, not job.repair, not is_late(job, self._late_since), start_ms

    @property
    def _parts(self) -> "_Parts":
        if self._known_parts is None:
            self._known_parts = _Parts(self._tree, self._batches)
        return self._known_parts


def _is_urgent(urgency: Urgency) -> bool:
    return not urgency[2] or urgency[3] < _NEVER


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
        whose = {(batch.jobs[0].facts.queue, batch.jobs[0].facts.user) for batch in batches}
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


def _beside_queues(tree: Tree, waiting: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Users with jobs or devices in queues that have others below them: among those, each has a part of their own."""
    above = {line.parent.name for line in tree.lines.queues if line.parent is not None}
    wanting = {whose for whose in waiting if whose[0] in above}
    holding = {whose for whose in (*tree.held.by_user, *tree.lines.users) if whose[0] in above}
    for whose in sorted(wanting | holding):
        line = tree.lines.user(*whose)
        if whose in wanting or any(line.used.values()):
            yield line
