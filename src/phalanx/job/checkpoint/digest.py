"""Numbers for sets of tensors: equal exactly when the tensors are, or, the cheap ones, different whenever one bit is."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from phalanx.job.checkpoint.local import local_of
from phalanx.job.checkpoint.odd import Odd, odd_ones
from phalanx.job.checkpoint.together import told_by_all

_PIECE: Final = 65_536
_CARRIED: Final = 4 * 2**20
"""Elements of what lies on the host and is summed by a GPU, at once."""
_INTEGER: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over name, dtype, shape and bytes of each tensor, in name order. Tensors lie in host memory."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        total.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def bit_sum(tensor: torch.Tensor, by: torch.device | None = None) -> torch.Tensor:
    """The elements' bit patterns, summed as whole numbers modulo 2^64: int64 () on the device `by` or, without one, the tensor's.

    One flipped bit always changes it; so do any others, but for one in 2^32 or so. The order of summing does not, nor into which
    parts a tensor is cut: the sum over them is that of the whole.
    """
    local = local_of(tensor.detach())
    bits = local.contiguous().view(_INTEGER[local.element_size()])
    if by is not None and by.type != bits.device.type:
        pieces = torch.split(bits.view(-1), _CARRIED)  # what lies on the host may be more than the device has room for
        return sum((piece.to(by).sum(dtype=torch.int64) for piece in pieces), torch.zeros((), dtype=torch.int64, device=by))
    return _sum_on_cpu(bits) if bits.device.type == "cpu" else bits.sum(dtype=torch.int64)


def _sum_on_cpu(bits: torch.Tensor) -> torch.Tensor:
    """By NumPy, which widens as it adds and is five times faster here. In copies that fit a cache: a tensor that NumPy has seen can
    not be resized any more, which FSDP does with what it gathers."""
    total = sum(int(piece.clone().numpy().sum(dtype="int64")) for piece in torch.split(bits.view(-1), _PIECE))
    return torch.tensor((total + 2**63) % 2**64 - 2**63, dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDigest:
    """text: of the whole state, whatever its layout. odd: where ranks that hold the same part hold different bits, by name."""

    text: str
    odd: Mapping[str, Odd]


def state_digest(
    state: Mapping[str, torch.Tensor],
    device: torch.device,
    mesh: DeviceMesh | None = None,
    names: Collection[str] | None = None,
    summed: Mapping[int, torch.Tensor] | None = None,
) -> StateDigest:
    """A collective of all ranks; the same on every one. mesh: of the ranks that have the same tensors, all where None. names: of
    every rank's tensors, where these are not the same. summed: the `bit_sum` of those that somebody has read already, on the
    device, by the address of where they lie."""
    every, nothing = sorted(state if names is None else names), torch.zeros((), dtype=torch.int64, device=device)
    known = summed or {}

    def sum_of(tensor: torch.Tensor) -> torch.Tensor:
        found = known.get(local_of(tensor.detach()).data_ptr())
        return bit_sum(tensor, device) if found is None else found  # step counts are on the host

    sums = [sum_of(state[name]) if name in state else nothing for name in every]
    table = gathered(torch.stack(sums))
    alike: Sequence[int] = range(len(table)) if mesh is None else sorted(mesh.mesh.flatten().tolist())
    odd: dict[str, Odd] = {}
    wholes: dict[str, int] = {}
    for column, name in ((column, name) for column, name in enumerate(every) if name in state):
        groups = replicas(state[name], alike)
        for group in groups:
            found = odd_ones({rank: table[rank][column] for rank in group})
            if found is not None:
                odd[name] = found
        wholes[name] = sum(table[group[0]][column] for group in groups) % 2**64
    if names is not None:
        odd, wholes = _of_all(odd, wholes, is_first=dist.get_rank() == alike[0])
    lines = "".join(f"{name} {wholes[name]}\n" for name in every)
    return StateDigest(text=hashlib.sha256(lines.encode()).hexdigest(), odd=odd)


def _of_all(odd: dict[str, Odd], wholes: dict[str, int], is_first: bool) -> tuple[dict[str, Odd], dict[str, int]]:
    """is_first: of the ranks that have the same tensors."""
    told = told_by_all((odd, wholes) if is_first else ({}, {}))
    every_odd = {name: one for of_rank, _ in told for name, one in of_rank.items()}
    every_whole = {name: one for _, of_rank in told for name, one in of_rank.items()}
    return every_odd, every_whole


def gathered(mine: torch.Tensor) -> list[list[int]]:
    """Each rank's int64 numbers, in rank order."""
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    table: list[list[int]] = torch.stack(everyone).tolist()
    return table


def replicas(tensor: torch.Tensor, ranks: Sequence[int]) -> list[Sequence[int]]:
    """The ranks in groups that hold the same part of it: all of `ranks` when it is no DTensor."""
    if not isinstance(tensor, DTensor):
        return [ranks]
    mesh = tensor.device_mesh.mesh
    sharded = [at for at, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    groups: dict[tuple[int, ...], list[int]] = {}
    for place in torch.cartesian_prod(*(torch.arange(size) for size in mesh.shape)).reshape(-1, mesh.ndim).tolist():
        groups.setdefault(tuple(place[at] for at in sharded), []).append(int(mesh[tuple(place)]))
    return list(groups.values())
