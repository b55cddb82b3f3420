"""Causal attention as blocks without a mask: consecutive queries, consecutive keys, and each sees all or all up to its own.

A document lies side by side in a row, so it does among the tokens of each rank too: what a token may see, its own document up to
itself, is blocks also where a row is several documents. Nothing is computed that a mask would throw away, and no query of a
block is without a key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from phalanx.fabric.context.cut import ContextCut, Ints

Run = tuple[int, int]
"""The first, and one past the last."""


@dataclass(frozen=True, slots=True)
class Block:
    """row: of the batch; None: the same in all rows. queries: of the rank's tokens; keys: of the source's, each in the order in
    which they are held. causal: query i of the block sees its keys up to the i-th; else each query sees all keys."""

    row: int | None
    queries: Run
    keys: Run
    causal: bool

    @property
    def pairs(self) -> int:
        """Of a query and a key that it sees, for one head and row: what attention's work is proportional to."""
        num_queries, num_keys = self.queries[1] - self.queries[0], self.keys[1] - self.keys[0]
        return num_queries * (num_queries + 1) // 2 if self.causal else num_queries * num_keys


@dataclass(frozen=True, slots=True)
class Round:
    """What a rank computes with the keys and values of one rank of the ring."""

    source: int
    blocks: tuple[Block, ...]


def bounds_of(segments_bs: ArrayLike) -> tuple[Ints, ...]:
    """Where the documents of each row begin, and where the row ends; given the number of each token's document in its row.
    One entry for all rows where it is the same in all."""
    segments = np.asarray(segments_bs)
    rows = [np.concatenate(([0], np.flatnonzero(row[1:] != row[:-1]) + 1, [row.size])) for row in segments]
    return tuple(rows[:1] if all(np.array_equal(row, rows[0]) for row in rows[1:]) else rows)


def whole_rows(bounds: Sequence[Ints]) -> tuple[Block, ...]:
    """Of a rank that has all tokens."""
    return tuple(
        Block(row, run, run, causal=True)
        for row, ends in _by_row(bounds)
        for run in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    )


def rounds(cut: ContextCut, rank: int, bounds: Sequence[Ints]) -> tuple[Round, ...]:
    """Of a rank of a ring, in the order in which keys come to it: its own, those of the rank before it, and so on."""
    return tuple(_round(cut, rank, (rank - step) % cut.ranks, bounds) for step in range(cut.ranks))


def _round(cut: ContextCut, rank: int, source: int, bounds: Sequence[Ints]) -> Round:
    """Chunks of a lower rank enclose those of a higher one: its early chunk comes before both of them, its late one after both."""
    half = cut.local // 2
    queries_from = half if source > rank else 0
    keys_to = half if source < rank else cut.local
    blocks = []
    for row, ends in _by_row(bounds):
        queries = cut.before(rank, ends).clip(min=queries_from)
        keys = cut.before(source, ends).clip(max=keys_to)
        blocks += [Block(row, *runs, causal=source == rank) for runs in _in_both(queries, keys)]
    return Round(source, tuple(blocks))


def _by_row(bounds: Sequence[Ints]) -> Iterator[tuple[int | None, Ints]]:
    yield from enumerate(bounds) if len(bounds) > 1 else ((None, ends) for ends in bounds)


def _in_both(queries: Ints, keys: Ints) -> list[tuple[Run, Run]]:
    """Of each document with tokens on either side, given where it begins on each, and ends where the next begins."""
    starts, stops = np.stack((queries[:-1], keys[:-1])), np.stack((queries[1:], keys[1:]))
    shared = (stops > starts).all(axis=0)
    runs = np.stack((starts, stops), axis=-1)[:, shared].tolist()
    return [((q[0], q[1]), (k[0], k[1])) for q, k in zip(*runs, strict=True)]
