"""Whether a run was given each sample exactly once an epoch, over resizes, restarts and rollbacks: what its ranks have recorded
against the order. Pure.

Of each step that counts (see `legs`) the ranks' rows are joined in the order of their ranks, and have to be the batch of the order,
row by row; so none is missing, twice, or another one. That each epoch then has each of its samples once is counted besides.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.data_audit import DataAudit, DeliveryFault, Leg, Reached, SourceRead
from phalanx.core.errors import DataError
from phalanx.job.data.deliveries import Deliveries, Fields
from phalanx.job.data.draws import DataOrder, Draws, positions
from phalanx.job.data.ends import End, check_end, end_of, ragged
from phalanx.job.data.legs import Gang, Stretch, Wrong, check_joints, gangs_of, stretches_of, wrong
from phalanx.job.data.order import Indices
from phalanx.job.data.quarantine import ANY_SHARE, Quarantined

Contents = Callable[[int, Indices, Fields], NDArray[np.uint64]]
"""From a source, samples of it, and what was read of them, to the XXH3 of each one's tokens or fields. Raises DataError where the
data is damaged."""

Progress = Callable[[int, int], None]
"""Told how many global samples are looked at, of how many."""

_ROWS_AT_ONCE: Final = 2**16


def audit(
    logs: Sequence[Deliveries],
    order: DataOrder,
    contents: Contents | str = "",
    progress: Progress | None = None,
    reached: Sequence[Reached] = (),
) -> DataAudit:
    """The verdict on everything that the ranks of a run have recorded. contents: tells what the tokens have to be; or why nobody
    does. reached: how far the records have to go. The order of the newest gang, which its cursor has held against the past of the
    run."""
    counted = _Counted(order)
    gangs: list[Gang] = []
    stretches: list[Stretch] = []
    fault: DeliveryFault | None = None
    end = End(0, "", False)
    tokens = _Tokens(contents)
    try:
        gangs = gangs_of(logs)
        end = end_of(gangs, reached, order.global_batch)
        stretches = stretches_of(gangs, end.step, end.known)
        check_joints(stretches, order.global_batch)
        for stretch in stretches:
            _check_rows(stretch, order, tokens, counted, lambda: progress and progress(counted.samples, _total(stretches, order)))
        check_end(gangs, stretches, end)
    except Wrong as error:
        fault = error.fault
    loose = () if fault else tuple(ragged(gangs, stretches))
    steps = counted.samples // order.global_batch
    aside = {one for stretch in stretches for one in stretch.gang.set_aside}
    return DataAudit(
        complete=fault is None, says=_says(counted, fault), steps=steps, samples=counted.samples,
        sources=counted.sources(), legs=tuple(_leg(gang, stretches) for gang in gangs), set_aside=len(aside),
        contents=tokens.says, damaged=tokens.damaged, fault=fault, lost=sum(log.lost for log in logs),
        ended=end.step > 0 and steps == end.step and not loose, end="; ".join((end.says, *loose)),
    )  # fmt: skip


class _Tokens:
    """What they have to be, as long as the data says it: where it is damaged there is still a verdict on the order."""

    def __init__(self, contents: Contents | str) -> None:
        self._contents = contents
        self.says = contents if isinstance(contents, str) else "compared"
        self.damaged = ""

    def right(self, wanted: Draws, first: int, fields: Fields) -> NDArray[np.uint64] | None:
        """Of these samples, in the steps from `first` on, of which a gang read these fields; None where they cannot be told."""
        if isinstance(self._contents, str) or self.damaged:
            return None
        right = np.empty(len(wanted), dtype=np.uint64)
        try:
            for source in np.unique(wanted.source).tolist():
                rows = np.flatnonzero(wanted.source == source)
                right[rows] = self._contents(source, wanted.sample[rows], fields)
        except DataError as error:
            self.damaged = error.field
            self.says = f"damaged: {error.sentence()}; {f'compared up to step {first}' if first else 'nothing compared'}"
            return None
        return right


def _check_rows(stretch: Stretch, order: DataOrder, tokens: _Tokens, counted: "_Counted", told: Callable[[], object]) -> None:
    held = Quarantined(order, stretch.gang.set_aside, ANY_SHARE)
    numbers = _numbers(stretch.gang, order.names)
    at_once = max(1, _ROWS_AT_ONCE // order.global_batch)
    for first in range(stretch.first, stretch.stop, at_once):
        steps = range(first, min(first + at_once, stretch.stop))
        asked = positions(order, first, len(steps))
        plain, wanted = order.draws(asked), held.draws(asked)
        good: list[NDArray[Any]] = []
        try:
            for number, step in enumerate(steps):
                rows = np.arange(number * order.global_batch, (number + 1) * order.global_batch)
                good.append(_joined(stretch.gang, step, wanted.take(rows), order.names, numbers))
        finally:  # what comes before the fault counts, and its own faults come first
            rows = np.arange(len(good) * order.global_batch)
            _check_contents(stretch.gang, first, wanted.take(rows), good, tokens, order)
            counted.count(plain.take(rows), wanted.take(rows))
        told()


def _numbers(gang: Gang, names: Sequence[str]) -> Indices | None:
    """From a gang's number of a source to that of the newest: beside it, others may have come or gone. None where all are alike."""
    mine = next(iter(gang.logs.values())).head.order.names
    if mine == tuple(names):
        return None
    known = {name: number for number, name in enumerate(names)}
    return np.array([known.get(name, len(names) + number) for number, name in enumerate(mine)], dtype=np.int64)


def _part(gang: Gang, rank: int, step: int, numbers: Indices | None) -> NDArray[Any] | None:
    rows = gang.logs[rank].batches.get(step) if rank in gang.logs else None
    if rows is None or numbers is None:
        return rows
    rows = rows.copy()
    inside = rows["source"] < len(numbers)
    rows["source"][inside] = numbers[rows["source"][inside]]
    return rows


def _joined(gang: Gang, step: int, wanted: Draws, names: Sequence[str], numbers: Indices | None) -> NDArray[Any]:
    """The rows of a step, which are what is wanted."""
    parts = [_part(gang, rank, step, numbers) for rank in range(gang.world_size)]
    rows: list[NDArray[Any]] = [part for part in parts if part is not None]
    if len(rows) == len(parts) and sum(map(len, rows)) == len(wanted):
        joined = np.concatenate(rows)
        bounds = [len(wanted) * rank // gang.world_size for rank in range(gang.world_size + 1)]
        right = (joined["source"] == wanted.source) & (joined["sample"] == wanted.sample)
        if right.all() and [len(row) for row in rows] == np.diff(bounds).tolist():
            return joined
    raise _firstwrong(gang, step, wanted, parts, names)


def _firstwrong(gang: Gang, step: int, wanted: Draws, parts: Sequence[NDArray[Any] | None], names: Sequence[str]) -> Wrong:
    in_step = set(zip(wanted.source.tolist(), wanted.sample.tolist(), strict=True))
    for rank, part in enumerate(parts):
        first, stop = (len(wanted) * one // gang.world_size for one in (rank, rank + 1))
        mine = list(zip(wanted.source[first:stop].tolist(), wanted.sample[first:stop].tolist(), strict=True))
        found = [] if part is None else list(zip(part["source"].tolist(), part["sample"].tolist(), strict=True))
        for at in range(max(len(mine), len(found))):
            want, got = (each[at] if at < len(each) else None for each in (mine, found))
            if want == got:
                continue
            about = (names[want[0]], want[1]) if want else ("", -1)
            if got is None:
                lost = gang.logs[rank].lost if rank in gang.logs else 0
                nothing = f"recorded nothing, as of {lost} batches that its disk did not take" if lost else "recorded nothing"
                what = nothing if part is None else f"has {len(found)} of its {len(mine)} samples"
                return wrong("missing", gang, rank, step, f"{what}; {_named(about)} is missing", about)
            twice = got in in_step
            what = "of which another row of the step has it too" if twice else "which is not of this step"
            there = f"{_named((names[got[0]] if got[0] < len(names) else str(got[0]), got[1]))}, {what}"
            instead = f" where the order says {_named(about)}" if want else ", one more than its part has"
            return wrong("twice" if twice else "other", gang, rank, step, f"was given {there}{instead}", about)
    raise AssertionError("the rows of the step are right")


def _check_contents(gang: Gang, first: int, wanted: Draws, good: Sequence[NDArray[Any]], tokens: _Tokens, order: DataOrder) -> None:
    if not good or (right := tokens.right(wanted, first, gang.fields)) is None:
        return
    found = np.concatenate(good)["content"]
    for row in np.flatnonzero(found != right)[:1].tolist():
        step, at = divmod(row, order.global_batch)
        rank = next(one for one in range(gang.world_size) if at < order.global_batch * (one + 1) // gang.world_size)
        about = (order.names[int(wanted.source[row])], int(wanted.sample[row]))
        says = (
            f"was given other contents as {_named(about)} (XXH3 {int(found[row]):016x}) than the data has ({int(right[row]):016x})"
        )
        raise wrong("content", gang, rank, first + step, says, about)


class _Counted:
    """Of each source's epochs, which samples came."""

    def __init__(self, order: DataOrder) -> None:
        self.samples = 0
        self._order = order
        self._read = [0] * len(order.names)
        self._replaced = [0] * len(order.names)
        self._whole = [0] * len(order.names)
        self._open: dict[tuple[int, int], NDArray[np.bool_]] = {}

    def count(self, plain: Draws, read: Draws) -> None:
        """A damaged sample counts as come when another one was read instead. Raises AssertionError for an order that repeats."""
        self.samples += len(read)
        for source in np.unique(read.source).tolist():
            mine = np.flatnonzero(read.source == source)
            self._read[source] += len(mine)
            self._replaced[source] += int((plain.sample[mine] != read.sample[mine]).sum())
            for epoch in np.unique(read.epoch[mine]).tolist():
                self._come(source, epoch, plain.sample[mine[read.epoch[mine] == epoch]])

    def _come(self, source: int, epoch: int, samples: Indices) -> None:
        seen = self._open.setdefault((source, epoch), np.zeros(int(self._order.sizes[source]), dtype=np.bool_))
        before = int(seen.sum())
        seen[samples] = True
        assert int(seen.sum()) == before + len(samples), "an order gave a sample twice in an epoch"
        if seen.all():
            del self._open[source, epoch]
            self._whole[source] += 1

    def sources(self) -> tuple[SourceRead, ...]:
        rest = [sum(int(seen.sum()) for (source, _), seen in self._open.items() if source == one) for one in range(len(self._read))]
        return tuple(
            SourceRead(name=name, samples=samples, epochs=epochs, rest=left, replaced=replaced)
            for name, samples, epochs, left, replaced in zip(
                self._order.names, self._read, self._whole, rest, self._replaced, strict=True
            )
        )


def _leg(gang: Gang, stretches: Sequence[Stretch]) -> Leg:
    kept = next((one for one in stretches if one.gang is gang), Stretch(gang, 0, 0))
    end = max(gang.steps) + 1 if gang.steps and stretches and gang is stretches[-1].gang else kept.stop  # nobody has gone past it
    again = len([step for step in gang.steps if not kept.first <= step < end])
    within = max((log.superseded for log in gang.logs.values()), default=0)
    first, last = (kept.first + 1, kept.stop) if kept.stop > kept.first else (0, 0)
    return Leg(
        attempt=gang.attempt, generation=gang.generation, world_size=gang.world_size, superseded=again + within,
        first_step=first, last_step=last,
    )  # fmt: skip


def _total(stretches: Iterable[Stretch], order: DataOrder) -> int:
    return sum(one.stop - one.first for one in stretches) * order.global_batch


def _named(about: tuple[str, int]) -> str:
    return f"sample {about[1]} of {about[0]}" if about[0] else "none"


def _says(counted: _Counted, fault: DeliveryFault | None) -> str:
    if fault is not None:
        return fault.says
    if not counted.samples:
        return "nothing was delivered to all ranks yet"
    parts = []
    for one in counted.sources():
        whole = (
            f"{one.epochs} whole epoch{'s' if one.epochs != 1 else ''} of {one.name}, each sample exactly once"
            if one.epochs
            else ""
        )
        rest = f"{one.rest} samples of the next, none twice" if one.epochs else f"{one.rest} samples of {one.name}, none twice"
        read = ", and ".join(part for part in (whole, rest if one.rest else "") if part)
        parts.append(f"{read}; {one.replaced} reads of damaged samples were replaced as recorded" if one.replaced else read)
    return f"{counted.samples} samples as the order says: {'; '.join(part for part in parts if part)}"
