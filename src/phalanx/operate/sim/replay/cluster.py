"""The simulated cluster: from 'H100:8x64', from a YAML file, or as large as a trace needs."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from phalanx.core.devices import CPU_SLOT, parse_devices
from phalanx.core.errors import NotFound, SpecError
from phalanx.core.ids import NodeId
from phalanx.core.policy import TIERS, Policy
from phalanx.core.units import size_bytes
from phalanx.core.validation import value_of, what_to_write
from phalanx.core.yaml_text import read_yaml_file
from phalanx.decide.scheduler import NodeFacts
from phalanx.fabric.catalogue import lookup
from phalanx.operate.sim.traces.errors import TraceError
from phalanx.operate.sim.traces.openb import read_nodes
from phalanx.operate.sim.traces.trace import Trace

CLUSTER_BYTES_MAX: Final = 1024 * 1024
NODES_MAX: Final = 200_000
DEVICES_MAX: Final = 64
"""Of one node."""

CPUS_A_DEVICE: Final = 32.0
MEMORY_A_DEVICE: Final = 256 * 2**30
"""Where nobody says: so much that devices are what is short."""

_GROUP: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9.-]*):)?([0-9]{1,12})x([0-9]{1,12})")
_FORM: Final = "write TYPE:COUNTxNODES such as 'H100:8x64', several with commas, or name a .yaml file"
_STRICT = ConfigDict(extra="forbid")
_UNKNOWN: Final = ("unexpected_keyword_argument", "extra_forbidden")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Equal nodes of a cluster file.

    count: how many. gpus: of each, such as 'H100:8'. cpus, memory, gpu_memory: of each node, and of each device. labels: of each.
    tiers: how many of these nodes make one of a tier, such as {rack: 4, block: 32}: numbered in order. spot: may be taken away.
    price: US dollars per device and hour.
    """

    __pydantic_config__ = _STRICT

    count: int
    gpus: str
    cpus: float | None = None
    memory: str = ""
    gpu_memory: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    tiers: Mapping[str, int] = field(default_factory=dict)
    spot: bool = False
    price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster as YAML. nodes: its groups."""

    __pydantic_config__ = _STRICT

    nodes: tuple[NodeGroup, ...]


def cluster_of(text: str, trace: Trace) -> tuple[NodeFacts, ...]:
    """As `written_cluster`, or for '' one that the trace would just fill at its peak. Raises SpecError."""
    return written_cluster(text) if text else _nodes(_sized_to(trace), "--cluster")


def written_cluster(text: str) -> tuple[NodeFacts, ...]:
    """'TYPE:COUNTxNODES[,...]', a YAML file, or a CSV file of openb's nodes. Raises SpecError, NotFound, TraceError."""
    file = Path(text)
    if file.suffix in (".yaml", ".yml", ".json"):
        return _nodes(_read(file), f"{file.name}: nodes")
    if file.suffix in (".csv", ".gz"):
        return _of_openb(file)
    return _nodes([_written(part.strip(), text) for part in text.split(",")], "--cluster")


def with_rules(nodes: Iterable[NodeFacts], policy: Policy) -> tuple[NodeFacts, ...]:
    """The nodes as the policy's rules describe them; later rules win."""
    return tuple(_told(node, policy) for node in nodes)


def _told(node: NodeFacts, policy: Policy) -> NodeFacts:
    labels, spot, price = dict(node.labels), node.spot, node.price
    for rule in policy.nodes:
        if fnmatchcase(node.node, rule.match):
            labels |= rule.labels
            spot = spot if rule.spot is None else rule.spot
            price = price if rule.price is None else rule.price
    return replace(node, labels=labels, spot=spot, price=price)


def describe(nodes: Sequence[NodeFacts]) -> str:
    """'H100:8x64, A100-80:4x10', as it would be written."""
    groups: dict[tuple[str, int], int] = {}
    for node in nodes:
        for kind in dict.fromkeys(kind for _, kind in node.devices):
            key = kind, sum(of == kind for _, of in node.devices)
            groups[key] = groups.get(key, 0) + 1
    return ", ".join(f"{kind}:{count}x{num}" for (kind, count), num in groups.items())


def _sized_to(trace: Trace) -> list[NodeGroup]:
    """Nodes of eight: the machine that the trace tells of, else as many as its jobs would hold at their peak if none ever
    waited. Raises TraceError where that is too much."""
    devices = trace.machine_devices or trace.peak_devices
    kinds = sorted({kind for job in trace.jobs for kind in job.types}) or ["H100"]
    most = 8 * (NODES_MAX // len(kinds))
    if devices > most:
        raise _too_large(trace, devices, most)
    return [NodeGroup(count=max(1, math.ceil(devices / 8)), gpus=f"{kind}:8") for kind in kinds]


def _too_large(trace: Trace, devices: int, most: int) -> TraceError:
    """About the row that asks for more than `most` devices, if one alone does."""
    largest = max(trace.jobs, key=lambda job: job.devices)
    fits = f"a cluster that is made to fit a trace has at most {most}"
    if trace.machine_devices:
        return TraceError(trace.name, devices, f"devices of the whole machine: {fits}; name a cluster with --cluster")
    if largest.devices <= most:
        return TraceError(trace.name, devices, f"devices are held at once at its peak: {fits}; name a cluster with --cluster")
    where = f"{trace.name}:{largest.line}" if largest.line else f"{trace.name}: {largest.name}"
    return TraceError(where, largest.devices, f"devices: {fits}; write fewer, or name a cluster with --cluster")


def _written(part: str, whole: str) -> NodeGroup:
    matched = _GROUP.fullmatch(part)
    if matched is None:
        raise SpecError("--cluster", whole, _FORM if part else f"has nothing between or after its commas; {_FORM}")
    kind, devices, nodes = matched[1], int(matched[2]), int(matched[3])
    if not kind:
        raise SpecError("--cluster", part, f"write the devices' type too, such as 'H100:{part}'")
    if not 0 < devices <= DEVICES_MAX:
        raise SpecError("--cluster", part, f"write 1 to {DEVICES_MAX} devices of a node, as 8 is in 'H100:8x64'")
    if not 0 < nodes <= NODES_MAX:
        raise SpecError("--cluster", part, f"write 1 to {NODES_MAX} nodes, as 64 is in 'H100:8x64'")
    if kind != (known := _as_known(kind)):
        raise SpecError("--cluster", part, f"write '{known}:{devices}x{nodes}': types are told apart by case")
    return NodeGroup(count=nodes, gpus=f"{kind}:{devices}")


def _as_known(kind: str) -> str:
    """A type as the catalogue writes it; itself where it is not in there."""
    model = lookup(kind)
    return model.type if model is not None and model.type.lower() == kind.lower() else kind


def _read(file: Path) -> list[NodeGroup]:
    if not file.exists():
        raise NotFound("--cluster", str(file), "no such file; name one, or write TYPE:COUNTxNODES such as 'H100:8x64'")
    content = read_yaml_file(file, "--cluster", CLUSTER_BYTES_MAX)
    try:
        read: ClusterFile = TypeAdapter(ClusterFile).validate_python(content)
    except ValidationError as error:
        raise _problem(file, error) from None
    if not read.nodes:
        raise SpecError(f"{file.name}: nodes", "[]", "name at least one group of nodes")
    return list(read.nodes)


def _problem(file: Path, error: ValidationError) -> SpecError:
    found: list[Any] = error.errors(include_url=False)
    first = next((one for one in found if one["type"] in _UNKNOWN), found[0])  # a mistyped key also leaves its field empty
    where = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] in _UNKNOWN:
        known = (NodeGroup if "." in where else ClusterFile).__dataclass_fields__
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        return SpecError(f"{file.name}: {where}", value_of(first), f"is no key of a cluster; {hint}")
    return SpecError(f"{file.name}: {where}", value_of(first), what_to_write(first))


def _nodes(groups: Sequence[NodeGroup], field: str) -> tuple[NodeFacts, ...]:
    """field: where the groups are written."""
    total = sum(group.count for group in groups)
    if total > NODES_MAX:
        raise SpecError(field, total, f"are more than {NODES_MAX} nodes in all; write fewer")
    nodes: list[NodeFacts] = []
    for number, group in enumerate(groups):
        nodes += _group_nodes(number, group, f"{field}.{number}", first=len(nodes))
    return tuple(nodes)


def _group_nodes(number: int, group: NodeGroup, field: str, first: int) -> list[NodeFacts]:
    kind, count = _devices(group, field)
    model = lookup(kind)
    device_memory = _size(f"{field}.gpu_memory", group.gpu_memory, model.memory_bytes if model else 0)
    tiers = _tiers(group, field)
    cpus = _positive(f"{field}.cpus", group.cpus, CPUS_A_DEVICE * count)
    memory = _size(f"{field}.memory", group.memory, MEMORY_A_DEVICE * count)
    price = _positive(f"{field}.price", group.price, model.price_per_hour if model else 0.0)
    return [
        NodeFacts(
            node=NodeId(f"{kind.lower()}-{first + index + 1:05d}"),
            devices=tuple((device, kind) for device in range(count)),
            free=tuple(range(count)),
            cpus=cpus,
            free_cpus=cpus,
            memory_bytes=memory,
            free_memory_bytes=memory,
            schedulable=True,
            device_memory_bytes=device_memory,
            labels={**{tier: f"{tier}-{number}-{index // size}" for tier, size in tiers.items()}, **group.labels},
            spot=group.spot,
            price=price,
        )
        for index in range(group.count)
    ]


def _devices(group: NodeGroup, field: str) -> tuple[str, int]:
    if not group.count > 0:
        raise SpecError(f"{field}.count", group.count, "write 1 or more")
    try:
        asked = parse_devices(group.gpus)
    except ValueError as error:
        raise SpecError(f"{field}.gpus", group.gpus, str(error)) from None
    if asked.is_share or len(asked.types) > 1 or not 0 < asked.count <= DEVICES_MAX:
        raise SpecError(f"{field}.gpus", group.gpus, f"write one type and 1 to {DEVICES_MAX} whole devices, such as 'H100:8'")
    kind = asked.types[0] if asked.types else CPU_SLOT
    if kind != (known := _as_known(kind)):
        raise SpecError(f"{field}.gpus", group.gpus, f"write '{known}:{asked.count}': types are told apart by case")
    return kind, asked.count


def _of_openb(file: Path) -> tuple[NodeFacts, ...]:
    """Nodes with GPUs of the openb trace, which brings its own cluster. Raises TraceError, NotFound."""
    return tuple(
        NodeFacts(
            node=NodeId(node.name),
            devices=tuple((device, node.model) for device in range(node.num_gpu)),
            free=tuple(range(node.num_gpu)),
            cpus=node.cpu_milli / 1000,
            free_cpus=node.cpu_milli / 1000,
            memory_bytes=node.memory_mib * 2**20,
            free_memory_bytes=node.memory_mib * 2**20,
            schedulable=True,
            price=model.price_per_hour if (model := lookup(node.model)) else 0.0,
        )
        for node in read_nodes(file)
        if node.num_gpu
    )


def _tiers(group: NodeGroup, field: str) -> dict[str, int]:
    for name, size in group.tiers.items():
        if name not in TIERS:
            raise SpecError(f"{field}.tiers", name, f"is no tier; write {', '.join(TIERS)}")
        if size < 1:
            raise SpecError(f"{field}.tiers.{name}", size, "write 1 or more nodes")
    return dict(group.tiers)


def _positive(field: str, given: float | None, default: float) -> float:
    if given is None:
        return default
    if not 0 <= given < 1e9:
        raise SpecError(field, given, "write a number from 0 to a thousand million")
    return given


def _size(field: str, given: str, default: int) -> int:
    try:
        return size_bytes(given) if given else default
    except ValueError as error:
        raise SpecError(field, given, str(error)) from None
