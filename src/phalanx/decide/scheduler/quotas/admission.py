"""Whether a queue may take more of a type: its limits and those above it, their budgets, what is saved, what is guaranteed.

A user's line has none of these, so all jobs of a queue that ask for as much hear the same.
"""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from phalanx.core.devices import WHOLE
from phalanx.core.ids import JobId
from phalanx.core.policy import ANY
from phalanx.core.reasons import FIRM, OverBudget, OverQuota, Reason
from phalanx.decide.scheduler.quotas import budgets, quota, saving
from phalanx.decide.scheduler.quotas.lines import Line, account, devices, under


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a job may take devices of a type now. borrows: it would use others' idle quota. reason: why not."""

    ok: bool
    borrows: bool = False
    reason: Reason | None = None


FREELY: Final = Admission(True)
BORROWING: Final = Admission(True, borrows=True)


Bar = Hashable
"""What refuses a queue so much of a type, whatever is guaranteed to whom: limits, a budget, what is saved for others. Where it is
equal, so is the refusal, in another decision of the same policy too."""


class Saved(NamedTuple):
    """One that is saved for others. mark: of the book that is."""

    mark: Hashable
    saved_for: JobId


class _Standing(NamedTuple):
    """How a queue stands with a type. books: its limits and quotas, and those above it. room: what the limits leave. spent: a
    budget that stops it. marks: of each book, what `Bar`s are made of. limits: what each leaves, and its mark."""

    books: tuple[saving.Book, ...]
    room: float
    spent: OverBudget | None
    marks: tuple[Hashable, ...]
    limits: tuple[tuple[int, Hashable], ...]


@dataclass(slots=True)
class Found:
    """What was found out, as long as nothing is taken or let go of. settled: numbers of shapes, queues, and whether a limit or
    quota refuses them: all that may be saved for such jobs is. exhausted: queues and types for which nothing is left to save.
    unguaranteed: shapes and queues that are in nobody's guarantee."""

    standings: dict[tuple[Line, str], _Standing] = field(default_factory=dict)
    rights: dict[tuple[Line, str, int], tuple[Line | None, bool]] = field(default_factory=dict)
    refusals: dict[tuple[saving.Account, int, JobId | None], Admission] = field(default_factory=dict)
    short: dict[tuple[Line, tuple[str, ...], int], frozenset[saving.Account]] = field(default_factory=dict)
    owners: dict[tuple[Line, tuple[str, ...], int], tuple[Line | None, str]] = field(default_factory=dict)
    unsaved: dict[tuple[Line, tuple[str, ...]], frozenset[saving.Account]] = field(default_factory=dict)
    settled: set[tuple[int, str, bool]] = field(default_factory=set)
    exhausted: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    unguaranteed: set[tuple[int, str]] = field(default_factory=set)


class Admissions:
    """Of one decision. Whoever takes something or lets go of it replaces `found`. saved: accounts of which the rest is saved, and
    for whom. Amounts are thousandths of devices; capacity: of the fleet by type, usable: on nodes that may be given work. promised:
    what is guaranteed to anybody, by type, and of any type under ANY; None where nothing is."""

    def __init__(
        self,
        root: Line,
        promised: Mapping[str, int] | None,
        capacity: Mapping[str, int],
        usable: Mapping[str, int],
        now_ms: int,
    ) -> None:
        self._root, self._has_quotas = root, promised is not None
        self._promised: Mapping[str, int] = promised or {}
        self._capacity, self._usable = capacity, usable
        self._now_ms = now_ms
        self.saved: dict[saving.Account, JobId] = {}
        self.found = Found()

    def asked(self, queue: Line, kind: str, amount: int, preemptible: bool) -> Admission:
        """Whether a job of the queue may take so much."""
        books, room, spent, *_ = self._standing(queue, kind)
        if amount > room:
            return self._refused(next(one for one in books if one.is_limit and one.used + amount > one.bound), amount)
        if spent is not None:
            return Admission(False, reason=spent)
        at = _first_saved(books, self.saved) if self.saved else None
        if at is not None:
            return self._refused(books[at], amount, self.saved[books[at].account])
        return self._within_quota(queue, kind, amount, preemptible)

    def bars(self, queue: Line, kinds: Sequence[str], amount: int) -> list[Bar | None]:
        """For each type, by what `asked` refuses so much before it looks at what is guaranteed, if by anything."""
        return [self._bar(queue, kind, amount) for kind in kinds]

    def _bar(self, queue: Line, kind: str, amount: int) -> Bar | None:
        saved = self.saved
        books, room, spent, marks, limits = self.found.standings.get((queue, kind)) or self._standing(queue, kind)
        if amount > room:
            return next(mark for left, mark in limits if amount > left)
        if spent is not None or not saved:
            return spent
        at = _first_saved(books, saved)
        return None if at is None else Saved(marks[at], saved[books[at].account])

    def unsaved(self, queue: Line, types: tuple[str, ...]) -> frozenset[saving.Account]:
        """What somebody of the queue may be short of and is not saved for anybody yet."""
        known = self.found.unsaved.get((queue, types))
        if known is None:
            books = {book for kind in self._there(types) for book in self._standing(queue, kind).books}
            of_use = frozenset([account for account, bound, used, _ in books if bound > 0 and used > 0])
            known = self.found.unsaved[queue, types] = of_use - self.saved.keys()
        return known

    def save(self, accounts: AbstractSet[saving.Account], job: JobId) -> None:
        """The rest of them is saved for the job."""
        self.saved.update(dict.fromkeys(accounts, job))
        self.found.unsaved = {who: left - accounts for who, left in self.found.unsaved.items()}

    def is_saved(self, queue: Line, kind: str) -> bool:
        """Whether what is left for the queue is saved for a job."""
        return bool(self.saved) and _first_saved(self._standing(queue, kind).books, self.saved) is not None

    def needs(self, queue: Line, types: tuple[str, ...], amount: int) -> Mapping[saving.Account, int]:
        """So much of each limit and quota that it counts against and that could hold it."""
        books = (book for kind in self._there(types) for book in self._standing(queue, kind).books)
        return {book.account: amount for book in books if amount <= book.bound}

    def room_beside(self, queue: Line, types: tuple[str, ...], needs: Mapping[saving.Account, int]) -> float:
        """How much the queue may have of what counts against these, and leave so much of each. Infinite if nothing does."""
        books = (book for kind in self._there(types) for book in self._standing(queue, kind).books)
        return min((book.bound - book.used - needs[book.account] for book in books if book.account in needs), default=float("inf"))

    def would_borrow(self, queue: Line, types: tuple[str, ...], amount: int) -> bool:
        """Whether so much of some type would only be there while others do not use what they are guaranteed."""
        return self._has_quotas and any(self._right(queue, kind, amount)[1] for kind in self._there(types))

    def is_within(self, queue: Line, types: tuple[str, ...], amount: int) -> bool:
        """Whether so much is within a guarantee on one of the types, and borrowed on none."""
        rights = [self._right(queue, kind, amount) for kind in types or self._capacity if kind in self._capacity]
        return any(owner is not None for owner, _ in rights) and not any(borrows for _, borrows in rights)

    def short_of(self, queue: Line, types: tuple[str, ...], amount: int) -> frozenset[saving.Account]:
        """What would hold so much when nothing of it is used, and does not now."""
        key = (queue, types, amount)
        if key not in self.found.short:
            found = [
                account
                for kind in self._there(types)
                for account, bound, used, _ in self._standing(queue, kind).books
                if amount <= bound < used + amount
            ]
            self.found.short[key] = frozenset(found)
        return self.found.short[key]

    def owner(self, queue: Line, types: tuple[str, ...], amount: int) -> tuple[Line | None, str]:
        """Within whose guarantee so much is asked for, and under what of it."""
        key = (queue, types, amount)
        if key not in self.found.owners:
            found = ((kind, self._right(queue, kind, amount)[0]) for kind in self._there(types))
            owned = ((owner, account(owner.quota, kind) or ANY) for kind, owner in found if owner is not None)
            self.found.owners[key] = next(owned, (None, ""))
        return self.found.owners[key]

    def _there(self, types: tuple[str, ...]) -> Iterable[str]:
        """Of the types that a job accepts, those that the fleet has; what is said of '*' would hold for others too."""
        return [kind for kind in types if kind in self._capacity] if types else self._capacity

    def _standing(self, queue: Line, kind: str) -> _Standing:
        found = self.found.standings.get((queue, kind))
        if found is None:
            books = tuple(saving.books(queue.path, kind))
            spent, marks = budgets.stops(queue.path, self._now_ms), tuple([_mark(book) for book in books])
            limits = tuple([(book.bound - book.used, mark) for book, mark in zip(books, marks, strict=True) if book.is_limit])
            room = min([left for left, _ in limits], default=float("inf"))
            found = self.found.standings[queue, kind] = _Standing(books, room, spent, marks, limits)
        return found

    def _refused(self, book: saving.Book, amount: int, saved_for: JobId | None = None) -> Admission:
        key = (book.account, amount, saved_for)
        if key not in self.found.refusals:
            self.found.refusals[key] = Admission(False, reason=saving.refused(book, amount, saved_for))
        return self.found.refusals[key]

    def _right(self, queue: Line, kind: str, amount: int) -> tuple[Line | None, bool]:
        """Within whose guarantee so much is; and if it is in none, whether it would be borrowed."""
        key = (queue, kind, amount)
        if key not in self.found.rights:
            owner = quota.guarantor(queue.path, kind, amount)
            self.found.rights[key] = owner, owner is None and quota.encroaches(queue.path, kind, amount, self._capacity)
        return self.found.rights[key]

    def _within_quota(self, queue: Line, kind: str, amount: int, preemptible: bool) -> Admission:
        if not self._has_quotas:
            return FREELY
        owner, borrows = self._right(queue, kind, amount)
        if owner is not None:
            return FREELY
        owners = [line for line in queue.path if account(line.quota, kind) is not None]
        unwilling = next((line for line in queue.path if not line.queue.borrow and (borrows or line in owners)), None)
        if unwilling is not None:
            if not owners:
                return self._over_unpromised(unwilling, kind, amount, f"{unwilling.name} may not borrow (borrow: false)")
            return _over_quota(unwilling, kind, amount, "it may not use more (borrow: false)", unwilling in owners)
        if not preemptible and owners:
            most = max(owners, key=lambda line: line.quota[account(line.quota, kind) or kind])
            return _over_quota(most, kind, amount, FIRM, True)
        if not preemptible and borrows:
            return self._over_unpromised(queue, kind, amount, FIRM)
        if borrows and not self._is_lent(queue, kind, amount):
            why = "what others are guaranteed is not lent, or is waited for by their own jobs"
            return _over_quota(owners[0] if owners else queue, kind, amount, why)
        return BORROWING if borrows else FREELY

    def _over_unpromised(self, line: Line, kind: str, amount: int, because: str) -> Admission:
        """More than is left of what nobody is guaranteed: of the type, or of all types where that is what is short."""
        promised, committed, capacity = self._promised, self._root.committed, self._capacity
        whole = sum(capacity.values())
        of_all = whole - sum(promised.values()), whole - sum(committed.values()), kind if len(capacity) == 1 else ANY
        of_kind = capacity.get(kind, 0) - promised.get(kind, 0), capacity.get(kind, 0) - committed.get(kind, 0), kind
        never = [bound for bound in (of_kind, of_all) if amount > bound[0]]
        most, left, entry = min(never or (of_kind, of_all), key=lambda bound: bound[0 if never else 1])
        all_, used = max(0, most // WHOLE), max(0, devices(min(most, most - left)))
        return Admission(False, reason=OverQuota(line.name, entry, all_, used, devices(amount), because, True, unpromised=True))

    def _is_lent(self, queue: Line, kind: str, amount: int) -> bool:
        """Whether it leaves what others keep of their quotas."""
        kept, used = quota.kept_by_others(queue), self._root.used
        if kept.get(kind, 0) > 0 and used.get(kind, 0) + amount > self._usable.get(kind, 0) - kept[kind]:
            return False
        whole = sum(kept.values())
        return whole <= 0 or sum(used.values()) + amount <= sum(self._usable.values()) - whole


def _first_saved(books: Sequence[saving.Book], saved: Container[saving.Account]) -> int | None:
    for at, book in enumerate(books):
        if book.account in saved:
            return at
    return None


def _mark(book: saving.Book) -> Hashable:
    """Equal in another decision, in which lines are other objects. What else there is of a book the policy and the type tell."""
    return book.account[0].name, book.is_limit, book.used


def _over_quota(line: Line, kind: str, amount: int, because: str, for_ever: bool = False) -> Admission:
    entry = account(line.quota, kind) or kind
    used, guaranteed = under(line.used, line.quota, entry), devices(line.quota.get(entry, 0))
    return Admission(False, reason=OverQuota(line.name, entry, guaranteed, devices(used), devices(amount), because, for_ever))
