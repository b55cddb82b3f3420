"""The first reading of all text: what is there, which documents are twice, and which are held out.

Every process surveys pieces of its own; what is decided is decided here, from arrays over all documents in their order. They take
some 30 bytes a document of this process's memory, and the text none.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.corpus import Found
from phalanx.job.data.crew import Crew
from phalanx.job.data.file_pieces import File, Piece, batches, cut, is_short
from phalanx.job.data.kinds import CUT, HELD_OUT, OUT, TRAIN, Kinds
from phalanx.job.data.left_out import COUNTED, FileByFile, Firsts, Told, Unfit, named, nothing_left
from phalanx.job.data.looking import Batch, Looked, look
from phalanx.job.data.manifest import Source, Split
from phalanx.job.data.object_files import AT_ONCE, is_stored
from phalanx.job.data.texts import DIGEST_BYTES, Reading

KINDS: Final[dict[Split, int]] = {"train": TRAIN, "held_out": HELD_OUT}
_DIGESTS: Final = np.dtype([("high", ">u8"), ("low", ">u8")])


@dataclass(slots=True)
class Survey:
    """All pieces in order, their digests end to end, and arrays over all documents in order. first: the number of the first
    document of each piece, and at the end the number of all. alphabet: the code points beyond ASCII that occur."""

    pieces: list[Piece]
    piece_digests: bytes
    first: NDArray[np.int64]
    keys: NDArray[np.uint64]
    digests: NDArray[np.void]
    sizes: NDArray[np.int64]
    kinds: Kinds
    sources: tuple[Source, ...]
    alphabet: NDArray[np.uint32]

    def of(self, split: Split) -> NDArray[np.int64]:
        """Numbers of the documents of a split, in order; a lone document is of both."""
        return np.flatnonzero((self.kinds == KINDS[split]) | (self.kinds == CUT))

    def piece_digest(self, number: int) -> bytes:
        return self.piece_digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]

    @property
    def lone(self) -> bool:
        """Whether there is just one document, which both splits share."""
        return bool((self.kinds == CUT).any())


def survey(
    sources: Sequence["Gathered"], reading: Reading, dedup: bool, held_out: float, crew: Crew, seen: Callable[[int], None]
) -> Survey:
    """Reads everything once. seen(bytes done). Raises DataError where a path that was named directly holds no text, or nothing at
    all does."""
    pieces = [piece for source in sources for piece in source.pieces]
    starts = np.cumsum([0, *(len(source.pieces) for source in sources)]).tolist()
    done, at = 0, 0
    tasks = [Batch(batch, reading) for batch in batches(pieces)]
    all_looked: list[Looked] = []
    for batch, looked in zip(tasks, crew.map(look, tasks, _is_short), strict=True):
        for number, skipped, firsts in looked.skipped:
            owner = bisect_right(starts, at + number) - 1
            sources[owner].skip(at + number - starts[owner], skipped, firsts)
        all_looked.append(looked)
        at += len(batch.pieces)
        done += sum([piece.size_bytes for piece in batch.pieces])
        seen(done)
    for source in sources:
        source.left_out.end()
    return _decided(pieces, all_looked, sources, reading, dedup, held_out)


def _is_short(batch: Batch) -> bool:
    return is_short(batch.pieces)


class Gathered:
    """What one given path has contributed so far."""

    def __init__(self, found: Found, told: Told = lambda _: None) -> None:
        self.found = found
        self.pieces: list[Piece] = []
        self.left_out = FileByFile(found.label, told)
        for file, pieces in zip(found.files, _cut(found.files), strict=True):
            if isinstance(pieces, str):
                self.left_out.add(file.name, {"unreadable": 1}, {"unreadable": ("", pieces)})
            elif not pieces:
                self.left_out.add(file.name, {"empty": 1}, {"empty": ("", "is empty")})
            else:
                self.pieces += pieces
        self.left_out.end()

    @property
    def size_bytes(self) -> int:
        return sum([piece.size_bytes for piece in self.pieces])

    def skip(self, number: int, counts: Mapping[Unfit, int], firsts: Firsts) -> None:
        """Of a piece, in their order."""
        self.left_out.add(self.pieces[number].name, counts, firsts)

    def check(self, documents: int) -> None:
        """A file that was named must hold something; one met in a folder is only counted."""
        first = next(iter(self.left_out.firsts.values()), None)
        if not self.found.direct or not self.found.files or documents:
            return
        if first is None:
            raise DataError("paths", self.found.path, "holds no text; name a file with text")
        if self.pieces and self.pieces[0].kind != "text":
            raise DataError("paths", self.found.path, f"holds no text: {named(first.file, first.where)} {first.problem}")
        raise DataError("paths", self.found.path, f"{first.problem}; {_DIRECT[first.why]}")

    def source(self, piece_digests: bytes, documents: NDArray[np.int64], kept: int, text_bytes: int) -> Source:
        """documents: in each of its pieces. kept: how many of them are no duplicates, of `text_bytes`."""
        lines = []
        for number in np.flatnonzero(documents).tolist():
            piece = self.pieces[number]
            digest = piece_digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
            lines.append(f"{digest.hex()} {piece.name} {piece.start}\n")
        counts = {f"skipped_{why}": self.left_out.counts[why] for why in COUNTED}
        return Source(
            name=self.found.label,
            documents=kept,
            text_bytes=text_bytes,
            skipped_duplicate=int(documents.sum()) - kept,
            sha256=hashlib.sha256("".join(lines).encode()).hexdigest(),
            **counts,
        )


def _cut(files: Sequence[File]) -> Iterator[list[Piece] | str]:
    """Many at once where it takes a look into an object."""
    if files and is_stored(files[0].path):
        with ThreadPoolExecutor(AT_ONCE) as threads:
            yield from threads.map(cut, files)
    else:
        yield from map(cut, files)


_DIRECT: Final[Mapping[Unfit, str]] = {
    "binary": "name text files, or folders with them",
    "not_utf8": "convert it, for instance with iconv",
    "unreadable": "name a file that can be read",
    "short": "lower it, or name a file with more text",
    "empty": "name a file with text",
}


def _decided(
    pieces: list[Piece], looked: Sequence[Looked], sources: Sequence[Gathered], reading: Reading, dedup: bool, held_out: float
) -> Survey:
    digests = np.frombuffer(b"".join([one.digests for one in looked]), dtype=_DIGESTS)
    assert digests.itemsize == DIGEST_BYTES
    sizes = _joined([one.sizes for one in looked])
    keys = np.frombuffer(b"".join([one.keys for one in looked]), dtype=">u8").astype(np.uint64)
    kept = _first_ones(digests) if dedup else np.ones(len(sizes), dtype=bool)
    first = np.cumsum(_joined([np.zeros(1, np.int64), *(one.documents for one in looked)]), dtype=np.int64)
    piece_digests = b"".join([one.piece_digests for one in looked])
    found = Survey(
        pieces=pieces,
        piece_digests=piece_digests,
        first=first,
        keys=keys,
        digests=digests,
        sizes=sizes,
        kinds=_divided(keys, kept, held_out),
        sources=tuple(_sources(sources, piece_digests, first, kept, sizes)),
        alphabet=np.unique(np.concatenate([np.zeros(0, np.uint32), *(one.alphabet for one in looked)])),
    )
    if not kept.any():
        paths = [source.found.path for source in sources]
        raise nothing_left(paths, [source.left_out for source in sources], reading.min_chars)
    return found


def _joined(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _first_ones(digests: NDArray[np.void]) -> NDArray[np.bool_]:
    """False for every document that an earlier one equals."""
    order = np.lexsort((digests["low"], digests["high"]))  # stable: the first one stays first
    ordered = digests[order]
    kept = np.ones(len(digests), dtype=bool)
    kept[order[1:]] = ordered[1:] != ordered[:-1]
    return kept


def _divided(keys: NDArray[np.uint64], kept: NDArray[np.bool_], held_out: float) -> Kinds:
    """Whole documents to each split, by a hash of their names, so that adding a file moves no other.

    Both splits get at least one; a lone document gives its end, from a line's start, to the held-out split.
    """
    kinds = np.where(kept, TRAIN, OUT).astype(np.uint8)
    numbers = np.flatnonzero(kept)
    if len(numbers) == 1:
        kinds[numbers] = CUT
    if len(numbers) < 2:
        return kinds
    fractions = (keys[numbers] >> np.uint64(16)).astype(np.float64) / 2**48
    count = min(max(int((fractions < held_out).sum()), 1), len(numbers) - 1)
    kinds[numbers[np.argsort(fractions, kind="stable")[:count]]] = HELD_OUT
    return kinds


def _sources(
    sources: Sequence[Gathered], piece_digests: bytes, first: NDArray[np.int64], kept: NDArray[np.bool_], sizes: NDArray[np.int64]
) -> Iterator[Source]:
    at = 0
    for source in sources:
        end = at + len(source.pieces)
        mine = slice(int(first[at]), int(first[end]))
        source.check(mine.stop - mine.start)
        digests = piece_digests[at * DIGEST_BYTES : end * DIGEST_BYTES]
        yield source.source(digests, np.diff(first[at : end + 1]), int(kept[mine].sum()), int(sizes[mine][kept[mine]].sum()))
        at = end
