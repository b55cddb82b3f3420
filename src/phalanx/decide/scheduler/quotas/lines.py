"""Queues as a tree of lines, with what those in each hold. Below a queue each user has a line of their own.

Amounts are thousandths of devices, so that shares of devices count as their part of one.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from phalanx.core.devices import WHOLE
from phalanx.core.policy import ANY, Budget, Policy, Queue
from phalanx.decide.scheduler.quotas.holds import Amounts, Held, Whose
from phalanx.decide.scheduler.snapshot import Usage

ROOT: Final = ""
CORES: Final = "cores"
MEMORY: Final = "memory"
_LEAST: Final = 1e-9
_USERS: Final = Queue()


class Line:
    """One queue, or one user's part of one. path: itself, then what it is part of, the root last.

    used: by device type, by it and those below. held: what is held however briefly, such as by gangs that are ending for others.
    host: cores and memory that go with it. usage: share of the fleet that it has had; spent_ms, money: in the budget's period.
    has: its dominant share of the fleet. share: what it has and has had, for its weight.

    committed: what it and those below hold or are guaranteed, by type; under ANY what is guaranteed of any type and not held.
    unnamed: committed of types that `quota` does not name. waiting: what jobs within the guarantee wait for, by entry of `quota`.
    kept: what of the quota others may not borrow now, by entry; below: the same, of the lines below.
    """

    __slots__ = (
        "below", "budget", "children", "committed", "has", "held", "host", "kept", "limit", "money", "name", "parent", "path",
        "queue", "quota", "share", "spent_ms", "unnamed", "usage", "used", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, queue: Queue, parent: "Line | None" = None) -> None:
        self.name = name
        self.queue = queue
        self.parent = parent
        self.children: list[Line] = []
        self.path: tuple[Line, ...] = (self, *(parent.path if parent else ()))
        self.quota: dict[str, int] = {kind: count * WHOLE for kind, count in queue.quota.items()}
        self.limit: dict[str, int] = {kind: count * WHOLE for kind, count in queue.limit.items()}
        self.budget: Budget | None = queue.budget
        self.used: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.host: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.unnamed = 0
        self.waiting: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.below: dict[str, int] = {}
        self.usage = 0.0
        self.spent_ms = 0
        self.money = 0.0
        self.has = 0.0
        self.share = 0.0
        if parent is not None:
            parent.children.append(self)

    @property
    def weight(self) -> float:
        return max(self.queue.weight, _LEAST)

    def begin(self, held: Mapping[str, Amounts]) -> None:
        """These, by type, are held by it besides what is known."""
        for kind, (amount, cores, memory, leaving, _) in held.items():
            self.add(kind, amount, cores, memory)
            self.hold(kind, amount + leaving)

    def add(self, kind: str, amount: int, cores: int, memory: int) -> None:
        """So much more is used."""
        self.used[kind] = self.used.get(kind, 0) + amount
        if cores or memory:
            self.host[CORES] = self.host.get(CORES, 0) + cores
            self.host[MEMORY] = self.host.get(MEMORY, 0) + memory

    def hold(self, kind: str, amount: int) -> None:
        """So much more counts for limits."""
        self.held[kind] = self.held.get(kind, 0) + amount

    def weigh(self, capacity: Mapping[str, int], host: Mapping[str, int]) -> None:
        """Dominant share of the fleet that it has, and the share that it has had, for its weight (Ghodsi et al., NSDI 2011)."""
        self.has = max(_part(self.used, capacity), _part(self.host, host))
        self.share = (self.has + self.usage) / self.weight


class Lines:
    """All queues, and of their users those that were asked for, with what they hold. A queue that the policy does not have is one
    of the root; so is one whose parent is unknown, or that is, in a circle, a part of itself."""

    def __init__(
        self, policy: Policy, queues: Iterable[str], held: Held, capacity: Mapping[str, int], host: Mapping[str, int]
    ) -> None:
        """capacity, host: what the fleet has: thousandths of devices by type; cores and memory."""
        self._policy = policy
        self._held, self._capacity, self._host = held, capacity, host
        self.root = Line(ROOT, Queue())
        self.all = [self.root]
        self._by_name = {ROOT: self.root}
        self.users: dict[Whose, Line] = {}
        self._had: dict[Whose, float] = {}
        self._known: set[Whose] = set(held.by_user)
        for name in sorted({*policy.queues, *queues, *held.by_queue}):
            self._grow(name)
        for name in sorted(held.by_queue):
            for line in self.queue(name).path:
                line.begin(held.by_queue[name])

    @property
    def queues(self) -> Collection[Line]:
        """Without the lines of users; parents come before those below them."""
        return self._by_name.values()

    def queue(self, name: str) -> Line:
        found = self._by_name.get(name)
        return found if found is not None else self._grow(name)

    def user(self, queue: str, user: str) -> Line:
        """Whose jobs in a queue stand in it."""
        found = self.users.get((queue, user))
        if found is None:
            self._known.add((queue, user))
            found = self.users[queue, user] = self._add(f"{queue}/{user}", _USERS, self.queue(queue))
            found.begin(self._held.by_user.get((queue, user), {}))
            found.usage = self._had.get((queue, user), 0.0)
            found.weigh(self._capacity, self._host)
        return found

    def share(self, whose: Whose) -> float:
        """Of the user's line, which is only made for who takes something."""
        if whose not in self._known:
            return 0.0
        line = self.users.get(whose)
        if line is not None:
            return line.share
        held = self._held.by_user.get(whose, {})
        used = {kind: amount for kind, (amount, *_) in held.items()}
        host = {CORES: sum([cores for _, cores, *_ in held.values()]), MEMORY: sum([memory for _, _, memory, *_ in held.values()])}
        has = max(_part(used, self._capacity), _part(host, self._host))
        return (has + self._had.get(whose, 0.0)) / _USERS.weight

    def had(self, usage: Mapping[str, Usage], fleet_ms: float) -> None:
        """Adds up what each line and those below it have had, before any user is asked for; `fleet_ms` is what the whole fleet
        would have."""
        for name in sorted(usage):
            had = usage[name]
            queue, _, user = name.partition("/")
            if user:  # of what its queue has had
                self._had[queue, user] = had.decayed / fleet_ms
                self._known.add((queue, user))
                continue
            for line in self.queue(queue).path:
                line.usage += had.decayed / fleet_ms
                line.spent_ms += had.spent_ms
                line.money += had.money

    def _grow(self, name: str) -> Line:
        above: list[str] = []
        while name != ROOT and name not in self._by_name and name not in above:
            above.append(name)
            parent = self._policy.queues[name].parent if name in self._policy.queues else ROOT
            name = parent if parent in self._policy.queues else ROOT
        line = self._by_name.get(name, self.root)
        for new in reversed(above):
            line = self._by_name[new] = self._add(new, self._policy.queues.get(new, Queue()), line)
        return line

    def _add(self, name: str, queue: Queue, parent: Line) -> Line:
        line = Line(name, queue, parent)
        self.all.append(line)
        return line


def _part(amounts: Mapping[str, int], whole: Mapping[str, int]) -> float:
    """The largest that one of these is of its whole."""
    return max([amount / whole[name] for name, amount in amounts.items() if whole.get(name)], default=0.0)


def devices(milli: int) -> int:
    """A part of one counts as one."""
    return -(-milli // WHOLE)


def account(named: Mapping[str, int], kind: str) -> str | None:
    """Under what of a quota or limit a type falls."""
    return kind if kind in named else ANY if ANY in named else None


def under(amounts: Mapping[str, int], named: Mapping[str, int], entry: str) -> int:
    """Of `amounts` by type, what falls under `entry` of `named`."""
    if entry != ANY:
        return amounts.get(entry, 0)
    return sum(amount for kind, amount in amounts.items() if kind not in named)
