"""What this node has: GPUs as NVML names them, or CPU slots standing in for them on a machine without a driver."""

import contextlib
import importlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from phalanx.core.devices import CPU_SLOT, Device, NodeShape
from phalanx.core.errors import SpecError
from phalanx.core.ids import NodeId
from phalanx.core.isolation import Isolation
from phalanx.storage.atomic import write_atomic

_VENDOR_WORDS: Final = {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "GRAPHICS", "DEVICE"}
SLICE: Final = "MIG-"
"""What UUIDs of slices begin with."""
_TWO_SIZES: Final = {"A100"}
"""Models whose memory sizes are distinct types in the catalogue."""


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU as its driver describes it, or one slice of it. profile: of a MIG slice, such as 1g.10gb; whole_bytes: memory of the
    GPU that it is of."""

    index: int
    product: str
    memory_bytes: int
    uuid: str
    profile: str = ""
    whole_bytes: int = 0


Reader = Callable[[], tuple[GpuSeen, ...] | None]
"""Asks the driver; None when there is no driver."""


def read_nvml() -> tuple[GpuSeen, ...] | None:
    """Every GPU of this machine, and in the place of one that is sliced (MIG) its slices; None without a driver."""
    nvml: Any = importlib.import_module("pynvml")  # here, since machines without GPUs need not pay for it
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        found = [gpu for index in range(nvml.nvmlDeviceGetCount()) for gpu in seen_at(nvml, index)]
        return tuple(replace(gpu, index=index) for index, gpu in enumerate(found))
    finally:
        nvml.nvmlShutdown()


def numbered(read: Reader, path: Path, boot: str) -> Reader:
    """Reads with the numbers that each GPU had first since the boot, kept at `path`: where one is gone the driver counts anew, and
    attempts hold the others by their numbers."""

    def again() -> tuple[GpuSeen, ...] | None:
        seen = read()
        if not seen:
            return seen
        known = _numbers(path, boot)
        numbers = dict(known)
        for gpu in seen:
            free = (index for index in (gpu.index, *range(len(numbers) + 1)) if index not in numbers.values())
            numbers.setdefault(gpu.uuid, next(free))
        if numbers != known:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps({"boot": boot, "numbers": numbers}).encode())
        return tuple(sorted((replace(gpu, index=numbers[gpu.uuid]) for gpu in seen), key=lambda gpu: gpu.index))

    return again


def _numbers(path: Path, boot: str) -> dict[str, int]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return {str(uuid): int(index) for uuid, index in found["numbers"].items()} if found["boot"] == boot else {}


def discover(read: Reader, cpu_slots: int | None) -> tuple[Device, ...]:
    """The node's devices. An explicit `cpu_slots` wins over GPUs; without a driver it defaults to the number of CPUs."""
    seen = None if cpu_slots is not None else read()
    if not seen:
        count = cpu_slots if cpu_slots is not None else os.cpu_count() or 1
        return tuple(Device(index, CPU_SLOT, "CPU slot") for index in range(count))
    return tuple(
        Device(gpu.index, _type_of(gpu), f"{gpu.product} {gpu.profile}".strip(), gpu.memory_bytes, gpu.uuid) for gpu in seen
    )


def _type_of(gpu: GpuSeen) -> str:
    """A slice is a type of its own, such as H100-1g.10gb: nobody who asks for the GPU wants a seventh of it."""
    whole = gpu_type(gpu.product, gpu.whole_bytes or gpu.memory_bytes)
    return f"{whole}-{gpu.profile}"[:48] if gpu.profile else whole


def refuse_slices(devices: Iterable[Device]) -> None:
    """Raises SpecError for several devices of which one is a slice: CUDA shows a process one slice and no second device."""
    uuids = [device.uuid for device in devices]
    if len(uuids) > 1 and any(uuid.startswith(SLICE) for uuid in uuids):
        raise SpecError(
            "resources.gpus", len(uuids), "CUDA gives a process one MIG slice and nothing else; ask for one on each node"
        )


def gpu_type(product: str, memory_bytes: int) -> str:
    """'NVIDIA H100 80GB HBM3' -> 'H100', 'NVIDIA A100-SXM4-40GB' -> 'A100-40', 'NVIDIA GeForce RTX 4090' -> 'RTX-4090'."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", product) if word and word.upper() not in _VENDOR_WORDS]
    if not words:
        return "GPU"
    name = f"{words[0]}-{words[1]}" if words[0].isalpha() and len(words) > 1 else words[0]
    if name in _TWO_SIZES:
        return f"{name}-{40 if memory_bytes < 60 * 10**9 else 80}"
    return name[:32] if name[0].isalpha() else f"GPU-{name}"[:32]


def node_shape(
    node: NodeId,
    devices: tuple[Device, ...],
    ports: tuple[int, int],
    url: str | None,
    features: tuple[str, ...] = (),
    isolation: Isolation | None = None,
) -> NodeShape:
    """This machine as told to the control plane at `url`."""
    memory = int(psutil.virtual_memory().total)
    return NodeShape(node, own_address(url), devices, float(os.cpu_count() or 1), memory, ports, features, isolation)


def own_address(url: str | None) -> str:
    """The address of the interface that leads to the control plane: peers reach MASTER_PORT there. Loopback when unknown."""
    host = urlsplit(url).hostname if url else None
    if host is None:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # a UDP connect sends nothing; it only chooses the route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def seen_at(nvml: Any, index: int) -> list[GpuSeen]:
    """The GPU of that number, or its slices where it is sliced: it takes no work itself then, and none while it has none."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    whole = _seen(nvml, handle, index)
    if not _is_sliced(nvml, handle):
        return [whole]
    slices = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nvml.NVMLError_NotFound):  # places need not be taken in order
            found = _seen(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place), index)
            profile = found.product.rpartition(" MIG ")[2] if " MIG " in found.product else "slice"
            slices.append(replace(found, product=whole.product, profile=profile, whole_bytes=whole.memory_bytes))
    return slices


def _is_sliced(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # most GPUs know no such thing
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _seen(nvml: Any, handle: Any, index: int) -> GpuSeen:
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return GpuSeen(index, str(nvml.nvmlDeviceGetName(handle)), memory, str(nvml.nvmlDeviceGetUUID(handle)))
