"""`phalanx data prepare`: text files to a tokenizer, Megatron shards and a manifest.

The folder is built beside its name and renamed into place when all of it, the manifest last, is on disk: a kill at any moment
leaves either no folder or the one before, and the next run clears what was left beside.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from phalanx.core.errors import Conflict, DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data import megatron, tokens
from phalanx.job.data.corpus import Document, divide, scan
from phalanx.job.data.default_corpus import STDLIB
from phalanx.job.data.manifest import FORMAT, MANIFEST, SPLITS, TOKENIZER, FileEntry, Manifest, Shard, Source, Split, SplitCount
from phalanx.job.data.shard_writer import ShardWriter
from phalanx.storage.atomic import fsync_folder, refused, write_atomic
from phalanx.storage.hashes import sha256_bytes, sha256_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRAINING_TEXT_BYTES_MAX: Final = 16 * 10**6
"""Of text shown to the tokenizer's trainer. A vocabulary of thousands changes little past it; training time goes on growing."""

SHARD_TOKENS_MAX: Final = 64 * 2**20
_BATCH_BYTES: Final = 10**6


@dataclass(frozen=True, slots=True)
class PrepareProgress:
    """How far one phase is, in bytes of text. `total_bytes` is 0 while it is not known."""

    phase: Literal["reading", "training the tokenizer", "encoding"]
    done_bytes: int
    total_bytes: int


Report = Callable[[PrepareProgress], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The parameters that decide the result, besides the text."""

    vocab_size: int
    held_out: float
    shard_tokens_max: int
    training_text_bytes_max: int

    def check(self) -> None:
        if not tokens.VOCAB_MIN <= self.vocab_size <= tokens.VOCAB_MAX:
            raise DataError("vocab_size", self.vocab_size, f"write a number from {tokens.VOCAB_MIN} to {tokens.VOCAB_MAX}")
        if not 0 < self.held_out <= 0.5:
            raise DataError("held_out", self.held_out, "write a share above 0, at most 0.5")
        if self.shard_tokens_max < 1:
            raise DataError("shard_tokens_max", self.shard_tokens_max, "write a whole number above 0")


def prepare(
    paths: Sequence[str | Path],
    out: Path,
    vocab_size: int = 4096,
    held_out: float = 0.05,
    progress: Report | None = None,
    force: bool = False,
    shard_tokens_max: int = SHARD_TOKENS_MAX,
    training_text_bytes_max: int = TRAINING_TEXT_BYTES_MAX,
) -> Manifest:
    """Makes the folder `out` of the text in `paths` (files, folders, or 'stdlib:') and returns its manifest.

    out: absent, empty, or prepared before, which is replaced; any other folder only with `force`.
    held_out: share of the documents, chosen by a hash of their names, that training never sees.
    Raises DataError, SetupError (no `tokenizers`, or a place that cannot be written), StoreUnavailable (disk full), Conflict.
    """
    asked = _Asked(vocab_size, held_out, shard_tokens_max, training_text_bytes_max)
    asked.check()
    report = progress or (lambda _: None)
    if not paths:
        raise DataError("paths", "(none)", f"name files or folders with text, or {STDLIB}")
    tokens.library_version()  # a missing extra shows before the reading
    out = Path(os.path.realpath(out))
    _check_out(out, paths, force)
    documents, sources = scan(paths, out, lambda done: report(PrepareProgress("reading", done, 0)))
    if not documents:
        skipped = sum(source.skipped_binary + source.skipped_not_utf8 + source.skipped_unreadable for source in sources)
        raise DataError("paths", ", ".join(map(str, paths)), f"hold no text ({skipped} files skipped); name UTF-8 text files")
    try:
        with _fresh_folder(out) as folder:
            manifest = _fill(folder, documents, sources, asked, report)
            _move_into_place(folder, out)
    except OSError as error:
        raise refused(out, error) from error
    return manifest


def _check_out(out: Path, paths: Sequence[str | Path], force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise DataError("out", str(out), "is a file; name a folder")
    if out in (Path.home(), Path.cwd(), *Path.cwd().parents):
        raise DataError("out", str(out), "is your home, the folder you stand in or one above it; name a folder of its own")
    for path in paths:
        real = Path(os.path.realpath(path))
        if str(path) != STDLIB and out in (real, *real.parents) and out.exists():
            raise DataError("out", str(out), f"holds the text itself ({path}) and would be replaced; name another folder")
    try:
        taken = out.exists() and any(out.iterdir()) and not force
        if taken:
            manifests.read(out)
    except DataError as error:
        raise DataError(
            "out", str(out), "is neither empty nor a prepared folder; name another, or replace it with --force"
        ) from error
    except OSError as error:
        raise refused(out, error) from error


@contextlib.contextmanager
def _fresh_folder(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, locked against a second run; gone afterwards unless it was moved away."""
    folder = out.parent / f".{out.name}.preparing"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _locked(descriptor, folder):
            raise Conflict("out", str(out), "another prepare is writing it; wait for it, or name another folder")
        try:
            _empty(folder)
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _locked(descriptor: int, folder: Path) -> bool:
    """Whether the open folder is ours alone, and still the one of that name: another run may have moved it into place."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _move_into_place(folder: Path, out: Path) -> None:
    """Readers that mapped the old shards keep them: their files live until unmapped."""
    old = folder.with_name(f".{out.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    folder.rename(out)
    fsync_folder(out.parent)
    shutil.rmtree(old, ignore_errors=True)


def _fill(folder: Path, documents: list[Document], sources: list[Source], asked: _Asked, report: Report) -> Manifest:
    parts = divide(documents, asked.held_out)
    tokenizer = tokens.train(_training_texts(parts["train"], asked.training_text_bytes_max, report), asked.vocab_size)
    write_atomic(folder / TOKENIZER, tokenizer.to_str(pretty=True).encode())
    total = sum(document.end - document.start for document in documents)
    shards: list[Shard] = []
    done = 0
    for split in SPLITS:
        writer = ShardWriter(folder, split, megatron.token_type(asked.vocab_size), asked.shard_tokens_max)
        for batch in _batches(parts[split]):
            writer.add(tokens.encode(tokenizer, [document.text() for document in batch]), tokens.end_id(tokenizer))
            done += sum(document.end - document.start for document in batch)
            report(PrepareProgress("encoding", done, total))
        shards += writer.finish()
    manifest = _manifest(folder, parts, shards, sources, asked, tokenizer)
    write_atomic(folder / MANIFEST, manifests.encode(manifest))
    return manifest


def _manifest(
    folder: Path,
    parts: dict[Split, list[Document]],
    shards: list[Shard],
    sources: list[Source],
    asked: _Asked,
    tokenizer: "Tokenizer",
) -> Manifest:
    counts = {
        split: SplitCount(
            tokens=sum(shard.tokens for shard in shards if shard.split == split),
            documents=len(parts[split]),
            text_bytes=sum(document.end - document.start for document in parts[split]),
        )
        for split in SPLITS
    }
    return Manifest(
        format=FORMAT,
        vocab_size=asked.vocab_size,
        dtype=megatron.token_type(asked.vocab_size),
        end_of_document=tokens.end_id(tokenizer),
        tokenizer=_entry(folder / TOKENIZER),
        splits=counts,
        shards=tuple(shards),
        sources=tuple(sources),
        parameters={
            "held_out": asked.held_out,
            "shard_tokens_max": asked.shard_tokens_max,
            "training_text_bytes_max": asked.training_text_bytes_max,
            "tokenizers": tokens.library_version(),
        },
    )


def _training_texts(documents: Sequence[Document], bytes_max: int, report: Report) -> Iterator[str]:
    """Texts up to `bytes_max` in the order of their hashes, an even choice that the order of the paths does not change."""
    total = min(bytes_max, sum(document.end - document.start for document in documents))
    left = total
    for document in sorted(documents, key=lambda document: (sha256_bytes(document.name.encode()), document.sha256)):
        if left <= 0:
            return
        text = document.text()
        yield text if document.end - document.start <= left else text[:left]  # characters: a little over is fine
        left -= document.end - document.start
        report(PrepareProgress("training the tokenizer", total - max(0, left), total))


def _batches(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Runs of documents of about _BATCH_BYTES together, which the library encodes on all cores."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.end - document.start
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _entry(path: Path) -> FileEntry:
    return FileEntry(name=path.name, size_bytes=path.stat().st_size, sha256=sha256_file(path))
