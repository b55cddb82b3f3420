"""What holds two long arrays of moments: host memory, or a file that is read ahead and written behind.

Either shows both as tensors, by which checkpoints, digests and snapshots read and fill them between two steps. In a step they are
moved piece by piece: `begin`, `there` and `changed` for each, in turns that are taken again and again, and `finish`.
"""

import errno
import mmap
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.job.checkpoint.beside import PageLocks
from phalanx.job.checkpoint.owners import host_bytes
from phalanx.job.checkpoint.pages import map_now
from phalanx.job.train.offload.pieces import Piece
from phalanx.job.train.offload.place import DIR, new_file

TURNS: Final = 4
AHEAD: Final = TURNS - 2
"""Pieces that are begun before they are needed. Of the others one is computed with, and one is on its way back."""
_THREADS: Final = 4
Pair: TypeAlias = tuple[Tensor, Tensor]
"""First and second moments, or pieces of them."""


class Event(Protocol):
    """Of a device."""

    def synchronize(self) -> None:
        """Waits for it."""


class Store(Protocol):
    """arrays: all of it, in place. buffer_bytes: of host memory for what is on its way."""

    arrays: Pair
    buffer_bytes: int

    def begin(self, turn: int, piece: Piece) -> None:
        """It will be asked for."""

    def there(self, turn: int, piece: Piece) -> Pair:
        """A piece that was begun, in host memory that may be changed until `changed`."""

    def changed(self, turn: int, piece: Piece, when: Event) -> None:
        """It holds what shall be kept, once `when` is over."""

    def finish(self) -> None:
        """Until `arrays` show all that was changed."""

    def close(self) -> None:
        """What is not needed any more goes; nobody moves pieces then."""


class InMemory:
    """Page-locked for a GPU, which then reads and writes it by itself."""

    buffer_bytes = 0

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        """count: elements of one array."""
        self._locks = PageLocks(device, what="the optimiser's moments")
        size = count * dtype.itemsize
        if not size:
            self.arrays: Pair = (torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype))
            return
        memory = memoryview(mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        map_now(memory)  # what a node has too little of is missed now
        self._locks.lock(torch.frombuffer(memory, dtype=torch.uint8))
        self.arrays = _halves(memory, size, dtype)

    def begin(self, turn: int, piece: Piece) -> None:
        """Nothing."""

    def there(self, turn: int, piece: Piece) -> Pair:
        return _cut(self.arrays, piece.first, piece.count)

    def changed(self, turn: int, piece: Piece, when: Event) -> None:
        """Nothing: it was changed in place."""

    def finish(self) -> None:
        """Nothing."""

    def close(self) -> None:
        self._locks.release()


class OnDisk:
    """descriptor: of a file without a name. It goes with the last process that has it open, however that ends, and nothing of it
    is left. Only what is on its way is in host memory; what else the kernel keeps of the file it gives back when asked."""

    def __init__(self, folder: Path, count: int, dtype: torch.dtype, piece_count: int, device: torch.device) -> None:
        """Takes all the room at once. Raises SetupError where there is no such folder, or too little room."""
        self._folder, self._itemsize = folder, dtype.itemsize
        self._half = -(-count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor = new_file(folder)
        try:
            self.arrays = self._mapped(count, dtype)
        except BaseException:
            os.close(self.descriptor)
            raise
        locked = device.type != "cpu"
        self._buffers = [torch.empty(2, min(piece_count, count), dtype=dtype, pin_memory=locked) for _ in range(TURNS)]
        self.buffer_bytes = sum(buffer.nbytes for buffer in self._buffers)
        self._threads = ThreadPoolExecutor(_THREADS, "offload", _settle, (device,))
        self._reads: dict[int, list[Future[None]]] = {}
        self._writes: dict[int, Future[None]] = {}
        self._written: deque[int] = deque()  # places in the file, the newest last

    def begin(self, turn: int, piece: Piece) -> None:
        self._wait(self._writes.pop(turn, None))
        pair = self._pair(turn, piece)
        self._reads[turn] = [self._threads.submit(self._read, half, one, piece.first) for half, one in enumerate(pair)]

    def there(self, turn: int, piece: Piece) -> Pair:
        self._wait(*self._reads.pop(turn))
        return self._pair(turn, piece)

    def changed(self, turn: int, piece: Piece, when: Event) -> None:
        self._writes[turn] = self._threads.submit(self._write, self._pair(turn, piece), piece.first, when)

    def finish(self) -> None:
        self._wait(*self._writes.values())
        self._writes.clear()

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        os.close(self.descriptor)

    def _mapped(self, count: int, dtype: torch.dtype) -> Pair:
        size = 2 * self._half
        if not size:
            return torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype)
        try:
            os.posix_fallocate(self.descriptor, 0, size)
        except OSError as error:
            fix = f"{size} bytes of the optimiser's state do not fit there ({error.strerror}); make room, or give another folder"
            raise SetupError(DIR, str(self._folder), fix) from error
        self._mapping = mmap.mmap(self.descriptor, size, flags=mmap.MAP_SHARED)
        return _cut(_halves(memoryview(self._mapping), self._half, dtype), 0, count)

    def _pair(self, turn: int, piece: Piece) -> Pair:
        first, second = self._buffers[turn]
        return _cut((first, second), 0, piece.count)

    def _wait(self, *moving: Future[None] | None) -> None:
        try:
            for one in moving:
                if one is not None:
                    one.result()
        except OSError as error:
            raise StoreUnavailable(f"{self._folder}: the optimiser's state could not be moved ({error.strerror})") from error

    def _read(self, half: int, into: Tensor, first: int) -> None:
        offset = half * self._half + first * self._itemsize
        _all(os.preadv, self.descriptor, into, offset)
        self._let_go(offset, into.nbytes)

    def _write(self, pair: Pair, first: int, when: Event) -> None:
        when.synchronize()
        for half, data in enumerate(pair):
            offset = half * self._half + first * self._itemsize
            _all(os.pwritev, self.descriptor, data, offset)
            self._pass_on(offset, data.nbytes)

    def _pass_on(self, offset: int, size: int) -> None:
        """Has the disk begin to write now, and the kernel keep nothing of what was written some pieces ago: a pass over all of it
        would push out what others need, and none of it would still be there when it is read again."""
        self._let_go(offset, size)
        self._written.append(offset)
        if len(self._written) > 2 * TURNS:
            self._let_go(self._written.popleft(), size)

    def _let_go(self, offset: int, size: int) -> None:
        """Of what the kernel keeps of the file there; also of what a snapshot looked at through the mapping, or it would be kept.
        Nothing is lost by it, not even what is yet to be written."""
        first, end = offset // mmap.PAGESIZE * mmap.PAGESIZE, min(offset + size, 2 * self._half)
        self._mapping.madvise(mmap.MADV_DONTNEED, first, end - first)
        os.posix_fadvise(self.descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def _settle(device: torch.device) -> None:
    """In a thread, which would wait for an event by way of the first GPU, and take memory there, whatever its rank's."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _halves(memory: memoryview, size: int, dtype: torch.dtype) -> Pair:
    first, second = (torch.frombuffer(memory[start : start + size], dtype=dtype) for start in (0, size))
    return first, second


def _cut(pair: Pair, first: int, count: int) -> Pair:
    return pair[0][first : first + count], pair[1][first : first + count]


class _Move(Protocol):
    def __call__(self, descriptor: int, views: Sequence[memoryview], offset: int, /) -> int:
        """Bytes that were moved."""


def _all(move: _Move, descriptor: int, data: Tensor, offset: int) -> None:
    """The kernel moves at most 2 GiB at once, or less. Raises OSError."""
    view = host_bytes(data)
    while view.nbytes:
        count = move(descriptor, [view], offset)
        if not count:
            raise OSError(errno.EIO, "the file ends early")
        view, offset = view[count:], offset + count
