"""The rank's device and process group, and the switches that make two runs of one job give the same bits."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from phalanx.fabric.layouts import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Where this process stands in its gang. `device_name` is what the driver says, 'cpu' without one. generation: of a gang that
    recovers inside, else 0. slots: by rank, its number in the whole gang, which has num_slots: while some have no process the
    others are counted anew. Empty and 0 where the gang always has all. layout: None for that of a job which says none: each rank
    reads samples of its own, and all share weights, gradients and optimiser state."""

    rank: int
    world_size: int
    device: torch.device
    device_name: str
    generation: int = 0
    slots: tuple[int, ...] = ()
    num_slots: int = 0
    layout: Layout | None = None

    @property
    def data_rank(self) -> int:
        """Which part of each step's samples is this rank's; others may have the same."""
        return self.layout.data_rank(self.rank) if self.layout is not None else self.rank

    @property
    def data_size(self) -> int:
        """Parts into which the samples of a step are cut."""
        return self.layout.data_size if self.layout is not None else self.world_size

    @property
    def whole_data_size(self) -> int:
        """As `data_size`, of the whole gang."""
        return self.whole_size // self.model_size

    @property
    def model_rank(self) -> int:
        """Which of the ranks with the same samples this is."""
        return self.layout.model_rank(self.rank) if self.layout is not None else 0

    @property
    def model_size(self) -> int:
        """Ranks that get the same samples."""
        return self.layout.model_size if self.layout is not None else 1

    @property
    def readers(self) -> Sequence[int]:
        """The first rank of each part of the samples, in the order of the parts."""
        return self.layout.readers() if self.layout is not None else range(self.world_size)

    @property
    def slot(self) -> int:
        """By which this process is known outside the gang."""
        return self.slot_of(self.rank)

    def slot_of(self, rank: int) -> int:
        return self.slots[rank] if self.slots else rank

    @property
    def whole_size(self) -> int:
        """Ranks of the whole gang."""
        return self.num_slots or self.world_size


@contextmanager
def gang() -> Iterator[Rank]:
    """Joins the process group named by torchrun's environment; alone without one. Leaves it on a clean end.

    After an error the group is left as it is: a peer may be gone, and closing in order would wait for it.
    """
    device = prepare_device()
    if "RANK" in os.environ:
        dist.init_process_group(backend_of(device), device_id=device if device.type == "cuda" else None)
    else:
        alone(device)
    yield this_rank(device)
    dist.barrier()  # nobody closes its side while another still reads
    dist.destroy_process_group()


def prepare_device() -> torch.device:
    """This process's device by LOCAL_RANK, made ready to give the same bits each time."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    _make_deterministic(device)
    return device


def backend_of(device: torch.device) -> str:
    """Objects and checkpoint plans travel over gloo even where gradients use NCCL."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def alone(device: torch.device) -> None:
    """A process group of this process."""
    dist.init_process_group(backend_of(device), store=_hash_store(), rank=0, world_size=1)


def this_rank(device: torch.device, generation: int = 0, slots: tuple[int, ...] = (), num_slots: int = 0) -> Rank:
    """In the process group that was joined."""
    return Rank(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        device=device,
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        generation=generation,
        slots=slots,
        num_slots=num_slots,
    )


def _hash_store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without saying so to mypy


def synchronise(device: torch.device) -> None:
    """Waits for what the device still computes, so that a wall clock means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def asked_so_far(device: torch.device) -> torch.cuda.Event | None:
    """Passed once the device has done all that it was asked for; None of one that has by then, as a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _make_deterministic(device: torch.device) -> None:
    if device.type == "cuda":
        # cuBLAS is reproducible only with a fixed workspace (its documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
    else:
        # One thread a rank: sums split among threads depend on how many there are.
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory with NaN costs time and changes no result of ours.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property torch sets on the module
