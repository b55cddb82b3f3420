"""Devices, nodes' shapes and placements: what a gang holds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.core.ids import NodeId
from phalanx.core.isolation import Isolation

CPU_SLOT: Final = "cpu"
"""Device type of a machine without GPUs: its CPU slots stand in for devices, and every view says so."""

WHOLE: Final = 1000
"""Thousandths of a device in a whole one."""

_TYPE: Final = r"[A-Za-z][A-Za-z0-9.-]{0,47}"
_REQUEST: Final = re.compile(rf"(?:({_TYPE}(?:\s*\|\s*{_TYPE}){{0,15}}):)?([0-9]{{1,6}}|0\.[0-9]{{1,3}})")


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
    its agent can do beyond the first protocol, see `core.features`. isolation: how it keeps jobs apart; None of an agent that does
    not say."""

    node: NodeId
    address: str
    devices: tuple[Device, ...]
    cpus: float
    memory_bytes: int
    ports: tuple[int, int]
    features: tuple[str, ...] = ()
    isolation: Isolation | None = None


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """Devices asked for on each node. types: those that will do, the best first; none accepts any type, CPU slots included. milli:
    thousandths of each device, under 1000 for a share of one. memory_bytes: of its device's memory, the most that a share may
    use."""

    types: tuple[str, ...] = ()
    count: int = 1
    milli: int = WHOLE
    memory_bytes: int = 0

    @property
    def is_share(self) -> bool:
        return self.milli < WHOLE

    def __str__(self) -> str:
        """As in a spec, see `parse_devices`; the bound on memory is a field of its own there."""
        kinds = f"{'|'.join(self.types)}:" if self.types else ""
        return f"{kinds}{f'{self.milli / WHOLE:g}' if self.is_share else self.count}"


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """The devices of one node that a gang holds; one rank runs on each, in this order. milli: thousandths of each. memory_bytes: of
    each device's memory that a share holds; 0 for whole devices."""

    node: NodeId
    devices: tuple[int, ...]
    milli: int = WHOLE
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a gang runs. Ranks are numbered along `slices`; node 0 of the gang is the first. borrowed: beyond the whole cells that
    its queue is guaranteed, until its turn comes there."""

    slices: tuple[NodeSlice, ...]
    borrowed: bool = False

    @property
    def world_size(self) -> int:
        return sum(len(part.devices) for part in self.slices)


def devices_words(indexes: Sequence[int], milli: int = WHOLE) -> str:
    """'device 3', 'devices 0, 1' or '0.25 of device 3'."""
    named = f"{'device' if len(indexes) == 1 else 'devices'} {', '.join(map(str, indexes))}"
    return named if milli == WHOLE else f"{milli / WHOLE:g} of {named}"


def parse_devices(text: str) -> DeviceRequest:
    """'H100:8', 'H100|A100-80:8' (the first that has room), '8' or '0.25' (a share of one device) as a request. Raises ValueError
    saying the accepted forms."""
    matched = _REQUEST.fullmatch(text.strip())
    milli = round(float(matched[2]) * WHOLE) if matched and "." in matched[2] else WHOLE
    count = int(matched[2]) if matched and "." not in matched[2] else 1
    if matched is None or count == 0 or milli == 0:
        raise ValueError("write TYPE:COUNT such as 'H100:8' or 'H100|A100-80:8', a count such as '2', or a share such as 'L4:0.25'")
    types = tuple(dict.fromkeys(part.strip() for part in matched[1].split("|"))) if matched[1] else ()
    return DeviceRequest(types, count, milli)
