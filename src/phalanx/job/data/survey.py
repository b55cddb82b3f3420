"""The first reading of all text: what is there, which documents are twice, and which are held out.

Every process surveys pieces of its own; what is decided is decided here, from arrays over all documents in their order. They take
some 30 bytes a document of this process's memory, and the text none.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.corpus import Found
from phalanx.job.data.crew import Crew
from phalanx.job.data.file_pieces import Piece, batches, cut
from phalanx.job.data.manifest import Source, Split
from phalanx.job.data.texts import DIGEST_BYTES, Reading, Texts, Unfit, digest, read

OUT, TRAIN, HELD_OUT, CUT = 0, 1, 2, 3
"""What becomes of a document: nothing, one of the splits, or the start of it to train on and its end held out."""

KINDS: Final[dict[Split, int]] = {"train": TRAIN, "held_out": HELD_OUT}
_DIGESTS: Final = np.dtype([("high", ">u8"), ("low", ">u8")])
Kinds = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Batch:
    """A task of the survey."""

    pieces: Sequence[Piece]
    reading: Reading


@dataclass(frozen=True, slots=True)
class PieceFacts:
    """What a piece holds. keys: the first 8 bytes of the SHA-256 of each document's name. digests: of each document."""

    digest: bytes
    keys: bytes
    digests: bytes
    sizes: NDArray[np.int64]
    skipped: Counter[Unfit]
    trouble: str


def look(batch: Batch) -> tuple[list[PieceFacts], NDArray[np.uint32]]:
    """The facts of each piece, and the code points that occur in them."""
    occurs = np.zeros(0x110000, dtype=bool)
    facts = []
    for piece in batch.pieces:
        texts = read(piece, batch.reading)
        facts.append(_facts(texts))
        for document in texts.documents:
            if not document.isascii():
                occurs[np.frombuffer(document.decode().encode("utf-32-le"), dtype="<u4")] = True
    return facts, np.flatnonzero(occurs).astype(np.uint32)


def _facts(texts: Texts) -> PieceFacts:
    return PieceFacts(
        digest=texts.digest,
        keys=b"".join(hashlib.sha256(name.encode()).digest()[:8] for name in texts.names),
        digests=b"".join(digest(document) for document in texts.documents),
        sizes=np.asarray([len(document) for document in texts.documents], dtype=np.int64),
        skipped=texts.skipped,
        trouble=texts.trouble,
    )


@dataclass(slots=True)
class Survey:
    """All pieces in order, and arrays over all documents in order. first: the number of the first document of each piece, and at
    the end the number of all. alphabet: the code points beyond ASCII that occur."""

    pieces: list[Piece]
    piece_digests: list[bytes]
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
    owners = [source for source in sources for _ in source.pieces]
    done, at = 0, 0
    occurs = np.zeros(0x110000, dtype=bool)
    tasks = [Batch(batch, reading) for batch in batches(pieces)]
    all_facts: list[PieceFacts] = []
    for batch, (facts, alphabet) in zip(tasks, crew.map(look, tasks), strict=True):
        occurs[alphabet] = True
        for one in facts:
            owners[at].add(one)
            at += 1
        all_facts += facts
        done += sum(piece.size_bytes for piece in batch.pieces)
        seen(done)
    for source in sources:
        source.check()
    return _decided(pieces, all_facts, sources, dedup, held_out, np.flatnonzero(occurs).astype(np.uint32))


class Gathered:
    """What one given path has contributed so far."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.pieces: list[Piece] = []
        self.facts: list[PieceFacts] = []
        self.skipped: Counter[Unfit] = Counter()
        for name, file in found.files:
            pieces = cut(file, name)
            self.pieces += pieces or []
            self.skipped["unreadable"] += pieces is None
            self.skipped["empty"] += pieces == []

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    def add(self, facts: PieceFacts) -> None:
        self.facts.append(facts)
        self.skipped.update(facts.skipped)

    def check(self) -> None:
        """A file that was named must hold something; one met in a folder is only counted."""
        if not self.found.direct or not self.found.files or any(len(facts.sizes) for facts in self.facts):
            return
        trouble = next((facts.trouble for facts in self.facts if facts.trouble), "")
        why: Unfit = next((why for why in _DIRECT if self.skipped[why]), "empty")
        lines = f"holds no text: {trouble}" if trouble and self.pieces[0].kind != "text" else ""
        raise DataError("paths", self.found.path, lines or _DIRECT[why])

    def source(self, documents: int, text_bytes: int, duplicates: int) -> Source:
        hasher = hashlib.sha256()
        for piece, facts in zip(self.pieces, self.facts, strict=True):
            if len(facts.sizes):
                hasher.update(f"{facts.digest.hex()} {piece.name} {piece.start}\n".encode())
        counts = {f"skipped_{why}": self.skipped[why] for why in _COUNTED}
        return Source(
            name=self.found.label,
            documents=documents,
            text_bytes=text_bytes,
            skipped_duplicate=duplicates,
            sha256=hasher.hexdigest(),
            **counts,
        )


_DIRECT: Final[Mapping[Unfit, str]] = {
    "binary": "is a binary file; name text files, or folders with them",
    "not_utf8": "is not UTF-8 text; convert it, for instance with iconv",
    "unreadable": "is not a file this user can read; change its mode, or name another",
    "short": "is shorter than --min-chars; name a file with more text",
    "empty": "is empty; name a file with text",
}
_COUNTED: Final[tuple[Unfit, ...]] = ("binary", "not_utf8", "unreadable", "empty", "not_json", "no_text", "short")


def _decided(
    pieces: list[Piece],
    facts: list[PieceFacts],
    sources: Sequence[Gathered],
    dedup: bool,
    held_out: float,
    alphabet: NDArray[np.uint32],
) -> Survey:
    sizes = np.concatenate([np.zeros(0, np.int64), *(one.sizes for one in facts)])
    keys = np.frombuffer(b"".join(one.keys for one in facts), dtype=">u8").astype(np.uint64)
    digests = np.frombuffer(b"".join(one.digests for one in facts), dtype=_DIGESTS)
    assert digests.itemsize == DIGEST_BYTES
    kept = _first_ones(digests) if dedup else np.ones(len(sizes), dtype=bool)
    counts = [len(one.sizes) for one in facts]
    found = Survey(
        pieces=pieces,
        piece_digests=[one.digest for one in facts],
        first=np.cumsum([0, *counts], dtype=np.int64),
        keys=keys,
        digests=digests,
        sizes=sizes,
        kinds=_divided(keys, kept, held_out),
        sources=tuple(_sources(sources, kept, sizes)),
        alphabet=alphabet,
    )
    if not kept.any():
        skipped = sum(sum(source.skipped.values()) for source in sources)
        paths = ", ".join(source.found.path for source in sources)
        raise DataError("paths", paths, f"hold no text ({skipped} files, lines and rows skipped); name UTF-8 text files")
    return found


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


def _sources(sources: Sequence[Gathered], kept: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Iterator[Source]:
    start = 0
    for source in sources:
        end = start + sum(len(facts.sizes) for facts in source.facts)
        mine = kept[start:end]
        yield source.source(int(mine.sum()), int(sizes[start:end][mine].sum()), int(len(mine) - mine.sum()))
        start = end


def halves(document: bytes, held_out: float) -> tuple[bytes, bytes]:
    """A lone document in two, the end at a line's start where there is one."""
    at = int(len(document) * (1 - held_out))
    at = document.rfind(b"\n", 0, at) + 1 or at
    while 0 < at < len(document) and document[at] & 0xC0 == 0x80:  # not inside a character
        at -= 1
    if not 0 < at < len(document):
        raise DataError("paths", "the text", "is one document too short to hold any of it out; give more text")
    return document[:at], document[at:]
