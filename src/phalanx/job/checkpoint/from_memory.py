"""The state of a gang made of the snapshots of another: any number of ranks, from the memory of all the places it had before.

One rank's snapshot after the other is looked at: torch's load planner says which pieces of its parts belong here. So a rank never
has more of other nodes' memory than that of one rank.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from phalanx.core.errors import CheckpointError, NotFound
from phalanx.job.checkpoint.commit import RNG
from phalanx.job.checkpoint.load_plan import Boxes, BoxPlanner, boxes_of
from phalanx.job.checkpoint.local import local_of
from phalanx.job.checkpoint.owners import DTYPES, specs_of
from phalanx.job.checkpoint.rng import rng_name
from phalanx.job.checkpoint.sealed import Sealed
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.staged import copy_in, flat
from phalanx.job.checkpoint.whole import TensorSpec

Pieces = Mapping[str, Mapping[tuple[int, ...], tuple[Part, memoryview]]]
"""Tensor to where each of its parts begins to the part and its bytes."""
Filled = dict[str, dict[tuple[tuple[int, ...], tuple[int, ...]], int]]
"""Of each tensor, by the box and the place in it where a piece was put, how many elements that has."""


def load(
    sources: Sequence[Callable[[], Sealed]],
    step: int,
    generation: int,
    state: dict[str, torch.Tensor],
    rank: int,
    tensors: Mapping[str, TensorSpec] | None = None,
) -> dict[str, torch.Tensor]:
    """Fills this rank's tensors, sharded as they are, without a collective. sources: by rank of the gang that was. The random
    generators' states that `rank` had in it, by kind of device; empty when it had no such rank. tensors: see save.Identity.

    Raises NotFound when something has gone since it was told, CheckpointError when it is of another model or not all of it is
    there: the tensors are then in no state to go on from.
    """
    place, generators = f"step {step} in memory", dict[str, torch.Tensor]()
    filled: Filled = {name: {} for name in state}
    boxes_here = boxes_of(state)
    wanted, names = {**(tensors or {}), **specs_of(state)}, {kind: rng_name(rank, kind) for kind in ("cpu", "cuda")}
    for source in sources:
        with contextlib.closing(source()) as sealed:
            seal = sealed.seal_of(step, generation)
            pieces = _pieces(sealed.parts(step, generation))
            _check(place, pieces, wanted)
            _fill(pieces, state, boxes_here, filled)
            generators |= {kind: _tensor(*pieces[name][0,]).clone() for kind, name in names.items() if name in pieces}
            if not sealed.is_whole(seal):
                raise NotFound("snapshot", step, "it was overwritten while it was read")
            del pieces
    for name, boxes in filled.items():
        if sum(boxes.values()) != local_of(state[name]).numel():
            raise CheckpointError(place, name, "has a hole: not all of it lies in memory")
    return generators


def _pieces(parts: Sequence[tuple[Part, memoryview]]) -> Pieces:
    found: dict[str, dict[tuple[int, ...], tuple[Part, memoryview]]] = {}
    for part, data in parts:
        found.setdefault(part.name, {})[part.start] = (part, data)
    return found


def _check(place: str, pieces: Pieces, wanted: Mapping[str, TensorSpec]) -> None:
    for name, parts in pieces.items():
        if name.startswith(RNG):
            continue
        part = next(iter(parts.values()))[0]
        was, now = TensorSpec(dtype=part.dtype, shape=part.shape), wanted.get(name)
        if now is None:
            raise CheckpointError(place, name, "is kept but not part of this run")
        if was != now:
            raise CheckpointError(place, name, f"is kept as {was.dtype} {was.shape}, this run has {now.dtype} {now.shape}")


def _fill(pieces: Pieces, state: Mapping[str, torch.Tensor], boxes: Mapping[str, Boxes], filled: Filled) -> None:
    """From one rank's parts. Where replicas give the same, the first one counts."""
    here = {name: state[name] for name in pieces if name in state}
    metadata = Metadata(state_dict_metadata={name: _metadata(pieces[name]) for name in here})
    planner = BoxPlanner(here, boxes, metadata)
    whole: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for item in planner.finish_plan(planner.create_local_plan()).items:
        part, data = pieces[item.storage_index.fqn][tuple(item.storage_index.offset or ())]
        box = tuple(slice(at, at + size) for at, size in zip(item.storage_offsets, item.lengths, strict=True))
        target, at = planner.resolve_tensor(item).detach(), (tuple(item.dest_index.offset or ()), tuple(item.dest_offsets))
        if at not in filled[part.name]:
            source = _tensor(part, data)[box]
            if target.is_contiguous() and source.is_contiguous():
                whole.setdefault(target.device, []).append((flat(target), flat(source)))
            else:
                target.copy_(source)
            filled[part.name][at] = math.prod(item.lengths)
    for device, copies in whole.items():
        copy_in(copies, device)


def _metadata(pieces: Mapping[tuple[int, ...], tuple[Part, memoryview]]) -> TensorStorageMetadata:
    parts = [part for part, _ in pieces.values()]
    chunks = [ChunkStorageMetadata(torch.Size(part.start), torch.Size(part.size)) for part in parts]
    return TensorStorageMetadata(TensorProperties(dtype=DTYPES[parts[0].dtype]), torch.Size(parts[0].shape), chunks)


def _tensor(part: Part, data: memoryview) -> torch.Tensor:
    """In place: it must only be read."""
    if not data.nbytes:
        return torch.empty(part.size, dtype=DTYPES[part.dtype])
    with _read_only_is_meant():
        return torch.frombuffer(data, dtype=torch.uint8).view(DTYPES[part.dtype]).reshape(part.size)


@contextlib.contextmanager
def _read_only_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        yield
