"""Samples of a split, gathered by whole batches.

A batch over blocks that are checked is one search and one NumPy gather, however many shards it touches.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from phalanx.job.data.checked import check_within
from phalanx.job.data.pieces import Pieces
from phalanx.job.data.shards import Shards, Watch

Rows = NDArray[np.int64]
Tokens = NDArray[np.uint16] | NDArray[np.int32]
_LAYOUTS_MAX: Final = 8
"""Sequence lengths remembered at once; a run uses one or two."""

_NOWHERE: Final = np.int64(-(2**62))
"""A place before every beginning, where NumPy refuses to read."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where samples of one length lie.

    bounds: samples [bounds[2s], bounds[2s + 1]) lie wholly in shard s; those between them cross a border. So an odd number of
    bounds at or below a sample, its stretch, says that it lies in one shard. windows: a sample by the place of its first token,
    which is sample * scale[stretch] + shift[stretch]: nowhere where a stretch is none, and while its shard is not checked whole.
    """

    bounds: NDArray[np.int64]
    scale: NDArray[np.int64]
    shift: NDArray[np.int64]
    windows: NDArray[Any]


class Samples:
    """Sample i is tokens [i * sequence, i * sequence + sequence], both ends included, over the shards end to end."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.num_tokens = int(shards.ends[-1]) if len(shards.ends) else 0
        self._begins = shards.ends - shards.lengths
        self._shift = shards.places - self._begins
        self._layouts: dict[int, _Layout] = {}

    def count(self, sequence: int) -> int:
        """Whole samples; may be 0."""
        return max(0, (self.num_tokens - 1) // sequence)

    def touching(self, shard_sha256: str, block: int, sequence: int) -> tuple[tuple[int, int], ...]:
        """Stretches [first, stop) of samples that read from a block of a shard, named by the hash of its tokens."""
        found = []
        for begin, end in self.tokens_of(shard_sha256, block):
            first, stop = max(0, -(-(begin - sequence) // sequence)), min(self.count(sequence), (end - 1) // sequence + 1)
            found += [(first, stop)] if first < stop else []
        return tuple(found)

    def tokens_of(self, shard_sha256: str, block: int) -> list[tuple[int, int]]:
        """The tokens [begin, end) of a block, counted over the split, of each shard that has it."""
        shards, found = self.shards, []
        for shard in shards.numbered(shard_sha256):
            begin = int(self._begins[shard]) + block * shards.block_tokens
            end = min(begin + shards.block_tokens, int(shards.ends[shard]))
            found += [(begin, end)] if begin < end else []
        return found

    def gather(self, indices: NDArray[np.int64], sequence: int, out: Rows | None, watch: Watch | None) -> Rows:
        """Raises IndexError for a sample outside, DataError for damage."""
        layout = self._layouts.get(sequence) or self._layout(sequence)
        stretch = layout.bounds.searchsorted(indices, "right")
        places = indices * layout.scale.take(stretch)
        places += layout.shift.take(stretch)
        try:
            items = layout.windows[places]
        except IndexError:
            return self._gather_unready(layout, indices, stretch, sequence, out, watch)
        tokens: Tokens = items.view(self.shards.tokens.dtype)  # in one row, of which NumPy makes int64 a third faster than of many
        if out is None:
            return tokens.astype(np.int64).reshape(len(indices), sequence + 1)
        if out.flags.c_contiguous:
            np.copyto(out.reshape(-1), tokens)
        else:
            np.copyto(out, tokens.reshape(out.shape))
        return out

    def gather_pieces(
        self, pieces: Pieces, document_begins: NDArray[np.int64], padding: int, out: Rows, watch: Watch | None
    ) -> None:
        """Rows made of pieces of documents, none of which crosses a border between shards, into `out` [rows, width]."""
        begins = document_begins[pieces.document]
        places = begins + pieces.start + self._shift[np.searchsorted(self.shards.ends, begins, side="right")]
        self._check(places, pieces.length, watch)
        pieces.laid(self.shards.tokens[pieces.counted_from(places)].astype(np.int64), padding, out)

    def _gather_unready(
        self,
        layout: _Layout,
        indices: NDArray[np.int64],
        stretch: NDArray[np.int64],
        sequence: int,
        out: Rows | None,
        watch: Watch | None,
    ) -> Rows:
        """Where a shard is not checked whole yet, or a sample crosses a border."""
        count = self.count(sequence)
        check_within("sample", indices, count)
        rows = np.empty((len(indices), sequence + 1), dtype=np.int64) if out is None else out
        inside = np.flatnonzero(stretch % 2)
        shard = stretch[inside] // 2
        places = indices[inside] * sequence + self._shift[shard]
        self._check(places, sequence + 1, watch)
        rows[inside] = layout.windows[places].view(self.shards.tokens.dtype).reshape(len(inside), sequence + 1)
        for row in np.flatnonzero(stretch % 2 == 0):  # at most one sample for each border between shards
            self._copy_across(int(indices[row]) * sequence, rows[row], watch)
        return rows

    def _check(self, places: NDArray[np.int64], length: int | NDArray[np.int64], watch: Watch | None) -> None:
        """Every block of these stretches of tokens, in the order of the file. length: of all, or of each."""
        shards = self.shards
        first, last = places // shards.block_tokens, (places + (length - 1)) // shards.block_tokens
        if not (last - first > 1).any() and (shards.checked[first] & shards.checked[last]).all():
            return
        blocks = {block for begin, end in zip(first.tolist(), last.tolist(), strict=True) for block in range(begin, end + 1)}
        for block in sorted(blocks):
            if not shards.checked[block]:
                shard = shards.check(block, watch)
                if shards.whole[shard]:
                    for layout in list(self._layouts.values()):
                        layout.shift[2 * shard + 1] = self._shift[shard]

    def _copy_across(self, start: int, row: Rows, watch: Watch | None) -> None:
        done, shards = 0, self.shards
        while done < len(row):
            shard = int(np.searchsorted(shards.ends, start + done, side="right"))
            length = min(len(row) - done, int(shards.ends[shard]) - start - done)
            place = self._place(shard, start + done)
            self._check(np.array([place]), length, watch)
            row[done : done + length] = shards.tokens[place : place + length]
            done += length

    def _place(self, shard: int, token: int) -> int:
        return int(self._shift[shard]) + token

    def _layout(self, sequence: int) -> _Layout:
        shards, number = self.shards, len(self.shards.ends)
        bounds = np.empty(2 * number, dtype=np.int64)
        bounds[0::2] = -(-self._begins // sequence)
        bounds[1::2] = np.maximum(bounds[0::2], (shards.ends - 1) // sequence)
        scale, shift = np.zeros(2 * number + 1, dtype=np.int64), np.full(2 * number + 1, _NOWHERE)
        scale[1::2] = sequence
        layout = _Layout(bounds, scale, shift, _windows(shards, sequence + 1))
        if len(self._layouts) >= _LAYOUTS_MAX:
            self._layouts = {}
        self._layouts[sequence] = layout
        whole = np.flatnonzero(shards.whole)  # after the layout is known, so that none is missed meanwhile
        shift[2 * whole + 1] = self._shift[whole]
        return layout


def _windows(shards: Shards, length: int) -> NDArray[Any]:
    """The tokens from each place on, as one item of `length` tokens, which NumPy copies at once."""
    count = len(shards.tokens) - length + 1
    if count < 1:
        return np.zeros(0, dtype=shards.tokens.dtype)
    first = np.ndarray((1,), np.dtype((np.void, length * shards.tokens.itemsize)), shards.tokens)
    return as_strided(first, shape=(count,), strides=(shards.tokens.itemsize,), writeable=False)
