"""Which of several ranks, that should have the same number, has another. Pure; every rank sees the same and answers the same."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Odd:
    """ranks: those that are wrong when `certain`; else all among which somebody is."""

    ranks: tuple[int, ...]
    certain: bool


def odd_ones(values: Mapping[int, Hashable]) -> Odd | None:
    """By rank; None when all are equal. More than half with one value are right; without such a majority nobody is known to be."""
    (value, count), *others = Counter(values.values()).most_common()
    if not others:
        return None
    if 2 * count > len(values):
        return Odd(tuple(sorted(rank for rank, own in values.items() if own != value)), True)
    return Odd(tuple(sorted(values)), False)


def after_second_look(odd: Odd, first: Mapping[int, Hashable], second: Mapping[int, Hashable]) -> Odd:
    """Those of the doubtful ranks that do not get what they got before, doing the same again: where some do and some do not, they
    are the wrong ones."""
    if odd.certain:
        return odd
    moved = tuple(rank for rank in odd.ranks if first[rank] != second[rank])
    return Odd(moved, True) if 0 < len(moved) < len(odd.ranks) else odd
