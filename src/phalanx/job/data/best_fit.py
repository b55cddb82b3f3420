"""Best-fit decreasing over counts: pieces of one length are placed together, so that the work grows with the number of lengths."""

import numpy as np

from phalanx.job.data.order import Indices


def best_fit(lengths: Indices, width: int) -> Indices:
    """The row of each piece: longest first, each into the row where the least would stay free, else into a new one. Every length is
    from 1 to `width`; rows are numbered from 0 without a gap. Equal pieces go by number, equally full rows by who came to it
    first."""
    rows = np.empty(len(lengths), dtype=np.int64)
    longest_first = np.argsort(-lengths, kind="stable")
    each, counts = np.unique(lengths, return_counts=True)
    room = _Room(width)
    at = 0
    for length, count in zip(each[::-1].tolist(), counts[::-1].tolist(), strict=True):
        rows[longest_first[at : at + count]] = room.place(length, count)
        at += count
    return rows


class _Room:
    """Rows by the tokens that are still free in them. A piece goes where the least is free; what it leaves is less, so that the
    next of its length goes into the same row while that has room. A row is therefore filled with as many of one length as it
    holds."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: dict[int, list[Indices]] = {}
        self._free = 0
        """Bit f is set where some row has f tokens free."""

        self._num_rows = 0

    def place(self, length: int, count: int) -> Indices:
        """Rows for `count` pieces of this length."""
        found: list[Indices] = []
        while count:
            fits = self._free >> length
            free = length + (fits & -fits).bit_length() - 1 if fits else self._width
            each = free // length
            wanted = -(-count // each)
            taken = self._take(free, wanted) if fits else self._open(wanted)
            placed = min(count, len(taken) * each)
            found.append(np.repeat(taken, each)[:placed])
            whole = placed // each
            self._put(free - each * length, taken[:whole])
            self._put(free - (placed - whole * each) * length, taken[whole:])
            count -= placed
        return np.concatenate(found)

    def _open(self, count: int) -> Indices:
        self._num_rows += count
        return np.arange(self._num_rows - count, self._num_rows, dtype=np.int64)

    def _take(self, free: int, most: int) -> Indices:
        """Of those that have so much free, the ones that came to it first."""
        held = self._rows[free]
        rows = np.concatenate(held) if len(held) > 1 else held[0]
        if len(rows) > most:
            self._rows[free] = [rows[most:]]
            return rows[:most]
        del self._rows[free]
        self._free &= ~(1 << free)
        return rows

    def _put(self, free: int, rows: Indices) -> None:
        if rows.size and free:
            self._rows.setdefault(free, []).append(rows)
            self._free |= 1 << free
