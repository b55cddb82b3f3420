"""Who writes what: every rank computes alone which parts of the state are its own, and each part has exactly one writer.

A sharded tensor's piece is written by the rank that has it. Of a piece that several ranks have (replicated along some mesh axes, or
a plain tensor, which all ranks have) the writer is the one of them that was given the fewest bytes so far; they all hold the same
pieces of the same sizes, go through them in the same order, and so agree without a word.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from phalanx.core.errors import Bug
from phalanx.job.checkpoint.local import local_of
from phalanx.job.checkpoint.rows import Rows, rows_in, stretches
from phalanx.job.checkpoint.shard_file import PART_BYTES_MAX, Part
from phalanx.job.checkpoint.whole import TensorSpec

CODES: Final = {
    torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64", torch.complex64: "C64", torch.float32: "F32", torch.int32: "I32",
    torch.uint32: "U32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int16: "I16", torch.uint16: "U16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip
DTYPES: Final = {code: dtype for dtype, code in CODES.items()}
Box = tuple[tuple[int, ...], tuple[int, ...]]


def local_parts(
    state: Mapping[str, torch.Tensor], mesh: DeviceMesh | None = None, part_bytes_max: int = PART_BYTES_MAX
) -> list[tuple[Part, torch.Tensor]]:
    """This rank's own parts of a state dictionary, each with its contiguous elements on the device where they are.

    mesh: of all ranks that have the same tensors, with a name for each axis; the whole gang, and each tensor's own mesh, when None.
    Needed where a tensor lies on some axes only: the ranks along the others are its replicas. Raises Bug for an element type that
    safetensors does not have.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    everyone = _ranks(mesh.mesh) if mesh is not None else tuple(range(dist.get_world_size() if dist.is_initialized() else 1))
    local = {name: local_of(one).detach() for name, one in state.items()}
    replicas, boxes = _memory(lambda tensor: _replicas(tensor, mesh)), _memory(_box)
    rows = rows_in(state)
    given: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    found: list[tuple[Part, torch.Tensor]] = []
    for name in sorted(local, key=lambda name: (-local[name].nbytes, name)):
        tensor = state[name]
        ranks = replicas(tensor) if isinstance(tensor, DTensor) else everyone
        owner = min(ranks, key=lambda one: (given[ranks][one], ranks.index(one)))
        given[ranks][owner] += max(local[name].nbytes, 1)
        if owner == rank:
            start = boxes(tensor) if isinstance(tensor, DTensor) else (0,) * tensor.dim()
            pieces = _parts(name, tensor, local[name], start, part_bytes_max, rows.get(name))
            found += [(part, piece.contiguous()) for part, piece in pieces]
    return found


def held_parts(state: Mapping[str, torch.Tensor], part_bytes_max: int = PART_BYTES_MAX) -> list[tuple[Part, torch.Tensor]]:
    """Every part that this rank has, those of which others have replicas too, in the order of names; each as a view of the state's
    own memory, so that writing to it changes the state. A view is not always contiguous. Raises Bug as `local_parts`."""
    boxes, rows = _memory(_box), rows_in(state)
    found: list[tuple[Part, torch.Tensor]] = []
    for name, tensor in sorted(state.items()):
        local = local_of(tensor).detach()
        start = boxes(tensor) if isinstance(tensor, DTensor) else (0,) * tensor.dim()
        found += _parts(name, tensor, local, start, part_bytes_max, rows.get(name))
    return found


def specs_of(state: Mapping[str, torch.Tensor]) -> dict[str, TensorSpec]:
    """Type and global shape of every tensor: the same on every rank."""
    return {name: TensorSpec(dtype=code_of(name, tensor.dtype), shape=tuple(tensor.shape)) for name, tensor in state.items()}


def code_of(name: str, dtype: torch.dtype) -> str:
    code = CODES.get(dtype)
    if code is None:
        raise Bug(f"{name} has elements of {dtype}, which safetensors cannot hold")
    return code


def host_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor: its own memory where that is the host's, else a copy."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


def _memory(answer: Callable[[DTensor], tuple[int, ...]]) -> Callable[[DTensor], tuple[int, ...]]:
    """Weights and moments lie alike, and torch takes a while to say how."""
    known: dict[object, tuple[int, ...]] = {}

    def remembered(tensor: DTensor) -> tuple[int, ...]:
        lies = (tensor.shape, tensor.device_mesh, tensor.placements)
        if lies not in known:
            known[lies] = answer(tensor)
        return known[lies]

    return remembered


def _box(tensor: DTensor) -> tuple[int, ...]:
    """Where the piece that this rank has begins."""
    chunk = tensor.__create_chunk_list__()[0]  # type: ignore[no-untyped-call]  # torch's protocol of checkpoints: one box
    return tuple(chunk.offsets)


def _parts(
    name: str, tensor: torch.Tensor, local: torch.Tensor, start: tuple[int, ...], part_bytes_max: int, rows: Rows | None
) -> Iterator[tuple[Part, torch.Tensor]]:
    if tensor.numel() and not local.numel():
        return  # more ranks than rows: others have them all
    code = code_of(name, tensor.dtype)
    for top, stretch in stretches(local, start, rows):
        for where, length in _cut(tuple(stretch.shape), tensor.element_size(), part_bytes_max):
            piece = stretch[tuple(slice(first, first + count) for first, count in zip(where, length, strict=True))]
            begin = tuple(first + more for first, more in zip(top, where, strict=True))
            yield Part(name=name, dtype=code, shape=tuple(tensor.shape), start=begin, size=length), piece


def _cut(size: tuple[int, ...], item_bytes: int, bytes_max: int) -> Iterator[Box]:
    """Boxes of at most `bytes_max`, each contiguous in a contiguous tensor of this size: cut along the first dimension that has
    more than one row, and a row that is too large in turn."""
    dim = next((index for index, length in enumerate(size) if length > 1), None)
    if dim is None or math.prod(size) * item_bytes <= bytes_max:
        yield (0,) * len(size), size
        return
    inner = size[dim + 1 :]
    rows = bytes_max // (math.prod(inner) * item_bytes)
    for first in range(0, size[dim], max(rows, 1)):
        length = (*size[:dim], min(max(rows, 1), size[dim] - first), *inner)
        for where, box in _cut(length, item_bytes, bytes_max) if rows == 0 else [((0,) * len(size), length)]:
            yield (*where[:dim], first, *where[dim + 1 :]), box


def _replicas(tensor: DTensor, whole: DeviceMesh | None) -> tuple[int, ...]:
    """The ranks that have this rank's piece: all along an axis on which it is not cut. An empty tensor lies whole on every rank."""
    own = tensor.device_mesh
    cut = [axis for axis, one in enumerate(tensor.placements) if not one.is_replicate() and tensor.numel()]
    names = own.mesh_dim_names or ()
    if whole is None or not set(names) <= set(whole.mesh_dim_names or ()) or not names:
        return _along(own, cut)
    return _along(whole, [(whole.mesh_dim_names or ()).index(names[axis]) for axis in cut])


def _along(mesh: DeviceMesh, cut: Sequence[int]) -> tuple[int, ...]:
    """The ranks at this rank's place of the axes that cut."""
    at = mesh.get_coordinate()
    if at is None:
        raise Bug("a tensor of a mesh that this rank is not of cannot be saved by it")
    return _ranks(mesh.mesh[tuple(at[axis] if axis in cut else slice(None) for axis in range(mesh.mesh.dim()))])


def _ranks(mesh: torch.Tensor) -> tuple[int, ...]:
    return tuple(cast(list[int], mesh.reshape(-1).tolist()))
