"""The shard index (`.metadata`) of torch.distributed.checkpoint is a pickle: it may name only what an index is made of."""

import pickle
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from phalanx.core.errors import CheckpointError

INDEX: Final = ".metadata"
_ALLOWED: Final = {
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata", "ChunkStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
}  # fmt: skip


def _member(owner: Any, name: str) -> Any:
    """What an index may use `getattr` for: some Pythons (3.11.2 among them) pickle a member of an enumeration that way."""
    if not (isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__):
        raise pickle.UnpicklingError(f"asks {owner!r} for {name!r}, which no shard index needs")
    return owner[name]


class _IndexUnpickler(pickle.Unpickler):
    """Builds nothing but the classes above."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"names {module}.{name}, which no shard index needs")
        return super().find_class(module, name)


class GuardedReader(FileSystemReader):
    """torch's reader of shards, for a folder whose files all match their manifest; reads the index with the guard above."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the guard built: the pickle is read once, so no other one can take its place. Raises CheckpointError."""
        index = read_index(self._folder)
        index.storage_meta = index.storage_meta or StorageMeta()
        index.storage_meta.load_id = self.load_id  # as torch's own does
        return index


def read_index(folder: Path) -> Metadata:
    """The index, built by the guard. Raises CheckpointError when it names foreign classes or files out of the folder."""
    try:
        with (folder / INDEX).open("rb") as file:
            index = _IndexUnpickler(file).load()
    except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {folder.name}", INDEX, f"cannot be read: {error}") from error
    if not isinstance(index, Metadata):
        raise CheckpointError(f"checkpoint {folder.name}", INDEX, "is not a shard index")
    for info in (index.storage_data or {}).values():
        if Path(info.relative_path).name != info.relative_path:
            raise CheckpointError(f"checkpoint {folder.name}", INDEX, f"points out of the folder: {info.relative_path!r}")
    return index


def check_same(folder: Path, wanted: Mapping[str, torch.Tensor]) -> None:
    """Raises CheckpointError unless the index has exactly the wanted names, global shapes and dtypes.

    torch would cast silently to another dtype, and ignore a saved name that nobody asks for.
    """
    saved = read_index(folder).state_dict_metadata
    place = f"checkpoint {folder.name}"
    for name in sorted(saved.keys() ^ wanted.keys()):
        what = "is saved but not part of this run" if name in saved else "is part of this run but not saved"
        raise CheckpointError(place, name, what)
    for name, tensor in wanted.items():
        entry = saved[name]
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(place, name, "is not a tensor")
        if entry.size != tensor.shape or entry.properties.dtype != tensor.dtype:
            was, wants = (f"{dtype} {tuple(shape)}" for dtype, shape in _both(entry, tensor))
            raise CheckpointError(place, name, f"is saved as {was}, this run has {wants}")


def _both(entry: TensorStorageMetadata, tensor: torch.Tensor) -> list[tuple[torch.dtype, torch.Size]]:
    return [(entry.properties.dtype, entry.size), (tensor.dtype, tensor.shape)]
