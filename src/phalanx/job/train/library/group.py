"""The process group of a script, joined from the environment (torchrun's, a gang's that recovers inside, or none) and left at the
end, also after an error."""

import contextlib
import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from math import prod
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore

from phalanx.core.errors import SetupError, UserError
from phalanx.job.sdk.gang import Place
from phalanx.job.sdk.gang_link import StoreLink
from phalanx.job.train.connections import Connections
from phalanx.job.train.device import Rank, alone, backend_of, prepare_device, this_rank
from phalanx.job.train.gang_store import GangStore

_TORCHRUN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def joined(deterministic: bool, place: Place | None = None, link: StoreLink | None = None, timeout_ms: int = 0) -> Iterator[Rank]:
    """This process in its group; one that is there already is used, and left to who made it. place, link, timeout_ms: in a gang
    that recovers inside.

    After an error nobody is waited for: a peer may be gone. Raises UserError for half an environment, SetupError for a group that
    cannot carry numbers of the CPU.
    """
    device = prepare_device() if deterministic else _device()
    if dist.is_initialized():
        _check_carries_numbers()
        yield this_rank(device)
        return
    connections = Connections()
    store = _join(device, place, link, timeout_ms)
    connections.made()
    try:
        yield this_rank(device, place.generation, place.slots, place.num_slots) if place is not None else this_rank(device)
        if dist.is_initialized():
            dist.barrier()  # nobody closes its side while another still reads
    except BaseException:
        _abort(connections)
        raise
    finally:
        gc.collect()  # DDP lies in a reference cycle, and must go before its group does
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        if store is not None:
            store.close()


def mesh_of(rank: Rank, sizes: Mapping[str, int] | None) -> DeviceMesh:
    """By the names of its axes; all ranks along `dp` when None. One size may be -1: what is left. Raises UserError."""
    shape = dict(sizes or {"dp": -1})
    free = [name for name, size in shape.items() if size == -1]
    known = prod(size for size in shape.values() if size != -1)
    if len(free) > 1 or any(size == 0 or size < -1 for size in shape.values()):
        raise UserError(
            "mesh", shape, "write the size of each axis, such as {'dp': -1, 'tp': 2}; -1 for one of them is what is left"
        )
    if rank.world_size % known or (not free and known != rank.world_size):
        fix = f"has {known} places and there are {rank.world_size} ranks; sizes have to multiply to that, and -1 takes what is left"
        raise UserError("mesh", shape, fix)
    if free:
        shape[free[0]] = rank.world_size // known
    return init_device_mesh(rank.device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _join(device: torch.device, place: Place | None, link: StoreLink | None, timeout_ms: int) -> GangStore | None:
    """The store of a gang that recovers inside, for the caller to hold: torch does not keep an object of Python alive."""
    store: GangStore | None = None
    told: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if place is not None and link is not None:
        timeout = timedelta(milliseconds=timeout_ms)
        store = GangStore(link, timeout)
        told |= {"store": PrefixStore(place.prefix, store), "rank": place.rank, "world_size": place.world_size, "timeout": timeout}
    elif not any(name in os.environ for name in _TORCHRUN[:2]):
        alone(device)
        return None
    elif missing := [name for name in _TORCHRUN if name not in os.environ]:
        raise UserError(
            missing[0], None, f"is not set, and {'RANK' if 'RANK' in os.environ else 'WORLD_SIZE'} is: start by torchrun"
        )
    dist.init_process_group(backend_of(device), **told)
    return store


def _check_carries_numbers() -> None:
    try:
        dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    except RuntimeError as error:
        fix = 'make it by init_process_group("cpu:gloo,cuda:nccl"), or enter phalanx.run() before and let it'
        raise SetupError("process group", dist.get_backend(), fix) from error


def _abort(connections: Connections) -> None:
    """Ends what is still under way, here and at the others that wait for this rank."""
    if dist.is_initialized() and dist.get_backend() != "gloo":
        with contextlib.suppress(RuntimeError, AttributeError, ValueError):
            dist.group.WORLD.abort()  # type: ignore[union-attr]
    connections.shut_down()
