"""A checkpoint as torch's distributed checkpoint reads one: its load planner cuts anew for any layout, this reader fetches.

Only parts that a rank needs are read, each once, straight into place where they fit as they are, and each is hashed before the
caller gets to use anything. Scripts may give it to `torch.distributed.checkpoint.load(state, storage_reader=...)`.
"""

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future as ReadAhead
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock
from typing import Any, Final, TypeAlias

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from phalanx.job.checkpoint import shard_file
from phalanx.job.checkpoint.folder import Folder, Opened, folder_at
from phalanx.job.checkpoint.manifest import MANIFEST
from phalanx.job.checkpoint.owners import DTYPES, host_bytes
from phalanx.job.checkpoint.shard_file import PartEntry
from phalanx.job.checkpoint.whole import Checkpoint, Located

_AHEAD: Final = 3
"""Parts that are read, beyond those on their way, while one is hashed; with PART_BYTES_MAX what bounds the memory."""


class PartReader(StorageReader):
    """Reads a checkpoint whose indexes were checked. Raises CheckpointError from `read_data` for a damaged part,
    StoreUnavailable and SetupError for an object store that cannot be read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._located = {(name, one.entry.start): one for name, parts in checkpoint.tensors.items() for one in parts}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """One reader reads one checkpoint."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return Metadata(
            state_dict_metadata={name: _metadata(parts) for name, parts in self._checkpoint.tensors.items()},
            storage_meta=StorageMeta(checkpoint_id=str(self._checkpoint.folder)),
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Nothing is shared between the ranks."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return folder_at(str(checkpoint_id)).has(MANIFEST)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """In the order in which the parts lie in the files; what comes next is read while this is hashed."""
        by_part: dict[tuple[str, tuple[int, ...]], list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            by_part[item.storage_index.fqn, tuple(item.storage_index.offset or ())].append(item)
        wanted = sorted(by_part, key=lambda key: (self._located[key].shard.rank, self._located[key].entry.offset))
        folder = self._checkpoint.folder
        with ExitStack() as files, ThreadPoolExecutor(folder.reads_at_once, "checkpoint-read") as store:
            opened = _Files(folder, files)
            ahead: deque[tuple[_Batch, ReadAhead[None]]] = deque()
            reads = (_Read(folder, self._located[key], by_part[key], planner) for key in wanted)
            for batch in _batches(reads, folder.batch_bytes):
                ahead.append((batch, store.submit(_fetch, batch, opened)))
                if len(ahead) >= folder.reads_at_once + _AHEAD:
                    _finish(*ahead.popleft())
            while ahead:
                _finish(*ahead.popleft())
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _finish(batch: "_Batch", fetched: "ReadAhead[None]") -> None:
    fetched.result()
    for read in batch:
        read.deliver()


def _batches(reads: "Iterable[_Read]", bytes_max: int) -> "Iterator[_Batch]":
    """Neighbours in one file together, as far as that gains something."""
    batch: _Batch = []
    for read in reads:
        if batch and not (batch[-1].is_before(read) and sum(one.entry.length for one in (*batch, read)) <= bytes_max):
            yield batch
            batch = []
        batch.append(read)
    if batch:
        yield batch


def _fetch(batch: "_Batch", opened: "_Files") -> None:
    located = batch[0].located
    shard_file.read_parts(opened.of(located), opened.folder, located.shard, located.entry, [read.room() for read in batch])


class _Files:
    """Open shards, by file name; each is opened by the first thread that reads of it."""

    def __init__(self, folder: Folder, files: ExitStack) -> None:
        self.folder, self._files = folder, files
        self._open: dict[str, Opened] = {}
        self._one_at_a_time = Lock()

    def of(self, located: Located) -> Opened:
        name = located.shard.file
        with self._one_at_a_time:
            if name not in self._open:
                self._open[name] = self._files.enter_context(shard_file.opened(self.folder, located.shard))
            return self._open[name]


class _Read:
    """One part on its way from the store to where the planner wants it."""

    def __init__(self, folder: Folder, located: Located, items: list[ReadItem], planner: LoadPlanner) -> None:
        self.located = located
        self._folder = folder
        self._targets = [(item, planner.resolve_tensor(item).detach()) for item in items]
        self._commit: Callable[[ReadItem, torch.Tensor], None] = planner.commit_tensor
        self._data = memoryview(b"")

    @property
    def entry(self) -> PartEntry:
        return self.located.entry

    def is_before(self, other: "_Read") -> bool:
        """Whether the other begins where this one ends."""
        return self.located.shard is other.located.shard and self.entry.offset + self.entry.length == other.entry.offset

    def room(self) -> memoryview:
        """Where its bytes shall be put."""
        self._data = self._in_place() or memoryview(bytearray(self.entry.length))
        return self._data

    def deliver(self) -> None:
        entry = self.entry
        shard_file.check(self._folder, self.located.shard, entry, self._data)
        if self._in_place() is None and entry.length:
            whole = torch.frombuffer(self._data, dtype=torch.uint8).view(DTYPES[entry.dtype]).reshape(entry.size)
            for item, target in self._targets:
                box = tuple(slice(at, at + size) for at, size in zip(item.storage_offsets, item.lengths, strict=True))
                target.copy_(whole[box])
        self._data = memoryview(b"")
        for item, target in self._targets:
            self._commit(item, target)

    def _in_place(self) -> memoryview | None:
        """The target's own memory, where the part belongs there whole and as it is."""
        entry = self.entry
        if len(self._targets) != 1 or not entry.length:
            return None
        target = self._targets[0][1]
        fits = tuple(target.shape) == entry.size and target.dtype == DTYPES[entry.dtype]
        return host_bytes(target) if fits and target.is_contiguous() and target.device.type == "cpu" else None


_Batch: TypeAlias = list[_Read]
"""Parts that are read at once."""


def _metadata(parts: tuple[Located, ...]) -> TensorStorageMetadata:
    first = parts[0].entry
    chunks = [ChunkStorageMetadata(torch.Size(one.entry.start), torch.Size(one.entry.size)) for one in parts]
    return TensorStorageMetadata(TensorProperties(dtype=DTYPES[first.dtype]), torch.Size(first.shape), chunks)


def read_whole(checkpoint: Checkpoint, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Small tensors that lie in one part each: by the caller's name for them, those of `names`' values that are there."""
    found = {}
    for ours, name in names.items():
        for located in checkpoint.tensors.get(name, ())[:1]:
            data = memoryview(bytearray(located.entry.length))
            with shard_file.opened(checkpoint.folder, located.shard) as file:
                shard_file.read_parts(file, checkpoint.folder, located.shard, located.entry, [data])
            shard_file.check(checkpoint.folder, located.shard, located.entry, data)
            found[ours] = torch.frombuffer(data, dtype=torch.uint8).view(DTYPES[located.entry.dtype]).reshape(located.entry.size)
    return found
