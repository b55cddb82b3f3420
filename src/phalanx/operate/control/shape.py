"""Whether a node's account of itself can be believed: what an agent sends becomes capacity, ports and lines in the log."""

import math
import re
from typing import Final

from phalanx.core import wire
from phalanx.core.devices import NodeShape

DEVICES_MAX: Final = 1024
"""Far above any machine; each device is looked at in every tick."""

CPUS_MAX: Final = 100_000
BYTES_MAX: Final = 2**60
WORDS_MAX: Final = 100
"""Of what an agent can do, and of what its machine lacks. A node's shape is an event of the log for ever, each time it changes."""

TEXT_CHARS_MAX: Final = 200
_REASON_CHARS_MAX: Final = 2_000
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def check_shape(shape: NodeShape) -> None:
    """Raises ValueError with the one thing that is wrong."""
    problem = _identity(shape) or _numbers(shape) or _devices(shape) or _abilities(shape)
    if problem:
        raise ValueError(f"hello: {problem}")


def _identity(shape: NodeShape) -> str:
    if _NODE.fullmatch(shape.node) is None:
        return "the node's name cannot be kept"
    if not 0 < len(shape.address) <= 255:
        return "the node's address is empty or over 255 characters"
    try:
        wire.dumps(NodeShape, shape).encode()
    except ValueError:
        return "the node's texts hold half a character"
    return ""


def _numbers(shape: NodeShape) -> str:
    first, end = shape.ports
    if not 1 <= first < end <= 65_536:
        return f"ports {first} to {end} are no range within 1 to 65535"
    if not (math.isfinite(shape.cpus) and 0 <= shape.cpus <= CPUS_MAX):
        return f"cpus: {shape.cpus} cannot be"
    if not 0 <= shape.memory_bytes <= BYTES_MAX:
        return f"memory_bytes: {shape.memory_bytes} cannot be"
    return ""


def _devices(shape: NodeShape) -> str:
    if len(shape.devices) > DEVICES_MAX:
        return f"{len(shape.devices)} devices, over {DEVICES_MAX}"
    if len({device.index for device in shape.devices}) < len(shape.devices):
        return "two devices have one index"
    for device in shape.devices:
        if not 0 <= device.index < 2**31 or not 0 <= device.memory_bytes <= BYTES_MAX:
            return f"device {device.index} with {device.memory_bytes} bytes cannot be"
        if not device.type or max(map(len, (device.type, device.name, device.uuid))) > TEXT_CHARS_MAX:
            return f"device {device.index} has no type, or a text over {TEXT_CHARS_MAX} characters"
    return ""


def _abilities(shape: NodeShape) -> str:
    kept = shape.isolation
    lacks = dict(kept.lacks or {}) if kept is not None else {}
    for what, words in (("features", shape.features), ("isolation", kept.can if kept is not None else ()), ("lacks", tuple(lacks))):
        if len(words) > WORDS_MAX or any(len(word) > TEXT_CHARS_MAX for word in words):
            return f"{what}: over {WORDS_MAX} words, or one over {TEXT_CHARS_MAX} characters"
    if any(len(why) > _REASON_CHARS_MAX for why in lacks.values()):
        return f"lacks: a reason over {_REASON_CHARS_MAX} characters"
    return ""
