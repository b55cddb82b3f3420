"""What leaves a full cache. Pure: a function of what it holds, who uses it, and what will be needed when."""

from collections.abc import Callable, Container, Iterable

Kept = tuple[int, int]
"""The key of a unit, and its bytes."""

Distance = Callable[[int], int | None]
"""Of a unit: in how many steps it is needed first; None where nobody has said."""


def to_evict(
    oldest_first: Iterable[Kept], held: Container[int], distance: Distance, free_bytes: int, beyond: int = -1
) -> list[int] | None:
    """Units whose removal frees `free_bytes`, or None where that cannot be.

    What nobody has a future for goes first, least recently used first, then what is needed last; never what is held, nor what is
    needed within `beyond` steps.
    """
    chosen: list[int] = []
    later: list[tuple[int, int, int]] = []
    for key, size in oldest_first:
        if free_bytes <= 0:
            return chosen
        if key in held:
            continue
        due = distance(key)
        if due is None:
            chosen.append(key)
            free_bytes -= size
        elif due > beyond:
            later.append((-due, key, size))
    for _, key, size in sorted(later):
        if free_bytes <= 0:
            break
        chosen.append(key)
        free_bytes -= size
    return chosen if free_bytes <= 0 else None
