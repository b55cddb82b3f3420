"""What this node has: GPUs as NVML names them, or CPU slots standing in for them on a machine without a driver."""

import importlib
import json
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from phalanx.core.devices import CPU_SLOT, Device, NodeShape
from phalanx.core.ids import NodeId
from phalanx.core.isolation import Isolation
from phalanx.storage.atomic import write_atomic

_VENDOR_WORDS: Final = {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "GRAPHICS", "DEVICE"}
_TWO_SIZES: Final = {"A100"}
"""Models whose memory sizes are distinct types in the catalogue."""


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU as its driver describes it."""

    index: int
    product: str
    memory_bytes: int
    uuid: str


Reader = Callable[[], tuple[GpuSeen, ...] | None]
"""Asks the driver; None when there is no driver."""


def read_nvml() -> tuple[GpuSeen, ...] | None:
    """Every GPU of this machine, MIG slices not looked into; None without a driver."""
    nvml: Any = importlib.import_module("pynvml")  # here, since machines without GPUs need not pay for it
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        return tuple(_seen(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
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
        Device(gpu.index, gpu_type(gpu.product, gpu.memory_bytes), gpu.product, gpu.memory_bytes, gpu.uuid) for gpu in seen
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


def _seen(nvml: Any, index: int) -> GpuSeen:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return GpuSeen(index, str(nvml.nvmlDeviceGetName(handle)), memory, str(nvml.nvmlDeviceGetUUID(handle)))
