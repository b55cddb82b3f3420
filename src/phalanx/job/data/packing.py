"""How documents become rows of tokens: `Concatenate`, end to end, or `BestFit`, whole documents into rows with room for them.

Both are functions of the documents' lengths alone, and say of each row its pieces (document, first token, number of tokens). From
these `Pieces` tells where attention and positions begin anew. A row has `width` tokens: for training, one more than the model's
sequence, since inputs are all but the last and targets all but the first.

Best-fit is best-fit decreasing (Johnson et al., SIAM J. Computing 3(4), 1974), as used for language models by Ding et al. ("Fewer
Truncations Improve Language Modeling", ICML 2024), here over runs of a fixed number of documents, so that memory is bounded and a
row reads from one stretch of the data.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.best_fit import best_fit
from phalanx.job.data.checked import check_within
from phalanx.job.data.order import Indices
from phalanx.job.data.pieces import Pieces

Lengths = NDArray[np.int32] | NDArray[np.int64]

RUN_DOCUMENTS: Final = 2_048
"""Of 800 tokens on average these are 3 MB to read, 8 ms to pack, and leave 0.1 % of padding in rows of 2,049."""

_RUNS_KEPT: Final = 512
"""Of so many documents about 30 MB."""


class Concatenate:
    """Row i is the tokens [i * sequence, i * sequence + sequence], both ends included, over all documents end to end: nothing is
    padded, most documents are cut, and less than a row is left over. The rows that `TokenData.gather` reads."""

    def __init__(self, lengths: Lengths, sequence: int) -> None:
        _check(lengths, sequence)
        self.sequence, self.width = sequence, sequence + 1
        self.name = self.named(sequence)
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self.num_samples = max(0, (int(self._ends[-1]) - 1) // sequence) if len(lengths) else 0

    @staticmethod
    def named(sequence: int) -> str:
        """Its name, for who does not need its pieces."""
        return f"rows of {sequence} tokens end to end"

    def pieces(self, samples: Indices) -> Pieces:
        """What these rows are made of. Raises IndexError."""
        _check_rows(samples, self.num_samples)
        begin = samples * self.sequence
        first = np.searchsorted(self._ends, begin, side="right")
        last = np.searchsorted(self._ends, begin + self.sequence, side="right")
        rows, document = _spread(first, last - first + 1)
        document_begin = np.where(document > 0, self._ends[document - 1], 0)
        start = np.maximum(begin[rows] - document_begin, 0)
        length = np.minimum(self._ends[document], begin[rows] + self.width) - document_begin - start
        kept = np.flatnonzero(length)  # a document may be empty
        return Pieces.of(self.width, len(samples), rows[kept], document[kept], start[kept], length[kept])


class BestFit:
    """Rows of whole documents; only those longer than a row are cut. A row ends in padding where nothing fits.

    run_documents: that are packed together. More of them leave less padding and need more memory, and a row's documents lie further
    apart. counts: `counts` of an earlier one over the same lengths, so that this one need not pack everything to count.
    """

    def __init__(
        self, lengths: Lengths, width: int, run_documents: int = RUN_DOCUMENTS, counts: Sequence[int] | None = None
    ) -> None:
        _check(lengths, width)
        if run_documents < 1:
            raise DataError("run_documents", run_documents, "write a whole number above 0")
        self.width, self.run_documents = width, run_documents
        self.name = f"best fit into rows of {width} tokens, {run_documents} documents at a time"
        self._lengths = lengths
        self._packed = lru_cache(_RUNS_KEPT)(self._pack)
        num_runs = -(-len(lengths) // run_documents)
        self.counts = tuple(len(self._pack(run)) for run in range(num_runs)) if counts is None else tuple(counts)
        if len(self.counts) != num_runs:
            raise DataError("counts", len(self.counts), f"these documents have {num_runs} runs; leave counts out")
        self._ends = np.cumsum(self.counts, dtype=np.int64)
        self.num_samples = int(self._ends[-1]) if num_runs else 0

    @property
    def padding(self) -> float:
        """The part of all rows that is padding."""
        return 1 - int(self._lengths.sum(dtype=np.int64)) / (self.num_samples * self.width) if self.num_samples else 0.0

    def pieces(self, samples: Indices) -> Pieces:
        """What these rows are made of, in the order of the documents. Raises IndexError."""
        _check_rows(samples, self.num_samples)
        run = np.searchsorted(self._ends, samples, side="right")
        asked: list[Indices] = []
        parts: list[Pieces] = []
        for each in np.unique(run).tolist():
            rows = np.flatnonzero(run == each)
            whole = self._packed(each)
            if len(whole) != self.counts[each]:
                raise DataError("counts", self.counts[each], f"run {each} has {len(whole)} rows; leave counts out")
            asked.append(rows)
            parts.append(whole.take(samples[rows] - (self._ends[each] - len(whole))))
        return Pieces.joined(self.width, parts).take(np.argsort(np.concatenate(asked))) if parts else Pieces.none(self.width)

    def run_rows(self, first: int, last: int) -> tuple[int, int]:
        """The rows [first, stop) of the runs that these documents, both among them, are packed in."""
        begin, end = first // self.run_documents, last // self.run_documents
        return int(self._ends[begin]) - self.counts[begin], int(self._ends[end])

    def _pack(self, run: int) -> Pieces:
        first = run * self.run_documents
        return _packed(self._lengths[first : first + self.run_documents].astype(np.int64), self.width, first)


Packing = Concatenate | BestFit


def _packed(lengths: Indices, width: int, first_document: int) -> Pieces:
    """Rows in the order of the first document of each, pieces of a row in the order of the documents."""
    document, number = _spread(np.zeros(len(lengths), dtype=np.int64), -(-lengths // width))
    start = number * width
    length = np.minimum(lengths[document] - start, width)
    rows = best_fit(length, width)
    seen, at = np.unique(rows, return_index=True)
    place = np.empty(len(seen), dtype=np.int64)
    place[seen[np.argsort(at)]] = np.arange(len(seen))
    rows = place[rows]
    by_row = np.argsort(rows, kind="stable")
    return Pieces.of(width, len(seen), rows[by_row], first_document + document[by_row], start[by_row], length[by_row])


def _spread(first: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """For each i, the numbers from first[i] on, counts[i] of them: (i, number) rows."""
    rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return rows, np.arange(len(rows), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts - first, counts)


def _check(lengths: Lengths, width: int) -> None:
    if width < 1:
        raise DataError("sequence", width, "write a whole number above 0")
    if len(lengths) and int(lengths.min()) < 0:
        raise DataError("lengths", int(lengths.min()), "a document has less than no tokens; its index is damaged")


def _check_rows(samples: Indices, num_samples: int) -> None:
    check_within("row", samples, num_samples)
