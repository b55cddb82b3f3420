"""Which of several takes each turn, so that each gets its exact share at every moment: O(log n) a turn, nothing stored.

Two share turns as the rounded multiples of a fraction fall (Beatty's sequences): of the first n turns one takes n * a / t, rounded,
which is at most half a turn off and exact after every t. More than two share by a binary tree of such pairs: a node's turns are
numbered among themselves and divided further below. The tree is Huffman's (Proc. IRE 40(9), 1952), so that heavy ones lie near the
root. What a node has too much reaches a leaf only by the leaf's share in it, and in a Huffman tree the shares of two levels in line
multiply to at most 1/2 (the larger of two children weighs no more than their parent's sibling). So nobody is ever more than
1/2 * (1 + 1 + 1/2 + 1/2 + 1/4 + ...) = 2 turns away from its share.
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np

from phalanx.job.data.order import Indices

OFF_MAX: Final = 2
"""Turns that anyone has more or less than its share of the first n, for any n."""

SUM_MAX: Final = 2**31
"""Products of two of them fit in 64 bits."""

_SCALED_SUM: Final = 2**30


class Shares:
    """Turns divided by whole-number weights, each above 0; after every `total` turns each has had exactly its weight."""

    def __init__(self, weights: Sequence[int]) -> None:
        if not weights or min(weights) < 1 or sum(weights) >= SUM_MAX:
            raise ValueError(f"weights need to be above 0 and sum below {SUM_MAX}: {weights}")
        self.weights = tuple(weights)
        self.total = sum(weights)
        self._root, left, right, first, whole = _tree(weights)
        self._children = np.array([left, right], dtype=np.int64).reshape(2, -1)
        self._first = np.array(first, dtype=np.int64)
        self._whole = np.array(whole, dtype=np.int64)
        self._parents: dict[int, tuple[int, bool]] = {}

    def takers(self, turns: Indices) -> tuple[Indices, Indices]:
        """Who takes each of these turns (its number in `weights`), and how many turns it had before."""
        nodes = np.full(turns.shape, self._root, dtype=np.int64)
        numbers = turns.astype(np.int64)
        open_ = np.arange(turns.size if self._root >= len(self.weights) else 0)
        while open_.size:
            at, number = nodes[open_] - len(self.weights), numbers[open_]
            before = self._to_left(at, number)
            right = self._to_left(at, number + 1) == before
            numbers[open_] = np.where(right, number - before, before)
            nodes[open_] = self._children[right.astype(np.int64), at]
            open_ = open_[nodes[open_] >= len(self.weights)]
        return nodes, numbers

    def counts(self, turns: int) -> list[int]:
        """How many of the first `turns` each has taken."""
        counts = [0] * len(self.weights)
        line = [(self._root, turns)]
        while line:
            node, number = line.pop()
            if node < len(self.weights):
                counts[node] = number
                continue
            at = node - len(self.weights)
            left = int(self._to_left(np.array([at]), np.array([number]))[0])
            line += [(int(self._children[0, at]), left), (int(self._children[1, at]), number - left)]
        return counts

    def taken(self, number: int, turns: int) -> int:
        """How many of the first `turns` this one has taken."""
        for at, to_left in self._path(number):
            first, whole = int(self._first[at]), int(self._whole[at])
            left = (turns * first + whole // 2) // whole
            turns = left if to_left else turns - left
        return turns

    def _path(self, number: int) -> list[tuple[int, bool]]:
        """From the root to a leaf: inner nodes, and whether it goes on to the left."""
        if not self._parents:
            for side, children in enumerate(self._children):
                self._parents |= {int(child): (at, side == 0) for at, child in enumerate(children)}
        path: list[tuple[int, bool]] = []
        node = number
        while node != self._root:
            at, to_left = self._parents[node]
            path.append((at, to_left))
            node = at + len(self.weights)
        return path[::-1]

    def _to_left(self, at: Indices, numbers: Indices) -> Indices:
        """Of a node's first turns, how many go to its left: a rounded product, taken apart so that it fits in 64 bits."""
        first, whole = self._first[at], self._whole[at]
        rounds, rest = np.divmod(numbers, whole)
        return rounds * first + (rest * first + whole // 2) // whole


def whole_weights(weights: Sequence[Fraction]) -> list[int]:
    """The smallest whole numbers in the same proportion; where these are too large, the nearest that fit, none of them 0."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    divisor = math.gcd(*whole)
    if sum(whole) // divisor < SUM_MAX:
        return [number // divisor for number in whole]
    return [max(1, round(Fraction(number * _SCALED_SUM, sum(whole)))) for number in whole]


_Tree = tuple[int, list[int], list[int], list[int], list[int]]


def _tree(weights: Sequence[int]) -> _Tree:
    """Root; then of each inner node, numbered after the leaves: left child, right child, weight of the left, of both. Equal weights
    go by number, so that the tree is a function of the weights."""
    heap = [(weight, number) for number, weight in enumerate(weights)]
    heapq.heapify(heap)
    left: list[int] = []
    right: list[int] = []
    first: list[int] = []
    whole: list[int] = []
    while len(heap) > 1:
        (lighter, one), (heavier, other) = heapq.heappop(heap), heapq.heappop(heap)
        left.append(one)
        right.append(other)
        first.append(lighter)
        whole.append(lighter + heavier)
        heapq.heappush(heap, (lighter + heavier, len(weights) + len(left) - 1))
    return heap[0][1], left, right, first, whole
