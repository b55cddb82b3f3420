"""Arrays of several lengths, one after the other in one long one, and that cut into pieces of one size. No torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

ALIGN: Final = 64
"""Elements. An array begins at a multiple of it and is cut at multiples of it, which are multiples of what any vector unit takes at
once: of an array that is computed in parts the same elements are computed one by one as of a whole one."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring elements of one array. array: its number. first: of them in the array; at: in the piece."""

    array: int
    first: int
    at: int
    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """first: of its elements, in the long array."""

    first: int
    count: int
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """starts: of each array in the long one, which has `count` elements."""

    starts: tuple[int, ...]
    count: int
    pieces: tuple[Piece, ...]


def plan(sizes: Sequence[int], piece_count: int) -> Plan:
    """sizes: of the arrays. piece_count: elements of all pieces but the last, a multiple of ALIGN."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += _aligned(size)
    spans = [(at, start, size) for at, (start, size) in enumerate(zip(starts, sizes, strict=True)) if size]
    pieces = [Piece(first, min(piece_count, end - first), ()) for first in range(0, end, piece_count)]
    return Plan(tuple(starts), end, tuple(Piece(one.first, one.count, tuple(_in(one, spans))) for one in pieces))


def _in(piece: Piece, spans: Sequence[tuple[int, int, int]]) -> Iterator[Stretch]:
    for array, start, size in spans:
        low, high = max(start, piece.first), min(start + size, piece.first + piece.count)
        if low < high:
            yield Stretch(array, low - start, low - piece.first, high - low)


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
