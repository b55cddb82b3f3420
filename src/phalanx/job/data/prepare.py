"""`phalanx data prepare`: texts to a tokenizer, Megatron shards and a manifest, by several processes and always the same bytes.

All text is read twice: once to know it (`survey`), once to tokenize it (`encoding`). The folder is built beside its name and
renamed into place when all of it, the manifest last, is on disk (`place`); what a killed run had finished is used again
(`journal`).
"""

import hashlib
import json
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data import megatron, tokens
from phalanx.job.data.assembly import write_shards
from phalanx.job.data.checked import fraction, integer, path_of, shown, whole
from phalanx.job.data.corpus import find
from phalanx.job.data.crew import Crew, default_processes
from phalanx.job.data.default_corpus import STDLIB
from phalanx.job.data.encoder import Encoder
from phalanx.job.data.encoding import Plan, keep
from phalanx.job.data.journal import Journal
from phalanx.job.data.kinds import halves
from phalanx.job.data.left_out import LeftOut
from phalanx.job.data.manifest import (
    FORMAT,
    HELD_OUT_MAX,
    MANIFEST,
    SPLITS,
    TOKENIZER,
    FileEntry,
    Manifest,
    Shard,
    Source,
    Split,
    SplitCount,
)
from phalanx.job.data.parity import Proof
from phalanx.job.data.place import building, check_out, move_into_place
from phalanx.job.data.resumed import Resumed, encoding_phase, kept_of
from phalanx.job.data.standing import check_same
from phalanx.job.data.survey import Gathered, Survey, survey
from phalanx.job.data.texts import Reading
from phalanx.job.data.training_text import only_document, sample
from phalanx.storage.atomic import refused, write_atomic
from phalanx.storage.hashes import sha256_bytes

TRAINING_TEXT_BYTES_MAX: Final = 16 * 10**6
"""Of text shown to the tokenizer's trainer. A vocabulary of thousands changes little past it; training time goes on growing."""

SHARD_TOKENS_MAX: Final = 64 * 2**20
VOCAB_SIZE: Final = 4096
_COMPARED_BYTES: Final = 200_000
"""Of the documents, which both tokenizer libraries encode before one is chosen; a quarter of a second of the slower one."""


@dataclass(frozen=True, slots=True)
class PrepareProgress:
    """How far one phase is, in bytes of text."""

    phase: str
    done_bytes: int
    total_bytes: int


Report = Callable[[PrepareProgress], None]

Noted = Callable[[LeftOut | Resumed], None]
"""Told what no manifest says: what of each file is not taken, and what was left of an interrupted run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The parameters that decide the result, besides the text. tokenizer: the given one, or None to train one."""

    vocab_size: int
    held_out: float
    shard_tokens_max: int
    training_text_bytes_max: int
    end_of_document: str
    reading: Reading
    dedup: bool
    tokenizer: Path | None

    def check(self) -> None:
        whole("vocab_size", self.vocab_size)
        fraction("held_out", self.held_out)
        whole("training_text_bytes_max", self.training_text_bytes_max)
        if not isinstance(self.end_of_document, str):
            raise DataError("end_of_document", shown(self.end_of_document), "write the token between documents")
        if self.tokenizer is None and not tokens.VOCAB_MIN <= self.vocab_size <= tokens.VOCAB_MAX:
            raise DataError("vocab_size", self.vocab_size, f"write a number from {tokens.VOCAB_MIN} to {tokens.VOCAB_MAX}")
        if not 0 < self.held_out <= HELD_OUT_MAX:
            raise DataError("held_out", self.held_out, f"write a share above 0, at most {HELD_OUT_MAX}")
        whole("shard_tokens_max", self.shard_tokens_max)
        self.reading.check()

    @property
    def parameters(self) -> Mapping[str, str | int | float]:
        """As the manifest records them."""
        return {
            "held_out": self.held_out,
            "shard_tokens_max": self.shard_tokens_max,
            "text_field": self.reading.text_field,
            "normalize": self.reading.normalize,
            "min_chars": self.reading.min_chars,
            "dedup": "exact" if self.dedup else "none",
            "tokenizer": "trained" if self.tokenizer is None else "given",
            "tokenizers": tokens.library_version(),
            **({"training_text_bytes_max": self.training_text_bytes_max} if self.tokenizer is None else {}),
            **({"unicode": unicodedata.unidata_version} if self.reading.normalize == "nfc" else {}),
        }


def prepare(
    paths: Sequence[str | Path],
    out: Path | str,
    vocab_size: int | None = None,
    held_out: float = 0.05,
    progress: Report | None = None,
    force: bool = False,
    shard_tokens_max: int = SHARD_TOKENS_MAX,
    training_text_bytes_max: int = TRAINING_TEXT_BYTES_MAX,
    *,
    tokenizer: Path | str | None = None,
    end_of_document: str = tokens.END_OF_DOCUMENT,
    text_field: str = "text",
    normalize: Literal["none", "nfc"] = "none",
    min_chars: int = 0,
    dedup: bool = False,
    processes: int | None = 1,
    noted: Noted | None = None,
) -> Manifest:
    """Makes the folder `out` of the text in `paths` (files, folders, patterns, or 'stdlib:') and returns its manifest.

    out: absent, empty, or prepared before of the same text in the same way, which is made again; what else stands there is
    replaced only with `force`. Inside a folder in `paths` it is not read, neither now nor the next time.
    held_out: share of the documents, chosen by a hash of their names, that training never sees.
    tokenizer: a tokenizer.json, or a prepared folder, instead of training one of `vocab_size` (4096) tokens.
    end_of_document: the token of a given tokenizer that ends documents.
    text_field: of JSONL objects and Parquet rows. min_chars: shorter documents are left out. dedup: those equal to an earlier one.
    processes: any number gives the same bytes; None as many as help. noted: told what no manifest says, see Noted.
    Raises DataError, SetupError (no `tokenizers`, a place that cannot be written, a killed process), StoreUnavailable (disk full),
    Conflict.
    """
    if isinstance(paths, str | Path):
        raise DataError("paths", str(paths), f"give a list of paths, such as [{str(paths)!r}]")
    paths = [path if path and isinstance(path, str) else path_of("paths", path) for path in paths]
    out = path_of("out", out)
    tokenizer = None if tokenizer is None else path_of("tokenizer", tokenizer)
    if processes is not None:
        integer("processes", processes)
    if tokenizer is not None and vocab_size is not None:
        raise DataError("vocab_size", vocab_size, f"the tokenizer {tokenizer} has its own; leave out one of the two")
    reading = Reading(text_field, normalize, min_chars)
    asked = _Asked(
        vocab_size=VOCAB_SIZE if vocab_size is None else vocab_size,
        held_out=held_out,
        shard_tokens_max=shard_tokens_max,
        training_text_bytes_max=training_text_bytes_max,
        end_of_document=end_of_document,
        reading=reading,
        dedup=dedup,
        tokenizer=tokenizer,
    )
    asked.check()
    if not paths:
        raise DataError("paths", "(none)", f"name files or folders with text, or {STDLIB}")
    tokens.library_version()  # a missing extra shows before the reading
    out = Path(os.path.realpath(out))
    check_out(out, paths, force)
    with Crew(1 if processes is None else processes) as crew:
        given = None if tokenizer is None else _Given(tokenizer)  # while the processes start
        tell = noted or (lambda _: None)
        sources = [Gathered(one, tell) for one in find(paths, out)]
        check_same(out, force, _wanted(asked, given), [source.found.label for source in sources])
        if processes is None:
            crew.begin(default_processes(sum(source.size_bytes for source in sources)))
        return _prepare(sources, out, asked, given, crew, progress or (lambda _: None), tell, force)


class _Given:
    """The tokenizer that a user gives, in both libraries. text: of its tokenizer.json, as we write it."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = tokens.given(path)
        self.text = self.tokenizer.to_str(pretty=True)
        self.proof = Proof(self.text, self.tokenizer)


def _wanted(asked: _Asked, given: _Given | None) -> Mapping[str, object]:
    """What the manifest will say, before any text was read."""
    facts: dict[str, object] = {"format": FORMAT, "parameters": asked.parameters}
    if given is None:
        return {**facts, "vocab_size": asked.vocab_size}
    text = given.text.encode()
    entry = FileEntry(name=TOKENIZER, size_bytes=len(text), sha256=sha256_bytes(text))
    end = tokens.end_id(given.tokenizer, asked.end_of_document)
    return {**facts, "tokenizer": wire.plain(FileEntry, entry), "end_of_document": end}


def _prepare(
    sources: Sequence[Gathered],
    out: Path,
    asked: _Asked,
    given: _Given | None,
    crew: Crew,
    report: Report,
    noted: Noted,
    force: bool,
) -> Manifest:
    total = sum(source.size_bytes for source in sources)
    found = survey(
        sources, asked.reading, asked.dedup, asked.held_out, crew, lambda done: report(PrepareProgress("reading", done, total))
    )
    check_same(out, force, {"sources": wire.plain(tuple[Source, ...], found.sources)})
    try:
        with building(out) as folder:
            manifest = _fill(folder, found, asked, given, crew, report, noted)
            move_into_place(folder, out, force)
    except OSError as error:
        raise refused(out, error) from error
    return manifest


def _fill(folder: Path, found: Survey, asked: _Asked, given: _Given | None, crew: Crew, report: Report, noted: Noted) -> Manifest:
    journal = Journal(folder, _key(found, asked, given))
    journal.recover(shards_too=not found.lone)
    resumed = kept_of(journal)
    if resumed.shards or resumed.dropped:
        noted(resumed)
    texts: list[str] | None = None
    if journal.tokenizer is not None:
        tokenizer = given.tokenizer if given else tokens.load(folder / TOKENIZER)
    elif given:
        tokenizer = given.tokenizer
    else:
        texts = _sample(found, asked, asked.training_text_bytes_max, crew, report)
        tokenizer = tokens.train(texts, asked.vocab_size)
    end = tokens.end_id(tokenizer, asked.end_of_document)
    if journal.tokenizer is None:
        written = given.text if given else tokenizer.to_str(pretty=True)
        journal.begin(_written(folder / TOKENIZER, written.encode()))
    assert journal.tokenizer is not None
    vocab_size = tokens.vocab_size(tokenizer)
    if texts is None:
        texts = sample(found, asked.reading, _COMPARED_BYTES, asked.held_out, crew, lambda *_: None)
    text = given.text if given else (folder / TOKENIZER).read_text(encoding="utf-8")
    proof = given.proof if given else Proof(text)
    choice = proof.choose(_some(texts), found.alphabet)
    plan = Plan(
        tokenizer=folder / TOKENIZER,
        tokenizer_sha256=journal.tokenizer.sha256,
        choice=choice,
        end_of_document=end,
        dtype=megatron.token_type(vocab_size),
        reading=asked.reading,
        held_out=asked.held_out,
    )
    keep(plan, Encoder(text, choice, proof.fast))
    phase = encoding_phase(choice, resumed)
    shards = write_shards(found, plan, asked.shard_tokens_max, journal, crew, lambda *at: report(PrepareProgress(phase, *at)))
    manifest = _manifest(found, shards, asked, journal.tokenizer, plan, vocab_size)
    write_atomic(folder / MANIFEST, manifests.encode(manifest))
    journal.end()
    return manifest


def _key(found: Survey, asked: _Asked, given: _Given | None) -> str:
    """Of the text and all parameters: what an interrupted run has finished is only for one that is asked the same."""
    facts = [
        FORMAT,
        asked.parameters,
        asked.vocab_size,
        asked.end_of_document,
        sha256_bytes(given.text.encode()) if given else None,
        wire.plain(tuple[Source, ...], found.sources),
    ]
    return hashlib.sha256(json.dumps(facts).encode() + found.kinds.tobytes()).hexdigest()


def _sample(found: Survey, asked: _Asked, bytes_max: int, crew: Crew, report: Report) -> list[str]:
    return sample(
        found,
        asked.reading,
        bytes_max,
        asked.held_out,
        crew,
        lambda *at: report(PrepareProgress("training the tokenizer", *at)),
    )


def _some(texts: Sequence[str]) -> list[bytes]:
    """The first of them, up to _COMPARED_BYTES."""
    found, left = [], _COMPARED_BYTES
    for text in texts:
        if left <= 0:
            break
        found.append(text[:left].encode())
        left -= len(found[-1])
    return found


def _manifest(found: Survey, shards: Sequence[Shard], asked: _Asked, tokenizer: FileEntry, plan: Plan, vocab_size: int) -> Manifest:
    text_bytes = _text_bytes(found, asked)
    counts = {
        split: SplitCount(
            tokens=sum(shard.tokens for shard in shards if shard.split == split),
            documents=len(found.of(split)),
            text_bytes=text_bytes[split],
        )
        for split in SPLITS
    }
    return Manifest(
        format=FORMAT,
        vocab_size=vocab_size,
        dtype=plan.dtype,
        end_of_document=plan.end_of_document,
        tokenizer=tokenizer,
        splits=counts,
        shards=tuple(shards),
        sources=found.sources,
        parameters=asked.parameters,
    )


def _text_bytes(found: Survey, asked: _Asked) -> dict[Split, int]:
    if found.lone:
        parts = halves(only_document(found, asked.reading), asked.held_out)
        return {split: len(part) for split, part in zip(SPLITS, parts, strict=True)}
    return {split: int(found.sizes[found.of(split)].sum()) for split in SPLITS}


def _written(path: Path, data: bytes) -> FileEntry:
    write_atomic(path, data)
    return FileEntry(name=path.name, size_bytes=len(data), sha256=sha256_bytes(data))
