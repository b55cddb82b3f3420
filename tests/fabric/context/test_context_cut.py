"""How rows are cut over ranks, and which attention each computes: every pair that a token may see, once, as many for each rank."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import SpecError
from phalanx.fabric.context import KINDS, Block, ContextCut, bounds_of, check_heads, fitting_ranks, rounds, whole_rows
from phalanx.fabric.context.cut import Ints
from tests.drawn import examples

CUTS = st.builds(
    lambda kind, ranks, size: ContextCut(kind, size * ranks * 2, ranks),
    st.sampled_from(KINDS), st.integers(1, 6), st.integers(1, 4),
)  # fmt: skip
RINGS = CUTS.filter(lambda cut: cut.kind == "ring")


@st.composite
def documents(draw: st.DrawFn, tokens: int, rows: int) -> Ints:
    """Segments (b, s): each row's documents in order, as packed rows have them, and padding (-1) after some."""
    begins = draw(st.lists(st.lists(st.booleans(), min_size=tokens, max_size=tokens), min_size=rows, max_size=rows))
    segments = np.cumsum(np.array(begins, dtype=np.int64), axis=1)
    for row in range(rows):
        segments[row, tokens - draw(st.integers(0, tokens // 2)) :] = -1
    return segments


@given(CUTS)
def test_each_token_lies_with_one_rank_and_all_have_as_many(cut: ContextCut) -> None:
    cut.check()
    held = [cut.positions(rank) for rank in range(cut.ranks)]
    assert {len(places) for places in held} == {cut.local}
    assert sorted(np.concatenate(held)) == list(range(cut.tokens))
    assert all((np.diff(places) > 0).all() for places in held), "so that a causal mask among them is a triangle"


@given(CUTS)
def test_tokens_before_a_place_are_counted(cut: ContextCut) -> None:
    places = np.arange(cut.tokens + 1)
    for rank in range(cut.ranks):
        assert cut.before(rank, places).tolist() == [int((cut.positions(rank) < place).sum()) for place in places]


def test_a_rank_of_a_ring_has_a_chunk_from_either_end() -> None:
    assert [ContextCut("ring", 16, 4).spans(rank) for rank in (0, 3)] == [((0, 2), (14, 16)), ((6, 8), (8, 10))]
    assert ContextCut("ulysses", 16, 4).spans(3) == ((12, 16),)
    assert ContextCut("ring", 7, 1).spans(0) == ((0, 7),), "alone it has all"


def count(seen: Ints, blocks: Sequence[Block], queries: Ints, keys: Ints) -> None:
    """Adds 1 to each pair that the blocks compute; seen: (b, s, s)."""
    for block in blocks:
        q, k = queries[slice(*block.queries)], keys[slice(*block.keys)]
        computed = np.ones((len(q), len(k)), dtype=np.int64)
        rows = range(len(seen)) if block.row is None else [block.row]
        for row in rows:
            seen[row][np.ix_(q, k)] += np.tril(computed) if block.causal else computed
        assert block.pairs == int((np.tril(computed) if block.causal else computed).sum()) > 0


def wanted(segments: Ints) -> Ints:
    """By the definition: of its own document and not after it."""
    place = np.arange(segments.shape[1])
    same: Ints = (segments[:, :, None] == segments[:, None, :]) & (place[:, None] >= place[None, :])
    return same.astype(np.int64)


@settings(max_examples=examples(80))
@given(st.data(), RINGS, st.integers(1, 3))
def test_all_rounds_of_all_ranks_compute_each_pair_that_a_token_sees_once(data: Any, cut: ContextCut, rows: int) -> None:
    segments = data.draw(documents(cut.tokens, rows))
    bounds, seen = bounds_of(segments), np.zeros((rows, cut.tokens, cut.tokens), dtype=np.int64)
    for rank in range(cut.ranks):
        of_rank = rounds(cut, rank, bounds)
        assert [one.source for one in of_rank] == [(rank - step) % cut.ranks for step in range(cut.ranks)]
        for one in of_rank:
            count(seen, one.blocks, cut.positions(rank), cut.positions(one.source))
    assert (seen == wanted(segments)).all()


@settings(max_examples=examples(40))
@given(st.data(), st.integers(1, 24), st.integers(1, 3))
def test_blocks_of_whole_rows_are_their_documents(data: Any, tokens: int, rows: int) -> None:
    segments = data.draw(documents(tokens, rows))
    seen = np.zeros((rows, tokens, tokens), dtype=np.int64)
    count(seen, whole_rows(bounds_of(segments)), np.arange(tokens), np.arange(tokens))
    assert (seen == wanted(segments)).all()


@given(RINGS)
def test_every_rank_of_a_ring_has_the_same_work_in_every_round(cut: ContextCut) -> None:
    """Of rows of one document; in one block a round, but for the first all of the same size."""
    work = [[sum(block.pairs for block in one.blocks) for one in rounds(cut, rank, row(cut))] for rank in range(cut.ranks)]
    assert all(of_rank == work[0] for of_rank in work)
    assert len(set(work[0][1:])) <= 1
    assert sum(map(sum, work)) == cut.tokens * (cut.tokens + 1) // 2
    assert all(len(one.blocks) == 1 for rank in range(cut.ranks) for one in rounds(cut, rank, row(cut)))


def row(cut: ContextCut) -> tuple[Ints, ...]:
    return bounds_of(np.zeros((3, cut.tokens)))


def test_rows_that_are_alike_are_computed_together() -> None:
    assert [block.row for block in whole_rows(bounds_of([[0, 0, 1], [4, 4, 2]]))] == [None, None]
    assert [block.row for block in whole_rows(bounds_of([[0, 0, 1], [0, 1, 1]]))] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (
            ContextCut("ring", 100, 4),
            "sequence: 100: cp 4 by ring cuts it into 8 equal pieces; write a multiple of 8, such as 96 or 104",
        ),
        (ContextCut("ulysses", 2, 4), "sequence: 2: cp 4 by ulysses cuts it into 4 equal pieces; write a multiple of 4, such as 4"),
        (ContextCut("ring", 0, 2), "sequence: 0: cp 2 by ring cuts it into 4 equal pieces; write a multiple of 4, such as 4"),
        (ContextCut("ring", 8, 0), "cp: 0: write 1 or more"),
        (ContextCut("star", 8, 2), "context kind: 'star': write one of ring, ulysses"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_can(cut: ContextCut, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        cut.check()
    assert str(refused.value) == said


def test_heads_that_ranks_cannot_share_are_refused_with_the_numbers_that_can() -> None:
    assert fitting_ranks("ulysses", 12, 4) == [1, 2, 4, 12]
    assert fitting_ranks("ulysses", 32, 8, 20) == [1, 2, 4, 8, 16]
    assert fitting_ranks("ring", 12, 4, 5) == [1, 2, 3, 4, 5]
    with pytest.raises(
        SpecError, match=r"cp: 6: ulysses shares 12 heads and 4 of keys and values evenly; write one of 1, 2, 4, 12, or"
    ):
        check_heads("ulysses", 12, 4, 6)
    with pytest.raises(SpecError, match="cp: 0: write 1 or more"):
        check_heads("ring", 12, 4, 0)
    check_heads("ring", 12, 4, 6)
    check_heads("ulysses", 12, 4, 12)
