"""Tokens that others made, as a prepared folder of ours: what every import has in common."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data import megatron, tokens
from phalanx.job.data.checked import fraction
from phalanx.job.data.manifest import (
    FORMAT,
    HELD_OUT_MAX,
    MANIFEST,
    TOKENIZER,
    FileEntry,
    Manifest,
    Shard,
    Source,
    Split,
    SplitCount,
)
from phalanx.job.data.order import mixed
from phalanx.job.data.place import building, check_out, move_into_place
from phalanx.job.data.prepare import SHARD_TOKENS_MAX
from phalanx.job.data.shard_writer import ShardWriter
from phalanx.job.data.standing import check_same
from phalanx.storage.atomic import refused, write_atomic
from phalanx.storage.hashes import sha256_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = NDArray[np.int64]
_SEED: Final = 0x4D4453
_RUN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportAsked:
    """What decides the result of every import, besides the tokens. tokenizer: the file that the ids are of."""

    tokenizer: Path
    end_of_document: str = tokens.END_OF_DOCUMENT
    held_out: float = 0.05
    shard_tokens_max: int = SHARD_TOKENS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What is imported. name: of the source. made_by: the command, and what else it was told. sha256: asked for once all documents
    were read."""

    name: str
    made_by: Mapping[str, str | int | float]
    sha256: Callable[[], str]


Read = Callable[[int, int], Iterable[Ids]]
"""From the size of the vocabulary and the id of the end mark to the documents, each with its end mark, all ids within it."""


def write_folder(out: Path, read: Read, what: Imported, asked: ImportAsked, inputs: Sequence[Path], force: bool) -> Path:
    """Makes the folder `out` of the documents, in their order; those that training never sees are chosen by a hash of
    their numbers.

    inputs: what is read, which must not lie in `out`. Raises DataError, SetupError (no `tokenizers`), StoreUnavailable (disk full),
    Conflict.
    """
    out = Path(os.path.realpath(out))
    check_out(out, [*inputs, asked.tokenizer], force)
    if not 0 <= fraction("held_out", asked.held_out) <= HELD_OUT_MAX:
        raise DataError("held_out", asked.held_out, f"write a share from 0 to {HELD_OUT_MAX}")
    tokenizer = tokens.given(asked.tokenizer)
    end = tokens.end_id(tokenizer, asked.end_of_document)
    wanted = {"format": FORMAT, "parameters": _parameters(what, asked), "tokenizer": wire.plain(FileEntry, _entry(tokenizer))}
    check_same(out, force, {**wanted, "end_of_document": end}, [what.name])
    try:
        with building(out, fresh=True) as folder:
            writing = _Writing(folder, tokens.vocab_size(tokenizer), end, asked)
            writing.write(read(writing.vocab_size, end))
            _commit(folder, what, writing, tokenizer, asked)
            move_into_place(folder, out, force)
    except OSError as error:
        raise refused(out, error) from error
    return out


def check_ids(ids: NDArray[np.integer], vocab_size: int, field: str, where: str) -> None:
    """Raises DataError for an id outside the vocabulary."""
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        odd = int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())
        raise DataError(field, odd, f"{where} has this id, outside the tokenizer's {vocab_size}; name its own")


def marked(ids: Ids, end: int) -> Ids:
    """With an end mark, where it has none."""
    return ids if ids.size and ids[-1] == end else np.concatenate([ids, np.array([end], dtype=np.int64)])


class _Writing:
    """Both splits, as documents come."""

    def __init__(self, folder: Path, vocab_size: int, end: int, asked: ImportAsked) -> None:
        self.vocab_size, self.end = vocab_size, end
        self.dtype = megatron.token_type(vocab_size)
        self.shards: list[Shard] = []
        self._held_out = asked.held_out
        self._folder, self._tokens_max = folder, asked.shard_tokens_max

    def write(self, documents: Iterable[Ids]) -> None:
        with (
            ShardWriter(self._folder, "train", self.dtype, self._tokens_max) as train,
            ShardWriter(self._folder, "held_out", self.dtype, self._tokens_max) as held_out,
        ):
            for number, ids in enumerate(documents):
                writer = held_out if self._is_held_out(number) else train
                writer.add_document(ids.astype(megatron.DTYPES[self.dtype]).tobytes())
            self.shards = [*train.finish(), *held_out.finish()]
        if not self.shards:
            raise DataError("documents", 0, "there is none in what is imported; name data that has some")

    def _is_held_out(self, number: int) -> bool:
        """The first document is trained on, so that there is one."""
        if number % _RUN == 0:
            drawn = mixed(_SEED, np.arange(number, number + _RUN, dtype=np.int64)).view(np.uint64)
            self._run = (drawn < np.uint64(int(self._held_out * 2**63) * 2)) & (np.arange(number, number + _RUN) > 0)
        return bool(self._run[number % _RUN])

    def count(self, split: Split) -> SplitCount:
        of_split = [shard for shard in self.shards if shard.split == split]
        return SplitCount(
            tokens=sum(one.tokens for one in of_split), documents=sum(one.documents for one in of_split), text_bytes=0
        )


def _commit(folder: Path, what: Imported, writing: _Writing, tokenizer: "Tokenizer", asked: ImportAsked) -> None:
    write_atomic(folder / TOKENIZER, _text(tokenizer))
    splits: Sequence[Split] = manifests.SPLITS
    counts = {split: writing.count(split) for split in splits}
    none = dict.fromkeys(("text_bytes", "skipped_binary", "skipped_not_utf8", "skipped_unreadable"), 0)
    source = Source(name=what.name, documents=sum(count.documents for count in counts.values()), sha256=what.sha256(), **none)
    manifest = Manifest(
        format=FORMAT,
        vocab_size=writing.vocab_size,
        dtype=writing.dtype,
        end_of_document=writing.end,
        tokenizer=_entry(tokenizer),
        splits=counts,
        shards=tuple(writing.shards),
        sources=(source,),
        parameters=_parameters(what, asked),
    )
    write_atomic(folder / MANIFEST, manifests.encode(manifest))


def _parameters(what: Imported, asked: ImportAsked) -> dict[str, str | int | float]:
    return {
        **what.made_by,
        "held_out": asked.held_out,
        "shard_tokens_max": asked.shard_tokens_max,
        "tokenizer": "given",
        "tokenizers": tokens.library_version(),
    }


def _text(tokenizer: "Tokenizer") -> bytes:
    return tokenizer.to_str(pretty=True).encode()


def _entry(tokenizer: "Tokenizer") -> FileEntry:
    text = _text(tokenizer)
    return FileEntry(name=TOKENIZER, size_bytes=len(text), sha256=sha256_bytes(text))
