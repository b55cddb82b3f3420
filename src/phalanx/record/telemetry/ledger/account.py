"""Adding up: device time of a window by category, in milli-devices x milliseconds. Pure."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from phalanx.core.events import Event
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.records import StepRecord
from phalanx.core.units import MILLI
from phalanx.record.telemetry.ledger.categories import CATEGORIES, RESERVED, UNHEALTHY
from phalanx.record.telemetry.ledger.history import FOREVER, DeviceId, History, Hold, Span, fold
from phalanx.record.telemetry.ledger.spend import spend

_HOUR_MS: Final = 3_600_000

Steps = Mapping[AttemptId, Sequence[StepRecord]]


@dataclass(frozen=True, slots=True)
class Account:
    """Amounts in milli-devices x milliseconds. `categories` has every category and sums to `capacity`, always.

    by_type: `capacity` by device type, for the price.
    """

    capacity: int
    categories: Mapping[str, int]
    by_type: Mapping[str, int]

    @property
    def balanced(self) -> bool:
        return self.capacity == sum(self.categories.values()) == sum(self.by_type.values())


def account(events: Iterable[Event], steps: Steps, since_ms: int, until_ms: int, job: JobId | Set[JobId] | None = None) -> Account:
    """The fleet's time in [since_ms, until_ms), or, for a `job` or several, the time of the devices that they held.

    events: the whole log, oldest first. steps: the records of attempts. Of a training rank that left none: while its attempt
    goes on it counts as starting up, and once that is over, as not measured from the moment it ran.
    """
    return account_of(fold(events), steps, since_ms, until_ms, job)


def account_of(history: History, steps: Steps, since_ms: int, until_ms: int, job: JobId | Set[JobId] | None = None) -> Account:
    """As `account`, of a log that was folded before."""
    jobs = {job} if isinstance(job, str) else job
    window = (since_ms, max(since_ms, until_ms))
    owned = _owned(history)
    book = _Book()
    for one in _with_steps_before(owned, steps):
        if jobs is None or one.owned.hold.job in jobs:
            _book_held(book, one, history, window)
    if jobs is None:
        _book_free(book, history, owned, window)
    return book.close()


def cost(by_type: Mapping[str, int], price_per_hour: Callable[[str], float | None]) -> float | None:
    """What that device time costs, in the currency of `price_per_hour`; None where a type that was used has no price."""
    total = 0.0
    for kind, amount in by_type.items():
        price = price_per_hour(kind)
        if amount and price is None:
            return None
        total += (price or 0.0) * amount / (MILLI * _HOUR_MS)
    return total


@dataclass(frozen=True, slots=True)
class _Owned:
    """One device of a hold, or `milli` thousandths of it, in a span in which nobody else had so much of it before."""

    hold: Hold
    rank: int
    device: DeviceId
    span: Span
    milli: int


@dataclass(frozen=True, slots=True)
class _Measured:
    """With the records of its rank, and the steps that earlier attempts of the job had recorded for that rank."""

    owned: _Owned
    steps: Sequence[StepRecord]
    done: frozenset[int]


class _Book:
    """The sums so far."""

    def __init__(self) -> None:
        self._categories: Counter[str] = Counter()
        self._types: Counter[str] = Counter()

    def add(self, category: str, amount: int) -> None:
        self._categories[category] += amount

    def add_capacity(self, device_type: str, amount: int) -> None:
        self._types[device_type] += amount

    def close(self) -> Account:
        categories = {name: self._categories[name] for name in CATEGORIES}
        return Account(sum(self._types.values()), categories, dict(self._types))


def _owned(history: History) -> list[_Owned]:
    """Holds device by device. A log that gives more of a device than there is, is wrong; the first keep it, so time is booked
    once."""
    taken: dict[DeviceId, list[_Owned]] = defaultdict(list)
    found = []
    for hold in history.holds:
        for rank, (device, milli) in enumerate(hold.shares()):
            before = taken[device] = [one for one in taken[device] if one.span[1] > hold.start]
            for start, end, used in _levels((hold.start, hold.end_on(device.node)), before):
                left = min(milli, MILLI - used)
                if left > 0:
                    one = _Owned(hold, rank, device, (start, end), left)
                    taken[device].append(one)
                    found.append(one)
    return found


def _levels(span: Span, owned: Iterable[_Owned]) -> list[tuple[int, int, int]]:
    """`span` in pieces, each with the thousandths that `owned`, all of one device, have of it in all of the piece."""
    if span[0] >= span[1]:
        return []
    changes: Counter[int] = Counter({span[0]: 0, span[1]: 0})
    for one in owned:
        start, end = _overlap(one.span, span)
        if start < end:
            changes[start] += one.milli
            changes[end] -= one.milli
    level, pieces = 0, []
    for at, following in pairwise(sorted(changes)):
        level += changes[at]
        pieces.append((at, following, level))
    return pieces


def _with_steps_before(owned: Iterable[_Owned], steps: Steps) -> Iterator[_Measured]:
    """Attempts of a job in their order, so that what was done before is known."""
    done: dict[tuple[JobId, int], frozenset[int]] = {}
    by_rank: dict[AttemptId, dict[int, list[StepRecord]]] = {}
    for one in sorted(owned, key=lambda part: part.hold.number):
        attempt, key = one.hold.attempt, (one.hold.job, one.rank)
        if attempt not in by_rank:
            by_rank[attempt] = _by_rank(steps.get(attempt, ()))
        records = by_rank[attempt].get(one.rank, [])
        before = done.get(key, frozenset())
        done[key] = before.union(record.step for record in records)
        yield _Measured(one, records, before)


def _by_rank(records: Iterable[StepRecord]) -> dict[int, list[StepRecord]]:
    grouped: dict[int, list[StepRecord]] = defaultdict(list)
    for record in records:
        grouped[record.rank].append(record)
    return grouped


def _book_held(book: _Book, one: _Measured, history: History, window: Span) -> None:
    spans = []
    for start, end, device_type in history.present.get(one.owned.device, ()):
        span = _overlap(_overlap((start, end), one.owned.span), window)
        if span[0] < span[1]:
            spans.append(span)
            book.add_capacity(device_type, (span[1] - span[0]) * one.owned.milli)
    if not spans:
        return
    absent = one.owned.hold.absent.get(one.owned.rank, ())
    for start, end, category in spend(one.owned.hold, one.steps, one.done, absent):
        for span in spans:
            common = _overlap((start, end), span)
            if common[0] < common[1]:
                book.add(category, (common[1] - common[0]) * one.owned.milli)


def _book_free(book: _Book, history: History, owned: Iterable[_Owned], window: Span) -> None:
    """Free time: unhealthy where the node was away; reserved where somebody had drained it, since no job could have had it, and
    nothing says that it is broken; else by what the line was waiting for."""
    held: dict[DeviceId, list[_Owned]] = defaultdict(list)
    for one in owned:
        held[one.device].append(one)
    changes: Counter[int] = Counter()  # time -> thousandths that became free and usable then, less those that ceased to be
    for device, spans in history.present.items():
        for start, end, device_type in spans:
            for first, last, used in _levels(_overlap((start, end), window), held[device]):
                left = MILLI - used
                if left > 0:
                    book.add_capacity(device_type, (last - first) * left)
                    there = list(_without((first, last), history.away.get(device.node, ())))
                    usable = [span for one in there for span in _without(one, history.drained.get(device.node, ()))]
                    book.add(UNHEALTHY, (last - first - _length(there)) * left)
                    book.add(RESERVED, (_length(there) - _length(usable)) * left)
                    for at, stop in usable:
                        changes[at] += left
                        changes[stop] -= left
    _book_idle(book, changes, history.idle_as)


def _book_idle(book: _Book, changes: Mapping[int, int], idle_as: Sequence[tuple[int, str]]) -> None:
    starts = [at for at, _ in idle_as]
    first = min(changes, default=FOREVER)
    times = sorted({*changes, *(at for at in starts if at > first)})
    free = 0
    for at, following in pairwise(times):
        free += changes.get(at, 0)
        book.add(idle_as[bisect_right(starts, at) - 1][1], free * (following - at))


def _length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def _overlap(one: Span, other: Span) -> Span:
    return max(one[0], other[0]), min(one[1], other[1])


def _without(span: Span, holes: Iterable[Span]) -> Iterator[Span]:
    """What is left of `span` between `holes`, which are in order and do not overlap."""
    at, end = span
    for start, stop in holes:
        if at < min(start, end):
            yield at, min(start, end)
        at = max(at, stop)
    if at < end:
        yield at, end
