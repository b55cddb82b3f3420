"""What rows of tokens are made of, and what follows from it for attention, positions and the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data.order import Indices


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of some rows of `width` tokens, row by row, from the left; what they leave free of a row, at its end, is padding.

    first: where the pieces of each row begin, and where those of the last end [rows + 1]. document: number of the document. start:
    the piece's first token, counted in the document. length: its tokens, above 0. [pieces]
    """

    width: int
    first: Indices
    document: Indices
    start: Indices
    length: Indices

    @classmethod
    def of(cls, width: int, num_rows: int, rows: Indices, document: Indices, start: Indices, length: Indices) -> Self:
        """From the row of each piece; rows ascend."""
        return cls(width, np.searchsorted(rows, np.arange(num_rows + 1)).astype(np.int64), document, start, length)

    @classmethod
    def none(cls, width: int) -> Self:
        """No row at all."""
        empty = np.zeros(0, dtype=np.int64)
        return cls.of(width, 0, empty, empty, empty, empty)

    @classmethod
    def joined(cls, width: int, parts: Sequence["Pieces"]) -> Self:
        """Rows of one after those of the other."""
        counts = np.concatenate([np.diff(part.first) for part in parts])
        columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("document", "start", "length")]
        return cls(width, np.concatenate([[0], np.cumsum(counts)]), *columns)

    def __len__(self) -> int:
        return len(self.first) - 1

    def take(self, rows: Indices) -> "Pieces":
        """These rows, in this order."""
        counts = np.diff(self.first)[rows]
        first = np.concatenate([[0], np.cumsum(counts)])
        at = np.arange(first[-1]) + np.repeat(self.first[rows] - first[:-1], counts)
        return Pieces(self.width, first, self.document[at], self.start[at], self.length[at])

    def inputs(self) -> "Pieces":
        """Without the last token of each row, which is a target only."""
        over = np.maximum(self._ends() - (self.width - 1), 0)
        length = self.length - over
        kept = np.flatnonzero(length)
        return Pieces.of(self.width - 1, len(self), self._rows()[kept], self.document[kept], self.start[kept], length[kept])

    def cu_seqlens(self) -> NDArray[np.int32]:
        """Bounds of what attends to itself, over the rows end to end, from 0 to rows * width: each piece, and the padding of each
        row. As variable-length attention takes them."""
        begins = self._rows() * self.width + self._ends() - self.length
        padded = np.flatnonzero(self._filled() < self.width)
        padding = padded * self.width + self._filled()[padded]
        return np.unique(np.concatenate([begins, padding, [len(self) * self.width]])).astype(np.int32)

    def segments(self) -> NDArray[np.int32]:
        """For each token the number of its piece in the row, from 0, and -1 for padding: [rows, width]. For masks: a token attends
        to tokens of its own segment."""
        return self._painted(np.arange(len(self.length)) - self.first[:-1][self._rows()], fill=-1).astype(np.int32)

    def positions(self) -> Indices:
        """For each token its place in its piece, from 0, since a piece sees nothing before itself; 0 for padding: [rows, width]."""
        begins = self._painted(self._ends() - self.length, fill=-1)
        return np.where(begins < 0, 0, np.arange(self.width) - begins)

    def counted(self) -> NDArray[np.bool_]:
        """For each input whether its target, the next token of the row, continues the same piece: [rows, width - 1]. No document is
        to foretell the beginning of another, and nothing foretells padding."""
        segments = self.segments()
        return np.asarray((segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] >= 0))

    def painted(self, numbers: Indices) -> Indices:
        """A number for each piece, at each of its tokens, and 0 for padding: [rows, width]."""
        return self._painted(numbers, fill=0)

    def tokens(self, document_begins: Indices, padding: int = -1) -> Indices:
        """For each token its place in the data, where document d begins at document_begins[d]; `padding` for padding: [rows,
        width]."""
        begins = self._painted(document_begins[self.document] + self.start - (self._ends() - self.length), fill=0)
        return np.where(self.segments() < 0, padding, begins + np.arange(self.width))

    def _rows(self) -> Indices:
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.first))

    def _ends(self) -> Indices:
        """Where each piece ends, counted in its row."""
        ends = np.cumsum(self.length)
        return np.asarray(ends - np.concatenate([[0], ends])[self.first[:-1]][self._rows()])

    def _filled(self) -> Indices:
        return np.diff(np.concatenate([[0], np.cumsum(self.length)])[self.first])

    def _painted(self, numbers: Indices, fill: int) -> Indices:
        """A number for each piece, at each of its tokens: [rows, width]."""
        filled = self._filled()
        painted = np.full(len(self) * self.width, fill, dtype=np.int64)
        tokens = np.repeat(np.arange(len(self)) * self.width - (np.cumsum(filled) - filled), filled) + np.arange(filled.sum())
        painted[tokens] = np.repeat(numbers, self.length)
        return painted.reshape(len(self), self.width)
