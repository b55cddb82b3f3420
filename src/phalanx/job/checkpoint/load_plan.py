"""torch's load planner over a state some of whose tensors have their rows in another order than checkpoints (`rows`): of those a
rank has several boxes."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex

from phalanx.job.checkpoint.owners import held_parts
from phalanx.job.checkpoint.rows import State, rows_in
from phalanx.job.checkpoint.shard_file import Part


class Boxes:
    """What a rank has of a tensor, as in checkpoints, in the protocol by which torch asks a tensor for its chunks."""

    def __init__(self, shape: torch.Size, parts: Sequence[tuple[Part, Tensor]]) -> None:
        self._shape = shape
        self._parts = {part.start: piece for part, piece in parts}

    def size(self) -> torch.Size:
        """Of the whole tensor."""
        return self._shape

    def at(self, index: MetadataIndex) -> Tensor:
        """The box that begins there, in place."""
        return self._parts[tuple(index.offset or ())]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(start), piece.shape) for start, piece in self._parts.items()]


def boxes_of(state: Mapping[str, Tensor]) -> dict[str, Boxes]:
    """Of the tensors whose rows lie otherwise."""
    rows = rows_in(state)
    return {name: Boxes(state[name].shape, held_parts(State({name: state[name]}, {name: rows[name]}))) for name in rows}


class BoxPlanner(DefaultLoadPlanner):
    """boxes: from `boxes_of`; of tensors that are not in the state they are left out."""

    def __init__(self, state: Mapping[str, Tensor], boxes: Mapping[str, Boxes], metadata: Metadata) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._boxes = {name: one for name, one in boxes.items() if name in state}
        self.set_up_planner(dict(state), metadata, is_coordinator=True)
        self.state_dict = {**self.state_dict, **self._boxes}

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Where what is read of a tensor belongs."""
        found = self._boxes.get(index.fqn)
        return super().lookup_tensor(index) if found is None else found.at(index)
