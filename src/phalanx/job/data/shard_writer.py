"""Writes the shards of one split. All checksums are made of the bytes on their way to the disk, so nothing is read back, and while
a shard gets there the next one grows."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data import megatron
from phalanx.job.data.block_sums import BlockSums
from phalanx.job.data.manifest import FileEntry, Shard, Split, shard_name
from phalanx.storage.atomic import write_atomic
from phalanx.storage.hashes import sha256_bytes


class ShardWriter:
    """Whole documents to each shard, until `tokens_max` is reached: the shards depend on the documents and their order alone."""

    def __init__(
        self,
        folder: Path,
        split: Split,
        dtype: megatron.TokenType,
        tokens_max: int,
        done: Sequence[Shard] = (),
        finished: Callable[[Shard], None] = lambda _: None,
    ) -> None:
        """done: shards of this split that are there already. finished: told each new one once it is on the disk,
        by another thread."""
        self._folder = folder
        self._split: Split = split
        self._dtype: megatron.TokenType = dtype
        self._tokens_max = tokens_max
        self._shards = list(done)
        self._finished = finished
        self._open: _OpenShard | None = None
        self._on_its_way: Future[Shard] | None = None
        self._thread = ThreadPoolExecutor(1, "shard")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open is not None:
            self._open.abandon()
        self._thread.shutdown()

    def add(self, documents: Sequence[Sequence[int]], end: int) -> None:
        """Token ids of each document, to which the id of the end mark is added."""
        for ids in documents:
            self.add_document(megatron.token_bytes([*ids, end], self._dtype))

    def add_document(self, data: bytes | memoryview) -> None:
        """One document with its end mark, as `megatron.token_bytes` gives it."""
        self.add_run(data, np.asarray([len(data) // megatron.WIDTHS[self._dtype]]))

    def add_run(self, data: bytes | memoryview, lengths: NDArray[np.int64]) -> None:
        """Documents end to end, each with its end mark, and how many tokens each has."""
        ends, first = np.cumsum(lengths), 0
        while first < len(lengths):
            if self._open is None:
                number = len(self._shards) + (self._on_its_way is not None)
                self._open = _OpenShard(self._folder / f"{shard_name(self._split, number)}.bin")
            before = int(ends[first - 1]) if first else 0
            fits = int(ends.searchsorted(before + self._tokens_max - self._open.tokens))  # the document that fills the shard
            last = min(fits + 1, len(lengths))
            end, width = int(ends[last - 1]), megatron.WIDTHS[self._dtype]
            with memoryview(data)[before * width : end * width] as view:
                self._open.write(view, lengths[first:last].tolist())
            if self._open.tokens >= self._tokens_max:
                self._close(self._open)
            first = last

    def finish(self) -> list[Shard]:
        """Of the split, all on the disk."""
        if self._open is not None:
            self._close(self._open)
        self._settle()
        self._thread.shutdown()
        return self._shards

    def _close(self, shard: "_OpenShard") -> None:
        """One is on its way at a time, so what is waiting for the disk is bounded."""
        self._settle()
        self._open = None
        self._on_its_way = self._thread.submit(self._made, shard)

    def _made(self, shard: "_OpenShard") -> Shard:
        made = shard.close(self._split, self._dtype)
        self._finished(made)
        return made

    def _settle(self) -> None:
        """Waits for the shard that is on its way. Raises what its writing did."""
        on_its_way, self._on_its_way = self._on_its_way, None
        if on_its_way is not None:
            self._shards.append(on_its_way.result())


class _OpenShard:
    """A `.bin` that grows."""

    def __init__(self, path: Path) -> None:
        self.lengths: list[int] = []
        self.tokens = 0
        self._path = path
        self._file: IO[bytes] = path.open("wb")
        self._sha256 = hashlib.sha256()
        self._sums = BlockSums()

    def write(self, data: memoryview, lengths: list[int]) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self._sums.update(data)
        self.lengths += lengths
        self.tokens += sum(lengths)

    def abandon(self) -> None:
        self._file.close()

    def close(self, split: Split, dtype: megatron.TokenType) -> Shard:
        """All its files, durable."""
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        made = FileEntry(name=self._path.name, size_bytes=size, sha256=self._sha256.hexdigest())
        idx = _written(self._path.with_suffix(".idx"), megatron.index_bytes(self.lengths, dtype))
        xxh3 = _written(self._path.with_suffix(".xxh3"), self._sums.to_bytes())
        return Shard.of(split, self.tokens, len(self.lengths), bin=made, idx=idx, xxh3=xxh3)


def _written(path: Path, data: bytes) -> FileEntry:
    write_atomic(path, data)
    return FileEntry(name=path.name, size_bytes=len(data), sha256=sha256_bytes(data))
