"""Where a test of the fabric runs when nobody says it: on all that is there of one kind."""

from collections.abc import Sequence

from phalanx.core.devices import DeviceRequest, parse_devices
from phalanx.core.errors import SpecError
from phalanx.core.views import NodeView

_TWO = "a fabric is tested by two ranks or more; ask for more GPUs or nodes"


def room(nodes: Sequence[NodeView], gpus: str, num_nodes: int | None) -> tuple[str, int]:
    """(GPUs of each node as in a spec, nodes). What is not said is as much as is up. Raises SpecError."""
    able = [node for node in nodes if node.state == "up" and not node.drained and node.devices]
    if not able:
        raise SpecError("--nodes", num_nodes, "no node is up; see `phalanx node ls`")
    asked = gpus or _most(able)
    try:
        request = parse_devices(asked)
    except ValueError as error:
        raise SpecError("--gpus", gpus, str(error)) from error
    if request.is_share:
        raise SpecError("--gpus", gpus, "write whole GPUs: a share of one has no links of its own")
    count = num_nodes or max(1, sum(_has(node, request) for node in able))
    if count * request.count < 2:
        raise SpecError("--gpus", gpus or None, _TWO if gpus else f"{count} x {asked} is one rank; {_TWO}")
    return asked, count


def _has(node: NodeView, request: DeviceRequest) -> bool:
    counts = [_count(node, kind) for kind in request.types] if request.types else [max(_count(node, one) for one in _types(node))]
    return max(counts) >= request.count


def _most(nodes: Sequence[NodeView]) -> str:
    """The kind of node that has most devices in all."""
    kinds = dict[tuple[str, int], int]()
    for node in nodes:
        for kind in _types(node):
            count = _count(node, kind)
            kinds[kind, count] = kinds.get((kind, count), 0) + count
    kind, count = max(kinds, key=lambda one: (kinds[one], one))
    return f"{kind}:{count}"


def _types(node: NodeView) -> list[str]:
    return sorted({device.type for device in node.devices})


def _count(node: NodeView, kind: str) -> int:
    return sum(device.type == kind for device in node.devices)
