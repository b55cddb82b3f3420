"""What processes will need, each in one small value that it replaces as it goes on."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

Needs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Keys of units in ascending order, and in how many steps each is needed first."""


def packed(due: Mapping[int, int]) -> bytes:
    """Of the steps by key."""
    pairs = np.fromiter((number for pair in sorted(due.items()) for number in pair), dtype="<i8", count=2 * len(due))
    return pairs.tobytes()


def unpacked(data: bytes) -> Needs:
    """The reverse of `packed`."""
    pairs = np.frombuffer(data, dtype="<i8").reshape(-1, 2)
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def distance(all_needs: Iterable[Needs], key: int) -> int | None:
    """Steps until somebody needs it; None when nobody has said."""
    found: int | None = None
    for keys, due in all_needs:
        at = int(np.searchsorted(keys, key))
        if at < len(keys) and keys[at] == key:
            found = int(due[at]) if found is None else min(found, int(due[at]))
    return found
