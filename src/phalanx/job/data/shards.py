"""The shards of one split as one stretch of tokens, each block of them checked when it is first read."""

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.block_sums import BLOCK_BYTES, block_sum, num_blocks, read_sums
from phalanx.job.data.manifest import REMAKE, FileEntry, Manifest, Shard
from phalanx.job.data.mapping import MappedFiles
from phalanx.job.data.megatron import DTYPES, WIDTHS

Phase = Literal["store", "cache", "read", "verify"]
Watch = Callable[[Phase, float, float], None]
"""Told what took time while blocks were read first: the phase (see `waits`), its begin and its end by `time.monotonic`."""

Refetch = Callable[[FileEntry, int], None]
"""Asked, with the file and the number of the block, before anything of it counts as bad: brings the file again, from where it came.
What it raises is raised."""

_SHIFT: Final = BLOCK_BYTES.bit_length() - 1


class Shards:
    """`tokens[place]` of all shards, where place = `places[s] + i` for token i of shard s; and which blocks may be read.

    checked: of each block, that it was read and is what `prepare` wrote; the block of a place is place // block_tokens, since a
    shard's slot begins with a block. whole: of each shard, that all of its blocks are checked. data: manifest hash, for errors.
    refetch: how a file is brought again that is damaged or missing; None for a folder that is itself the source, where a block is
    read once more, from the disk.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, shards: Sequence[Shard], data: str = "", refetch: Refetch | None = None
    ) -> None:
        self._folder = folder
        self._shards = shards
        self._data = data
        self._refetch = refetch
        self._vocab_size = manifest.vocab_size
        width = WIDTHS[manifest.dtype]
        self._files = MappedFiles([shard.bin_bytes for shard in shards], BLOCK_BYTES)
        self.tokens = self._files.bytes.view(DTYPES[manifest.dtype])
        self.places = self._files.begins[:-1] // width
        self.lengths = np.asarray([shard.tokens for shard in shards], dtype=np.int64)
        self.ends = np.cumsum(self.lengths)
        self.whole = np.zeros(len(shards), dtype=np.bool_)
        self.checked = np.zeros(int(self._files.begins[-1]) >> _SHIFT, dtype=np.bool_)
        self.block_tokens = BLOCK_BYTES // width
        self._sums: dict[int, NDArray[np.uint64]] = {}
        self._inodes: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._scratch = threading.local()

    def check(self, block: int, watch: Watch | None = None) -> int:
        """Reads a block for the first time, by its number over all shards, and gives the number of its shard.

        Raises BadBlock when the block is not what `prepare` wrote, and another DataError when the shard is not there in its size.
        Two threads may do so at once for one block.
        """
        shard = int(np.searchsorted(self._files.begins, block << _SHIFT, side="right")) - 1
        at = block - self._blocks(shard).start
        try:
            self._check(shard, at, watch)
        except DataError as error:
            if not self._bring_again(shard, at, error):
                raise
            self._check(shard, at, watch)
        self.checked[block] = True
        self.whole[shard] = self.checked[self._blocks(shard)].all()
        return shard

    def numbered(self, shard_sha256: str) -> list[int]:
        """Numbers of the shards whose tokens have this hash."""
        return [number for number, shard in enumerate(self._shards) if shard.bin_sha256 == shard_sha256]

    def trust_all(self) -> None:
        """After the files were checked whole by other means: maps them all."""
        for shard in range(len(self._shards)):
            with self._opened(shard):
                pass
        self.checked[:] = self.whole[:] = True

    def _check(self, shard: int, at: int, watch: Watch | None) -> None:
        with self._opened(shard) as descriptor:
            began = time.monotonic()
            data = self._read(shard, descriptor, at)
            read = time.monotonic()
            self._compare(shard, at, data)
        if watch is not None:
            watch("read", began, read)
            watch("verify", read, time.monotonic())

    def _bring_again(self, shard: int, at: int, error: DataError) -> bool:
        """Whether there is something new to read."""
        bin_, sums = self._shards[shard].bin, self._shards[shard].xxh3
        if self._refetch is not None:
            self._refetch(sums if sums is not None and error.field == sums.name else bin_, at)
        elif isinstance(error, BadBlock):
            with self._opened(shard) as descriptor:  # what went wrong between disk and memory is then read from the disk
                os.posix_fadvise(descriptor, at * BLOCK_BYTES, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
        else:
            return False
        return True

    def _blocks(self, shard: int) -> slice:
        first = int(self._files.begins[shard]) >> _SHIFT
        return slice(first, first + num_blocks(self._shards[shard].bin_bytes))

    @contextmanager
    def _opened(self, shard: int) -> Iterator[int]:
        """The shard's file, open, and mapped from now on."""
        entry = self._shards[shard].bin
        path = self._folder / entry.name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(entry, path, error) from error
        try:
            with self._lock:
                self._admit(shard, entry, descriptor)
            yield descriptor
        except OSError as error:
            raise unreadable(entry, path, error) from error
        finally:
            os.close(descriptor)

    def _admit(self, shard: int, entry: FileEntry, descriptor: int) -> None:
        """Maps the file, and anew when another one has taken its name: what is checked must be what is read."""
        status = os.fstat(descriptor)
        inode = (status.st_dev, status.st_ino)
        if self._inodes.get(shard) == inode:
            return
        if status.st_size != entry.size_bytes:
            raise wrong_size(entry, self._folder, status.st_size)
        sums = self._shards[shard].xxh3
        found = read_sums(read_small(self._folder, sums)) if sums else np.zeros(0, dtype=np.uint64)
        self.checked[self._blocks(shard)] = False
        self._files.map(shard, descriptor, entry.size_bytes)
        self._sums[shard], self._inodes[shard] = found, inode

    def _read(self, shard: int, descriptor: int, at: int) -> NDArray[np.uint8]:
        """By `pread`: a disk that fails is an error then, and not the end of the process, as it would be through the mapping."""
        entry = self._shards[shard].bin
        if not hasattr(self._scratch, "block"):
            self._scratch.block = np.empty(BLOCK_BYTES, dtype=np.uint8)
        data: NDArray[np.uint8] = self._scratch.block[: entry.size_bytes - at * BLOCK_BYTES]
        view, filled = data.data, 0
        while filled < len(view):
            try:
                got = os.preadv(descriptor, [view[filled:]], at * BLOCK_BYTES + filled)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                raise self._bad(shard, at, len(view), "cannot be read from the disk") from error
            if got == 0:
                raise wrong_size(entry, self._folder, at * BLOCK_BYTES + filled)
            filled += got
        return data

    def _compare(self, shard: int, at: int, data: NDArray[np.uint8]) -> None:
        wanted, found = int(self._sums[shard][at]), block_sum(data.data)
        if found != wanted:
            raise self._bad(shard, at, len(data), f"are damaged: their XXH3 is {found:016x}, not {wanted:016x}")
        entry = self._shards[shard].bin
        tokens = data.view(self.tokens.dtype)
        least = int(tokens.min()) if tokens.dtype.kind == "i" else 0
        check_range(entry, f"block {at} of {self._folder / entry.name}", least, int(tokens.max()), self._vocab_size)

    def _bad(self, shard: int, at: int, length: int, what: str) -> BadBlock:
        entry = self._shards[shard].bin
        where = f"bytes {at * BLOCK_BYTES} to {at * BLOCK_BYTES + length} of {self._folder / entry.name}"
        block = Block(data=self._data, shard=entry.sha256, block=at)
        return BadBlock(entry.name, f"block {at}", f"{where} {what}; restore it, or {REMAKE}", block)


DIGITS: Final = 12
"""Of a hash that is told."""


def check_range(entry: FileEntry, where: object, least: int, most: int, vocab_size: int) -> None:
    """An id past the vocabulary would be read past the end of an embedding."""
    if least < 0 or most >= vocab_size:
        token = most if most >= vocab_size else least
        raise DataError(entry.name, token, f"{where} has this token, outside the vocabulary of {vocab_size}; {REMAKE}")


def read_small(folder: Path, entry: FileEntry) -> bytes:
    """A file that fits into memory, checked against the manifest."""
    path = folder / entry.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(entry, path, error) from error
    if len(data) != entry.size_bytes:
        raise wrong_size(entry, folder, len(data))
    if (found := hashlib.sha256(data).hexdigest()) != entry.sha256:
        raise damaged(entry, folder, found)
    return data


def unreadable(entry: FileEntry, path: Path | str, error: OSError) -> DataError:
    folder = str(path).removesuffix(f"/{entry.name}")
    return DataError(entry.name, None, f"cannot be read ({error.strerror}) in {folder}; restore it, or {REMAKE}")


def wrong_size(entry: FileEntry, folder: Path, size: int) -> DataError:
    """Lists of jobs have room for some words: they must be the ones that matter."""
    fix = f"in {folder} it should have {entry.size_bytes} bytes and has {size}; restore it, or {REMAKE}"
    return DataError(entry.name, None, fix)


def damaged(entry: FileEntry, where: Path | str, found: str) -> DataError:
    sums = f"its SHA-256 should be {entry.sha256[:DIGITS]} and is {found[:DIGITS]}"
    return DataError(entry.name, None, f"in {where} it is damaged: {sums}; restore it, or {REMAKE}")
