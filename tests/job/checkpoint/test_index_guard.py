"""The guard of a checkpoint's index: members of enumerations, however this Python pickles them, and nothing else by `getattr`."""

import pickle
from pathlib import Path

import pytest
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from phalanx.core.errors import CheckpointError
from phalanx.job.checkpoint.index import INDEX, read_index


class ByGetattr:
    """Pickles as `getattr(owner, name)`, as some Pythons do with an enumeration's member."""

    def __init__(self, owner: object, name: str) -> None:
        self.asked = (owner, name)

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return getattr, self.asked


def index_with(folder: Path, planner_data: object) -> Path:
    (folder / INDEX).write_bytes(pickle.dumps(Metadata(state_dict_metadata={}, planner_data=planner_data)))
    return folder


def test_a_member_of_an_enumeration_pickled_by_getattr_is_read(tmp_path: Path) -> None:
    folder = index_with(tmp_path, ByGetattr(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT"))
    assert read_index(folder).planner_data is _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT


@pytest.mark.parametrize(("owner", "name"), [(_MEM_FORMAT_ENCODING, "__class__"), (Metadata, "__init__"), ({}, "pop")])
def test_getattr_reaches_nothing_else(tmp_path: Path, owner: object, name: str) -> None:
    with pytest.raises(CheckpointError, match="which no shard index needs"):
        read_index(index_with(tmp_path, ByGetattr(owner, name)))
