"""Damaged blocks are set aside as of a step: what came before is unchanged, nobody reads them after, ranks and resumes agree."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data.bad_block import Block
from phalanx.job.data.blocks import BlockShuffle, FullShuffle, InOrder
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import DataOrder, PlainOrder, batch, positions
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Change, Mixture, Source
from phalanx.job.data.order import rank_slice
from phalanx.job.data.quarantine import Quarantined, SetAside, set_aside_of
from tests.drawn import examples

STEPS = 14
PLAIN = PlainOrder(num_samples=100, seed=1, global_batch=8)
BLOCK = Block(data="d", shard="s" * 64, block=3)

shuffles = st.one_of(
    st.just(FullShuffle()),
    st.just(InOrder()),
    st.builds(BlockShuffle, block_samples=st.integers(1, 9), window_blocks=st.integers(1, 4)),
)


@st.composite
def orders(draw: st.DrawFn) -> DataOrder:
    seed, global_batch = draw(st.integers(0, 2**63)), draw(st.integers(1, 12))
    if draw(st.booleans()):
        return PlainOrder(num_samples=draw(st.integers(4, 90)), seed=seed, global_batch=global_batch, shuffle=draw(shuffles))
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    sources = [Source(name, weight=draw(st.integers(1, 5)), shuffle=draw(shuffles)) for name in names]
    changes = [Change(from_step=draw(st.integers(1, STEPS)), weights={names[0]: 1, names[-1]: 2})] if draw(st.booleans()) else []
    sizes = {name: draw(st.integers(4, 60)) for name in names}
    return MixedOrder(Mixture(sources, changes=changes), sizes, seed=seed, global_batch=global_batch)


@dataclass(frozen=True)
class Found:
    """A block that turns out to be damaged before a step."""

    step: int
    block: Block
    touching: dict[str, list[tuple[int, int]]]


@st.composite
def damage(draw: st.DrawFn, order: DataOrder) -> list[Found]:
    """At most a third of each source in one find, so that after all of them something is left."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        source = draw(st.integers(0, len(order.names) - 1))
        size = int(order.sizes[source])
        begin = draw(st.integers(0, size - 1))
        end = min(size, begin + draw(st.integers(1, max(1, size // 4))))
        block = Block(data="d", shard=f"{number:064d}", block=number)
        found.append(Found(draw(st.integers(0, STEPS - 1)), block, {order.names[source]: [(begin, end)]}))
    return sorted(found, key=lambda one: one.step)


Row = tuple[int, int, int]


def read(order: DataOrder, steps: range, world_size: int) -> list[list[Row]]:
    """The batches of these steps as the ranks read them, each asking for its own part of all of them."""
    batches: list[list[Row]] = [[] for _ in steps]
    for rank in range(world_size):
        parts = [rank_slice(positions(order, step), rank, world_size) for step in steps]
        mine = order.draws(np.concatenate([np.zeros(0, dtype=np.int64), *parts]))
        rows = iter(zip(mine.source.tolist(), mine.epoch.tolist(), mine.sample.tolist(), strict=True))
        for batch_, part in zip(batches, parts, strict=True):
            batch_ += [next(rows) for _ in part]
    return batches


def is_bad(found: list[Found], order: DataOrder, step: int, row: Row) -> bool:
    stretches = [each for one in found if one.step <= step for each in one.touching.get(order.names[row[0]], [])]
    return any(begin <= row[2] < end for begin, end in stretches)


@settings(max_examples=examples(35), deadline=None)
@given(data=st.data(), base=orders())
def test_all_ranks_and_resumes_read_the_same_and_nothing_that_is_damaged(data: st.DataObject, base: DataOrder) -> None:
    """The run goes on through finds, and after each of them, and here and there, through a resume by JSON onto another gang."""
    found = data.draw(damage(base))
    cuts = sorted({0, STEPS, *(one.step for one in found), *data.draw(st.lists(st.integers(1, STEPS), max_size=2))})
    manifests = dict.fromkeys(base.names, "m")
    order: DataOrder = base
    plain = read(base, range(STEPS), 1)
    for start, stop in pairwise(cuts):
        cursor = Cursor.from_json(Cursor.after(start, order, manifests).to_json())
        order = cursor.over(base)
        assert cursor.next_step(order, manifests) == start
        for one in found:
            if one.step == start:
                order = Quarantined(order, set_aside_of(order), 0.9).also({one.block: one.touching}, start)
        for step, rows in enumerate(read(order, range(start, stop), data.draw(st.integers(1, 5))), start):
            for row, was in zip(rows, plain[step], strict=True):
                assert not is_bad(found, base, step, row)
                assert row[:2] == was[:2] and 0 <= row[2] < int(base.sizes[row[0]]), "a substitute is of the same source and epoch"
                assert row == was or is_bad(found, base, step, was), "what is whole stays where it was"
    first = min((one.step for one in found), default=STEPS)
    assert read(order, range(first), 3) == plain[:first], "with all that was found, the steps before are what they were"


@settings(max_examples=examples(40))
@given(num=st.integers(20, 300), block=st.integers(1, 9), window=st.integers(2, 6), seed=st.integers(0, 99))
def test_a_substitute_by_blocks_comes_from_the_window_that_is_read_anyway(num: int, block: int, window: int, seed: int) -> None:
    shuffle = BlockShuffle(block, window)
    order = PlainOrder(num_samples=num, seed=seed, global_batch=num, shuffle=shuffle)
    bad = num // 2
    held = Quarantined(order, [SetAside(source="data", shard="s", block=0, samples=((bad, bad + 1),), since=0)], 0.5)
    before, after = batch(order, 0).sample, batch(held, 0).sample
    row = int(np.flatnonzero(before == bad)[0])
    other = shuffle.places(seed, 0, after[[row]], num)
    windows = shuffle.windows(seed, 0, np.array([row, int(other[0])]), num)
    last = shuffle.num_windows(num) - 1  # which may hold nothing but the damaged one
    assert windows[0] == windows[1] or windows[0] == last


def test_a_window_that_is_wholly_damaged_is_replaced_from_the_rest_of_the_epoch() -> None:
    order = PlainOrder(num_samples=100, seed=5, global_batch=100, shuffle=BlockShuffle(10, 1))
    held = Quarantined(order, [SetAside(source="data", shard="s", block=0, samples=((30, 60),), since=0)], 0.5)
    for step in range(5):
        samples = batch(held, step).sample
        assert not ((samples >= 30) & (samples < 60)).any()


@pytest.mark.parametrize("alone", [0, 57, 99])
def test_one_whole_sample_is_enough(alone: int) -> None:
    stretches = tuple(each for each in ((0, alone), (alone + 1, 100)) if each[0] < each[1])
    held = Quarantined(PLAIN, [SetAside(source="data", shard="s", block=0, samples=stretches, since=0)], 0.99)
    assert set(batch(held, 3).sample.tolist()) == {alone}


def test_substitutes_are_spread_over_the_samples_that_are_whole() -> None:
    order = PlainOrder(num_samples=1000, seed=5, global_batch=1000)
    held = Quarantined(order, [SetAside(source="data", shard="s", block=0, samples=((0, 200),), since=0)], 0.5)
    times = np.bincount(batch(held, 0).sample, minlength=1000)
    assert times[:200].sum() == 0 and times.max() <= 5
    other = Quarantined(order, [SetAside(source="data", shard="s", block=0, samples=((0, 200),), since=0)], 0.5)
    assert (batch(other, 0).sample == batch(held, 0).sample).all()
    assert (batch(other, 1).sample != batch(held, 0).sample).any()


def test_what_is_set_aside_already_stays_as_it_is() -> None:
    held = Quarantined(PLAIN, (), 0.5).also({BLOCK: {"data": [(3, 9)]}}, 4)
    again = held.also({BLOCK: {"data": [(3, 9)]}, replace(BLOCK, block=7): {"data": [(8, 12)], "other": []}}, 9)
    assert [(one.block, one.since) for one in again.set_aside] == [(3, 32), (7, 72)]
    assert Quarantined(again, again.set_aside, 0.5).order is PLAIN


def test_too_much_of_a_source_stops_the_run() -> None:
    held = Quarantined(PLAIN, (), 0.05).also({BLOCK: {"data": [(3, 8)]}}, 4)
    with pytest.raises(
        DataError,
        match=r"'6 %'.*6 of 100 samples.*5 % may.*data verify.*raise `bad_data_max` .*, or `share_max` of `BadData` .* to 0.07",
    ):
        held.also({replace(BLOCK, block=4): {"data": [(7, 9)]}}, 5)
    Quarantined(PLAIN, (), 0.07).also({BLOCK: {"data": [(3, 9)]}}, 4)
    with pytest.raises(DataError, match="not one of its samples is whole, so nothing could stand in"):
        held.also({replace(BLOCK, block=4): {"data": [(0, 100)]}}, 5)
    with pytest.raises(DataError, match=r"data verify DIR` names them\)$"):
        held.also({replace(BLOCK, block=4): {"data": [(0, 99)]}}, 5)


ASIDE = SetAside(source="data", shard="s" * 64, block=3, samples=((3, 9),), since=8)


@pytest.mark.parametrize(
    ("aside", "says"),
    [
        (replace(ASIDE, source="c"), "no such source; it has data"),
        (replace(ASIDE, since=9), "a step has 8; keep the global batch"),
        (replace(ASIDE, since=-8), "keep the global batch"),
        (replace(ASIDE, samples=((90, 101),)), "data has 100 samples"),
        (replace(ASIDE, samples=()), "data has 100 samples"),
    ],
)
def test_a_record_of_another_order_is_refused(aside: SetAside, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Quarantined(PLAIN, [aside], 0.5)


def test_a_cursor_without_quarantine_is_what_it_was() -> None:
    cursor = Cursor.after(5, PLAIN, {"data": "d"})
    assert cursor.format == 1 and cursor == Cursor.after(5, Quarantined(PLAIN, ()), {"data": "d"})
    assert cursor.over(PLAIN) is PLAIN


def test_cursors_with_a_quarantine_can_be_read_for_ever() -> None:
    """Golden: what a checkpoint of this version holds. Readers of format 1 refuse it: they would read damaged blocks."""
    text = (
        '{"delivered":40,"data":{"data":"d"},"order":"FINGERPRINT","quarantine":[{"source":"data","shard":"SHARD","block":3,'
        '"samples":[[3,9]],"since":8}],"format":2}'
    )
    held = Quarantined(PLAIN, [replace(ASIDE, shard="SHARD")], 0.5)
    assert replace(Cursor.after(5, held, {"data": "d"}), order="FINGERPRINT") == Cursor.from_json(text)
    assert held.fingerprint(40) == GOLDEN and held.fingerprint(8) == PLAIN.fingerprint(8)
    assert batch(held, 3).sample.tolist() == [76, 49, 47, 41, 71, 10, 42, 70], "7, 3 and 4 are damaged"


GOLDEN = "61c29e4b8e30966baa78796d66e8c59a227f991d05c043c78eed622a6b20c018"


def test_a_cursor_is_refused_under_an_order_that_forgot_its_quarantine() -> None:
    held = Quarantined(PLAIN, [ASIDE], 0.5)
    for step in (0, 1, 5):  # also before the quarantine begins to hold
        cursor = Cursor.after(step, held, {"data": "d"})
        with pytest.raises(DataError, match=r"quarantine of the order.*go on with `cursor\.over"):
            cursor.next_step(PLAIN, {"data": "d"})
    with pytest.raises(DataError, match="order of the data"):
        Cursor.after(5, PLAIN, {"data": "d"}).next_step(held, {"data": "d"})
    assert Cursor.after(1, PLAIN, {"data": "d"}).next_step(held, {"data": "d"}) == 1, "which is of later steps alone"
