"""What lines deserve: their quota, or where they have none their part, by weight, of what is left.

At most what those in them hold and ask for: what some do not want goes to the others (max-min fairness).
"""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from phalanx.decide.scheduler.quotas.lines import Line, account
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room.gangs import Gangs

Ask = tuple[str, tuple[str, ...], int]
"""A queue, and so many thousandths of devices of any of certain types."""


class Fair:
    """Of one decision: nothing that is taken or let go of in it changes anything."""

    def __init__(self, tree: Tree, gangs: Gangs, asks: Callable[[], Mapping[Ask, int]]) -> None:
        """asks: how often each is asked for by all that wait."""
        self._tree, self._gangs, self._asks = tree, gangs, asks
        self._kinds = {kind: number for number, kind in enumerate(tree.capacity)}
        self._found: dict[str, dict[Line, float]] = {}

    def of(self, kind: str) -> Mapping[Line, float]:
        """What each line deserves of a type, in thousandths of devices; lines that want none are left out."""
        if kind not in self._found:
            root = self._tree.lines.root
            found = self._found[kind] = {root: float(self._tree.capacity.get(kind, 0))}
            _divide(root, kind, self._wanted(kind), found)
        return self._found[kind]

    def deserves(self, line: Line, kind: str) -> float:
        entry = account(line.quota, kind)
        return self.of(kind).get(line, 0.0) if entry is None else line.quota[entry]

    def _wanted(self, kind: str) -> dict[Line, int]:
        """What lines hold of a type and ask for. Evictions do not change it: who is evicted asks again."""
        capacity, gangs = self._tree.capacity.get(kind, 0), self._gangs
        runs = (gangs.kind == self._kinds.get(kind, len(self._kinds))) & (gangs.amount <= capacity)
        held = np.bincount(gangs.queue[runs], gangs.amount[runs], len(gangs.queues))
        of_queue = Counter({name: int(amount) for name, amount in zip(gangs.queues, held, strict=True)})
        for (name, types, amount), times in self._asks().items():
            if amount <= capacity and (not types or kind in types):
                of_queue[name] += amount * times
        wanted: dict[Line, int] = {}
        for name, amount in of_queue.items():
            for line in self._tree.lines.queue(name).path:
                wanted[line] = wanted.get(line, 0) + amount
        return wanted


def _divide(line: Line, kind: str, wanted: dict[Line, int], found: dict[Line, float]) -> None:
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
