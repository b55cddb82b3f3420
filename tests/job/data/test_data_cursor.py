"""The cursor: one integer and what it is a position in; another past is refused. Case ids: shared/CASES.md."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data.blocks import BlockShuffle
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import PlainOrder, batch, positions
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Change, Mixture, Source
from phalanx.job.data.order import batch_indices
from tests.drawn import examples

PLAIN = PlainOrder(num_samples=100, seed=1, global_batch=8)
MANIFESTS = {"a": "a" * 64, "b": "b" * 64, "c": "c" * 64}
SIZES = {"a": 40, "b": 50}


def mixed(*changes: Change, seed: int = 0, global_batch: int = 6, **cuts: str) -> MixedOrder:
    sources = [Source("a", weight=1), Source("b", weight=2)]
    return MixedOrder(Mixture(sources, changes=changes), SIZES, seed=seed, global_batch=global_batch, cuts=cuts)


@given(step=st.integers(0, 10**9))
def test_d01_a_cursor_comes_back_from_json_at_its_very_step(step: int) -> None:
    for order in (PLAIN, mixed()):
        manifests = {"data": "d" * 64, **MANIFESTS}
        cursor = Cursor.from_json(Cursor.after(step, order, manifests).to_json())
        assert cursor == Cursor.after(step, order, manifests)
        assert cursor.delivered == step * order.global_batch
        assert cursor.next_step(order, manifests) == step, "the first that was not delivered"


@settings(max_examples=examples(30))
@given(
    seed=st.integers(0, 2**64),
    size=st.integers(1, 300),
    global_batch=st.integers(1, 20),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_t08_d02_legs_with_resumes_between_them_read_what_one_run_reads(
    seed: int, size: int, global_batch: int, cuts: list[int]
) -> None:
    order = PlainOrder(num_samples=size, seed=seed, global_batch=global_batch)
    whole = [batch_indices(seed, step, global_batch, size).tolist() for step in range(30)]
    read: list[list[int]] = []
    saved = Cursor.after(0, order, {"data": "x"}).to_json()
    for end in [*sorted(cuts), 30]:
        start = Cursor.from_json(saved).next_step(order, {"data": "x"})
        read += [batch(order, step).sample.tolist() for step in range(start, end)]
        saved = Cursor.after(end, order, {"data": "x"}).to_json()
    assert read == whole


@given(size=st.integers(1, 300), block=st.integers(1, 20), window=st.integers(1, 5))
def test_a_plain_order_by_blocks_has_whole_epochs(size: int, block: int, window: int) -> None:
    order = PlainOrder(num_samples=size, seed=3, global_batch=size, shuffle=BlockShuffle(block, window))
    run = order.draws(positions(order, 0, 2))
    assert np.sort(run.sample.reshape(2, -1)).tolist() == [list(range(size))] * 2
    assert run.epoch.tolist() == [0] * size + [1] * size


def test_changed_data_is_refused_by_the_name_of_its_source() -> None:
    cursor = Cursor.after(5, mixed(), MANIFESTS)
    with pytest.raises(DataError, match=r"data of b: 'eeee.*is not the data that this run has read \(bbbb"):
        cursor.next_step(mixed(), {**MANIFESTS, "b": "e" * 64})
    with pytest.raises(DataError, match=r"data of b: 'eeee.*': /data/b is not the data .* back there, or start a new job"):
        cursor.next_step(mixed(), {**MANIFESTS, "b": "e" * 64}, {"a": "/data/a", "b": "/data/b"})
    with pytest.raises(DataError, match=r"source: 'b'.*not there any more"):
        cursor.next_step(mixed(), {"a": MANIFESTS["a"]})
    assert cursor.next_step(mixed(), {**MANIFESTS, "c": "e" * 64}) == 5, "which was never read"


@pytest.mark.parametrize(
    "other",
    [
        mixed(seed=1),
        mixed(global_batch=3),
        mixed(b="rows of 5 tokens"),
        mixed(Change(from_step=4, weights={"a": 1})),
        MixedOrder(Mixture([Source("a", weight=1), Source("b", weight=3)]), SIZES, seed=0, global_batch=6),
        MixedOrder(Mixture([Source("a", weight=1), Source("b", weight=2)]), {"a": 40, "b": 51}, seed=0, global_batch=6),
        MixedOrder(Mixture([Source("b", weight=2), Source("a", weight=1)]), SIZES, seed=0, global_batch=6),
        MixedOrder(
            Mixture([Source("a", weight=1), Source("b", weight=2, shuffle=BlockShuffle(4, 4))]), SIZES, seed=0, global_batch=6
        ),
        PlainOrder(num_samples=40, seed=0, global_batch=6, name="a"),
    ],
    ids=["seed", "batch", "cut", "past-change", "weights", "size", "sources", "shuffle", "plain"],
)
def test_another_order_is_refused(other: MixedOrder | PlainOrder) -> None:
    with pytest.raises(DataError, match=r"order of the data.*keep its seed, .* `sequence`"):
        Cursor.after(5, mixed(), MANIFESTS).next_step(other, MANIFESTS)


def test_a_change_declared_for_later_is_accepted() -> None:
    cursor = Cursor.after(5, mixed(), MANIFESTS)
    assert cursor.next_step(mixed(Change(from_step=5, weights={"a": 1}), c="a cut of what is not read yet"), MANIFESTS) == 5
    late = Cursor.after(6, mixed(Change(from_step=5, weights={"a": 1})), MANIFESTS)
    with pytest.raises(DataError, match="order of the data"):
        late.next_step(mixed(), MANIFESTS)


def test_a_batch_that_the_position_is_no_end_of_is_refused_as_such() -> None:
    with pytest.raises(DataError, match=r"global_batch: 7.*keep the global batch"):
        Cursor.after(5, mixed(), MANIFESTS).next_step(mixed(global_batch=7), MANIFESTS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "data cursor"),
        ("{}", "is none"),
        ('{"format": 1, "delivered": "x", "data": {}, "order": ""}', "is none"),
        ('{"format": 1, "delivered": -8, "data": {}, "order": ""}', "delivered: -8"),
        ('{"format": 9, "place": 3}', "newer Phalanx"),
    ],
)
def test_d01_state_that_cannot_be_used_raises(text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Cursor.from_json(text)


def test_cursors_of_today_can_be_read_for_ever() -> None:
    """Golden: what a checkpoint of this version holds."""
    text = '{"delivered":40,"data":{"data":"d"},"order":"FINGERPRINT","format":1}'
    assert replace(Cursor.after(5, PLAIN, {"data": "d"}), order="FINGERPRINT") == Cursor.from_json(text)
    assert PLAIN.fingerprint(40) == GOLDEN


GOLDEN = "cc6562c1da8ffe177d38654ad11e849fe1a2e15deafb3afdf7a97ad94b0c7728"
