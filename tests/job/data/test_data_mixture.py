"""Mixtures: each source's share exact in every cycle and close in every stretch, epochs whole, changes at their step. Case ids:
shared/CASES.md."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data.blocks import BlockShuffle, FullShuffle, InOrder, Shuffle
from phalanx.job.data.draws import Draws, batch, blocks_needed, positions
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Change, Mixture, Source
from phalanx.job.data.order import rank_slice
from phalanx.job.data.shares import OFF_MAX, SUM_MAX, Shares, whole_weights
from tests.drawn import examples

WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=9)
WIDE = st.lists(st.integers(0, 30).map(lambda power: max(1, 2**power // 3)), min_size=1, max_size=20).filter(
    lambda w: sum(w) < SUM_MAX
)
SHUFFLES: list[Shuffle] = [FullShuffle(), InOrder(), BlockShuffle(3, 2), BlockShuffle(5, 100)]


@given(weights=WEIGHTS, cycles=st.integers(1, 3))
def test_shares_are_exact_in_every_cycle(weights: list[int], cycles: int) -> None:
    shares = Shares(weights)
    takers, before = shares.takers(np.arange(cycles * shares.total))
    for cycle in takers.reshape(cycles, -1):
        assert np.bincount(cycle, minlength=len(weights)).tolist() == weights
    for number in range(len(weights)):
        assert before[takers == number].tolist() == list(range(cycles * weights[number])), (
            "each turn of a source comes once, in order"
        )


@given(weights=WIDE, start=st.integers(0, 2**61), length=st.integers(1, 300))
def test_d12_any_stretch_has_each_sources_share_but_for_a_few(weights: list[int], start: int, length: int) -> None:
    shares = Shares(weights)
    for turns in (start, start + length):
        off = [
            abs(count - Fraction(turns * weight, shares.total)) for count, weight in zip(shares.counts(turns), weights, strict=True)
        ]
        assert max(off) <= OFF_MAX
    takers, before = shares.takers(np.arange(start, start + length))
    counts = np.array(shares.counts(start + length)) - np.array(shares.counts(start))
    assert np.bincount(takers, minlength=len(weights)).tolist() == counts.tolist()
    assert [int(before[takers == number][0]) for number in set(takers.tolist())] == [
        shares.counts(start)[n] for n in set(takers.tolist())
    ]


@settings(max_examples=examples(40))
@given(weights=st.lists(st.fractions(Fraction(1, 10**12), 10**6), min_size=1, max_size=20))
def test_whole_weights_keep_proportions(weights: list[Fraction]) -> None:
    whole = whole_weights(weights)
    assert min(whole) >= 1
    assert sum(whole) < SUM_MAX
    for number, weight in zip(whole, weights, strict=True):
        assert abs(Fraction(number, sum(whole)) - weight / sum(weights)) < Fraction(len(weights) + 1, 2**29)
    assert whole_weights([Fraction("0.3"), Fraction("0.5"), Fraction("0.2")]) == [3, 5, 2]


@st.composite
def orders(draw: st.DrawFn) -> MixedOrder:
    """One to five small sources, up to two changes, any shuffles."""
    names = [f"source-{number}" for number in range(draw(st.integers(1, 5)))]
    tenths = st.lists(st.integers(0, 20), min_size=len(names), max_size=len(names)).filter(any)
    first = draw(tenths)
    steps = sorted(draw(st.sets(st.integers(1, 12), max_size=2)))
    changes = [Change(from_step=step, weights={n: w / 10 for n, w in zip(names, draw(tenths), strict=True) if w}) for step in steps]
    sources = [
        Source(name, weight=weight / 10, shuffle=draw(st.sampled_from(SHUFFLES))) for name, weight in zip(names, first, strict=True)
    ]
    sizes = {name: draw(st.integers(1, 30)) for name in names}
    return MixedOrder(
        Mixture(sources, changes=changes), sizes, seed=draw(st.integers(0, 99)), global_batch=draw(st.integers(1, 20))
    )


def rows(draws: Draws) -> list[tuple[int, int, int]]:
    return list(zip(draws.source.tolist(), draws.epoch.tolist(), draws.sample.tolist(), strict=True))


@settings(max_examples=examples(50))
@given(mixed=orders())
def test_t09_d11_epochs_of_each_source_are_whole_through_every_change(mixed: MixedOrder) -> None:
    steps = 20
    run = mixed.draws(positions(mixed, 0, steps))
    assert len(set(rows(run))) == len(run), "no sample twice in an epoch of its source"
    for number, (name, size) in enumerate(zip(mixed.names, mixed.sizes.tolist(), strict=True)):
        count = int((run.source == number).sum())
        assert mixed.drawn(steps)[name] == count
        epochs = np.bincount(run.epoch[run.source == number]).tolist()
        assert epochs == [size] * (count // size) + [count % size] * (count % size > 0), "all whole but the last"


@settings(max_examples=examples(40))
@given(mixed=orders(), step=st.integers(0, 19), world_size=st.integers(1, 9))
def test_t01_d01_a_step_is_the_same_for_any_world_size_and_however_one_comes_to_it(
    mixed: MixedOrder, step: int, world_size: int
) -> None:
    run = rows(mixed.draws(positions(mixed, 0, 20)))
    whole = rows(batch(mixed, step))
    assert whole == run[step * mixed.global_batch : (step + 1) * mixed.global_batch]
    parts = [mixed.draws(rank_slice(positions(mixed, step), rank, world_size)) for rank in range(world_size)]
    assert [row for part in parts for row in rows(part)] == whole


@settings(max_examples=examples(50))
@given(mixed=orders(), start=st.integers(0, 30), length=st.integers(1, 30))
def test_d12_batches_have_the_shares_of_their_step(mixed: MixedOrder, start: int, length: int) -> None:
    changes = [change.from_step for change in mixed.mixture.changes]
    run = mixed.draws(positions(mixed, start, length))
    share = np.sum(
        [[float(given) * mixed.global_batch for given in mixed.shares(step).values()] for step in range(start, start + length)],
        axis=0,
    )
    counts = np.bincount(run.source, minlength=len(share))
    assert np.abs(counts - share).max() <= 2 * OFF_MAX * (1 + len(changes)) + 1e-6
    for number, name in enumerate(mixed.names):
        if not any(mixed.shares(step)[name] for step in range(start, start + length)):
            assert counts[number] == 0


@settings(max_examples=examples(40))
@given(mixed=orders(), start=st.integers(0, 10), length=st.integers(0, 8), size=st.integers(1, 9))
def test_the_blocks_that_are_needed_are_known_ahead(mixed: MixedOrder, start: int, length: int, size: int) -> None:
    draws = mixed.draws(positions(mixed, start, length))
    source, block, first = blocks_needed(draws, [size + number for number in range(len(mixed.names))])
    wanted: dict[tuple[int, int], int] = {}
    for row, (number, _, sample) in enumerate(rows(draws)):
        wanted.setdefault((number, sample // (size + number)), row)
    assert list(zip(source.tolist(), block.tolist(), strict=True)) == list(wanted)
    assert first.tolist() == list(wanted.values())


def test_within_a_batch_sources_come_at_any_place() -> None:
    mixed = MixedOrder(Mixture([Source("a", weight=1), Source("b", weight=1)]), {"a": 1000, "b": 1000}, seed=1, global_batch=8)
    run = mixed.draws(positions(mixed, 0, 400)).source.reshape(400, 8)
    assert run.sum(axis=1).tolist() == [4] * 400, "exact in every batch"
    assert run.mean(axis=0).min() > 0.4, "and no rank reads mostly of one"
    assert run.mean(axis=0).max() < 0.6


def test_epochs_and_temperature_are_other_ways_to_say_weights() -> None:
    sizes = {"code": 120, "books": 40, "web": 1000}
    by_epochs = Mixture([Source("code", epochs=1.5), Source("books", epochs=4), Source("web", epochs=0.1)])
    mixed = MixedOrder(by_epochs, sizes, seed=0, global_batch=44)
    assert mixed.drawn(10) == {"code": 180, "books": 160, "web": 100}, "after one and a half, four and a tenth epochs: 440 samples"
    by_size = MixedOrder(Mixture([Source(name) for name in sizes]), sizes, seed=0, global_batch=4)
    assert by_size.shares(0) == {"code": Fraction(120, 1160), "books": Fraction(40, 1160), "web": Fraction(1000, 1160)}
    even = MixedOrder(Mixture([Source(name) for name in sizes], temperature=2), sizes, seed=0, global_batch=4)
    roots = np.sqrt(np.array(list(sizes.values())))
    assert np.allclose([float(share) for share in even.shares(0).values()], roots / roots.sum(), atol=1e-8)


def test_a_later_change_or_source_leaves_the_past_as_it_was() -> None:
    sizes = {"a": 50, "b": 70}
    before = MixedOrder(Mixture([Source("a", weight=0.3), Source("b", weight=0.7)]), sizes, seed=4, global_batch=10)
    change = Change(from_step=6, weights={"a": 0.2, "c": 0.8})
    sources = [Source("c", weight=0), Source("a", weight=0.3), Source("b", weight=0.7)]
    after = MixedOrder(Mixture(sources, changes=[change]), {**sizes, "c": 9}, seed=4, global_batch=10)

    def named(mixed: MixedOrder, step: int) -> list[tuple[str, int, int]]:
        return [(mixed.names[source], epoch, sample) for source, epoch, sample in rows(batch(mixed, step))]

    assert [named(before, step) for step in range(6)] == [named(after, step) for step in range(6)]
    assert named(before, 6) != named(after, 6)
    assert before.fingerprint(60) == after.fingerprint(60)
    assert before.fingerprint(70) != after.fingerprint(70)
    assert after.sources_read(60) == ("a", "b")


def test_orders_of_mixtures_are_fixed_for_ever() -> None:
    """Golden: a change here would silently change what every resumed run reads, and refuse its cursors."""
    mixture = Mixture(
        [Source("code", weight=0.3), Source("books", weight=0.7, shuffle=BlockShuffle(4, 2))],
        changes=[Change(from_step=1, weights={"code": 1})],
    )
    mixed = MixedOrder(mixture, {"code": 10, "books": 20}, seed=7, global_batch=5)
    assert rows(batch(mixed, 0)) + rows(batch(mixed, 1)) == GOLDEN
    assert mixed.fingerprint(10) == GOLDEN_FINGERPRINT


GOLDEN = [(0, 0, 9), (0, 0, 0), (1, 0, 8), (1, 0, 0), (1, 0, 9), (0, 0, 2), (0, 0, 3), (0, 0, 4), (0, 0, 8), (0, 0, 5)]
GOLDEN_FINGERPRINT = "559ac59936bab1c972a26f584efb415b015d4d5724c5b1d726138a16c0e8dd75"


def test_a_mixture_travels_as_json() -> None:
    mixture = Mixture(
        [Source("a", weight=0.3, shuffle=BlockShuffle(8, 2)), Source("b", weight=1)],
        changes=[Change(from_step=3, weights={"b": 1})],
    )
    again = wire.loads(Mixture, wire.dumps(Mixture, mixture))
    with pytest.raises(ValueError, match="kind"):
        wire.loads(Mixture, '{"sources": [{"name": "a", "shuffle": {"block_samples": 4}}]}')
    with pytest.raises(DataError, match="name 1 to"):
        wire.loads(Mixture, '{"sources": []}')
    sizes = {"a": 5, "b": 6}
    orders_ = [MixedOrder(each, sizes, seed=0, global_batch=4) for each in (mixture, again)]
    assert orders_[0].fingerprint(100) == orders_[1].fingerprint(100)


A, B = Source("a", weight=1), Source("b", weight=1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mixture([]), "name 1 to"),
        (lambda: Mixture([A, A]), "name of its own"),
        (lambda: Mixture([A, Source("c")]), "give all sources a weight"),
        (lambda: Mixture([A, Source("c", epochs=1)]), "give all sources a weight"),
        (lambda: Mixture([Source("a", weight=0)]), "no source has a share"),
        (lambda: Mixture([A], temperature=2), "sources by their sizes"),
        (lambda: Mixture([Source("a")], temperature=0), "above 0"),
        (lambda: Source(""), "name"),
        (lambda: Source("a", weight=1, epochs=1), "one of them"),
        (lambda: Source("a", weight=-1), "weight of a"),
        (lambda: Source("a", weight=float("nan")), "weight of a"),
        (lambda: Source("a", epochs=float("inf")), "epochs of a"),
        (lambda: Mixture([A], changes=[Change(from_step=0, weights={"a": 1})]), "in the order of their steps"),
        (lambda: Mixture([A, B], changes=[Change(from_step=5, weights={"a": 1})] * 2), "in the order"),
        (lambda: Mixture([A, B], changes=[Change(from_step=5, weights={"d": 1})]), "no source of this mixture"),
        (lambda: Mixture([A, B], changes=[Change(from_step=5, weights={"a": 0})]), "no source has a share"),
        (lambda: MixedOrder(Mixture([A]), {}, seed=0, global_batch=1), "has no data"),
        (lambda: MixedOrder(Mixture([A]), {"a": 0}, seed=0, global_batch=1), "samples of a"),
        (lambda: MixedOrder(Mixture([A]), {"a": 1, "z": 1}, seed=0, global_batch=1), "no source of this mixture"),
        (lambda: MixedOrder(Mixture([A]), {"a": 1}, seed=0, global_batch=0), "global_batch"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_name(make: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        make()  # type: ignore[operator]
