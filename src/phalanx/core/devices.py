"""Devices, nodes' shapes and placements: what a gang holds."""

import re
from dataclasses import dataclass
from typing import Final

from phalanx.core.ids import NodeId

CPU_SLOT: Final = "cpu"
"""Device type of a machine without GPUs: its CPU slots stand in for devices, and every view says so."""

_REQUEST: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9-]{0,31}):)?([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable device of a node. `index` is its number on that node; `memory_bytes` is 0 for a CPU slot."""

    index: int
    type: str
    name: str
    memory_bytes: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What a node's agent says it has. `ports` is a half-open range that the agent keeps free for MASTER_PORT. `features`: what
    its agent can do beyond the first protocol, see `core.features`."""

    node: NodeId
    address: str
    devices: tuple[Device, ...]
    cpus: float
    memory_bytes: int
    ports: tuple[int, int]
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """Devices asked for on each node. `type` None accepts any type, CPU slots included."""

    type: str | None
    count: int


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """The devices of one node that a gang holds; one rank runs on each, in this order."""

    node: NodeId
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a gang runs. Ranks are numbered along `slices`; node 0 of the gang is the first."""

    slices: tuple[NodeSlice, ...]

    @property
    def world_size(self) -> int:
        return sum(len(part.devices) for part in self.slices)


def parse_devices(text: str) -> DeviceRequest:
    """'H100:8' or '8' as a request. Raises ValueError saying the accepted forms."""
    matched = _REQUEST.fullmatch(text.strip())
    if matched is None or int(matched[2]) == 0:
        raise ValueError("write TYPE:COUNT such as 'H100:8', or a count such as '2' for devices of any type")
    return DeviceRequest(matched[1], int(matched[2]))
