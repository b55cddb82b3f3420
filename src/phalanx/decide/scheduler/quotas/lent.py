"""What queues without a quota hold only since others do not use theirs: for people, after a decision.

Nobody's devices come first: only what is held beyond all that nobody is guaranteed is borrowed, and where several queues hold some
of it, it counts for each of them.
"""

from collections.abc import Mapping
from dataclasses import replace

from phalanx.core.policy import ANY
from phalanx.decide.scheduler.quotas.lines import Line, account
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.decide.scheduler.where.ground import survey


def lent_to(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """By queue without a quota: thousandths of devices by type that it borrows; of several types that are short together under
    ANY. Queues that borrow nothing are left out."""
    ground = survey(snapshot.nodes)
    tree = Tree(snapshot, ground)
    if not tree.has_quotas:
        return {}
    idle = {line.name: line for line in Tree(replace(snapshot, running=()), ground).lines.queues}
    root = tree.lines.root
    over = {kind: root.committed.get(kind, 0) - amount for kind, amount in tree.capacity.items()}
    whole = sum(root.committed.values()) - sum(tree.capacity.values())
    found: dict[str, dict[str, int]] = {}
    for line in tree.lines.queues:
        beyond = min((_beyond(above, idle.get(above.name)) for above in line.path if above is not root), default=0)
        if line.quota or beyond <= 0:
            continue
        named = {kind: min(amount, over.get(kind, 0), beyond) for kind, amount in line.used.items()}
        named = {kind: amount for kind, amount in named.items() if amount > 0}
        rest = min(beyond, whole) - sum(named.values())
        if rest > 0:
            held = [kind for kind, amount in line.used.items() if amount > 0]
            of = held[0] if len(held) == 1 else ANY
            named[of] = named.get(of, 0) + rest
        if named:
            found[line.name] = dict(sorted(named.items()))
    return found


def _beyond(line: Line, idle: Line | None) -> int:
    """Thousandths of devices that it and those below it hold beyond what they are guaranteed. idle: the line while nothing runs."""
    if not line.quota:
        promised: Mapping[str, int] = idle.committed if idle is not None else {}
        return sum(line.committed.values()) - sum(promised.values())
    used: dict[str, int] = {}
    for kind, amount in line.used.items():
        entry = account(line.quota, kind) or kind
        used[entry] = used.get(entry, 0) + amount
    return sum(max(0, amount - line.quota.get(entry, 0)) for entry, amount in used.items())
