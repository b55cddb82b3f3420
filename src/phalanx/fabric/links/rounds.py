"""Who is measured with whom, when: each rank in one pair at a time, so that nobody's links carry two."""

from collections.abc import Iterable, Sequence


def rounds(count: int, most: int) -> list[list[tuple[int, int]]]:
    """Pairs among `count` players, round after round, each player at most once in a round.

    All pairs where `most` rounds are enough for them: the circle method of tournaments. Else `most` of those rounds, spread, in
    which each player meets as many others; all pairs of thousands of nodes would take hours.
    """
    seats: list[int | None] = list(range(count))
    if count % 2:
        seats.append(None)
    whole = [_round(seats, turn) for turn in range(len(seats) - 1)] if count > 1 else []
    if len(whole) <= most:
        return whole
    return [whole[turn * len(whole) // most] for turn in range(most)]


def _round(seats: Sequence[int | None], turn: int) -> list[tuple[int, int]]:
    fixed, others = seats[0], seats[1:]
    circle = [fixed, *others[turn:], *others[:turn]]
    half = len(circle) // 2
    ends = zip(circle[:half], reversed(circle[half:]), strict=True)
    return [(min(a, b), max(a, b)) for a, b in ends if a is not None and b is not None]


def packed(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """These pairs in few rounds, each player at most once in a round."""
    found: list[list[tuple[int, int]]] = []
    for a, b in sorted(set(pairs)):
        for one in found:
            if all(a not in pair and b not in pair for pair in one):
                one.append((a, b))
                break
        else:
            found.append([(a, b)])
    return found
