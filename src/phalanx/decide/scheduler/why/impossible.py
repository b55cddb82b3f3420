"""What an idle fleet lacks to hold a gang, and the nearest gang that it would hold. On columns: any number of jobs may ask.

A node must be able to do what the job needs and lie where it wants (`_Want`: yes or no), have enough of each thing (`_Measure`),
and there must be enough such nodes, lying together as they have to.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core import features
from phalanx.core.devices import CPU_SLOT, WHOLE, DeviceRequest
from phalanx.core.policy import TIERS
from phalanx.core.reasons import NeverFits
from phalanx.core.units import show_size
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.eligible import accepted_types, eligible_types, largest_idle, largest_of
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Fleet, Mask

CPUS: Final = "cpus on a node"
MEMORY: Final = "memory on a node"
DEVICE_MEMORY: Final = "memory of a device"
NODES: Final = "nodes with "
"""Resources in `NeverFits`, besides devices and what is wanted of nodes; the last one begins so."""

WHERE: Final = "placing.where."
SPOT: Final = "placing.spot"
WITHIN: Final = " in one "
"""Parts of resources that placement constraints stand for: '...where.zone', '...spot', 'nodes with H100:8 in one rack'."""

_ASKED_BY: Final = MappingProxyType(
    {
        features.IMAGE: "environment.image",
        features.LOCK: "environment.lock",
        features.SECRETS: "secrets",
        features.LEASE: "on_partition",
    }
)
"""Feature to the field of the spec that needs it."""

_MEANS: Final = MappingProxyType(
    {
        features.IMAGE: "install podman, apptainer or enroot on more nodes",
        features.LOCK: "give more nodes a phalanx that builds environments, with uv",
        features.SECRETS: "upgrade phalanx on more nodes to one that fetches secrets",
        features.LEASE: "upgrade phalanx on more nodes to one whose shims keep the lease",
    }
)
"""Feature to what gives it to a node."""

_ANYWHERE: Final = Shape(DeviceRequest(), spot="allow")


@dataclass(frozen=True, slots=True)
class _Want:
    """Something that a node has or has not, asked for by `field`. leave_out: the change that goes without it; means: what gives it
    to more nodes. shape: one that wants nothing else."""

    field: str
    leave_out: str
    means: str
    shape: Shape

    def without(self, shape: Shape) -> Shape:
        """The shape without this want."""
        return replace(
            shape,
            needs=shape.needs - self.shape.needs,
            where=tuple(pair for pair in shape.where if pair not in self.shape.where),
            spot="allow" if self.shape.spot == "never" else shape.spot,
        )


@dataclass(frozen=True, slots=True)
class _Measure:
    """One amount of a node's part: how much is asked, how much each node has, and how people write it."""

    resource: str
    asked: float
    has: NDArray[np.int64] | NDArray[np.int32] | NDArray[np.float64]
    show: Callable[[float], str]

    def holds(self) -> Mask:
        """Asking for nothing is always met, also by a node that says nonsense."""
        return np.asarray(self.has + CORES_SLACK >= self.asked) if self.asked > 0 else np.ones(len(self.has), np.bool_)


@dataclass(frozen=True, slots=True)
class _Shortage:
    """The first thing that no node, or not enough of them, has. `step` counts how many others fit, `share` how near this comes."""

    resource: str
    asked: str
    largest: str
    step: int
    share: float


def impossible(shape: Shape, fleet: Fleet) -> NeverFits:
    """Why no idle fleet of these nodes holds the gang; it must be so."""
    change = in_words(shape, smallest_change(shape, fleet), fleet)
    wants, able = _wants(shape), fleet.able(shape) & _there(fleet)
    if wants and (not able.any() or eligible_types(_unwanting(shape), fleet)):
        return _unable(shape, wants, fleet, change)
    kinds = _types_on(shape, fleet, able)
    if not kinds:
        there = ", ".join(kind for kind in fleet.ground.kinds if fleet.ground.total[kind][able].any()) or "no devices"
        asked = _devices("|".join(shape.request.types))
        return NeverFits(asked, str(shape.request.count), f"0 (the fleet has {there})", change)
    short = _shortage(shape, _best_type(shape, kinds, fleet, able), fleet, able)
    return NeverFits(short.resource, short.asked, short.largest, change)


def smallest_change(shape: Shape, fleet: Fleet) -> Shape | None:
    """The nearest gang that could fit: on spot nodes if those would do; else without what no node meets, and with nothing else that
    it wants, of a type it accepts if there is one, on as many nodes as asked if that many have any, then lying less near
    together, and then the largest part. None when nothing fits, whatever the change."""
    if shape.spot == "never" and eligible_types(on_spot := _NO_SPOT.without(shape), fleet):
        return on_spot
    shape = _without_unmet(shape, fleet)
    able = fleet.able(shape) & _there(fleet)
    kinds = _types_on(shape, fleet, able)
    if not kinds:
        there = [kind for kind in fleet.ground.kinds if fleet.ground.total[kind][able].any()]
        whole = [kind for kind in there if eligible_types(_of_type(shape, kind), fleet)]
        if not there:
            return None
        shape = _of_type(shape, (whole or there)[0])
        kinds = (shape.request.types[0],)
    kind = _best_type(shape, kinds, fleet, able)
    holding = _holding(shape, kind, fleet, able)
    if holding.any():
        return _lying_apart(shape, kind, holding, fleet)
    smaller = _smaller_part(shape, kind, fleet, able)
    return _lying_apart(smaller, kind, _holding(smaller, kind, fleet, able), fleet)


def in_words(shape: Shape, change: Shape | None, fleet: Fleet) -> str:
    """What to write in the spec for `change`, and what else would help."""
    if change is None:
        return "add a node with devices"
    left_out = [want for want in _wants(shape) if want not in _wants(change)]
    wishes = [want.leave_out for want in left_out]
    parts = list(_settings(shape, change))
    wish = " and ".join([*wishes, f"set {', '.join(parts)}"] if parts else wishes) or "ask for less"
    if not _wants(shape) or not eligible_types(_unwanting(shape), fleet):
        return f"{wish}, or add nodes"
    return f"{wish}, or {_rarest(shape, _wants(shape), fleet).means}"


def _settings(shape: Shape, change: Shape) -> Iterator[str]:
    yield from _of_devices(shape.request, change.request)
    if change.cpus != shape.cpus:
        yield f"resources.cpus: {_cores(change.cpus)}"
    if change.memory_bytes != shape.memory_bytes:
        yield f"resources.memory: {change.memory_bytes // 2**20}MiB"
    if change.num_nodes != shape.num_nodes:
        yield f"num_nodes: {change.num_nodes}"
    if change.min_nodes != shape.min_nodes:
        yield f"min_nodes: {change.min_nodes}"
    yield from _of_tiers(shape, change)


def _of_devices(asked: DeviceRequest, change: DeviceRequest) -> Iterator[str]:
    if (change.types, change.count) != (asked.types, asked.count):
        kind = f"{'|'.join(change.types)}:" if change.types else ""
        yield f"resources.gpus: {kind}{f'{change.milli / WHOLE:g}' if change.is_share else change.count}"
    if change.memory_bytes != asked.memory_bytes:
        yield f"resources.gpu_memory: {f'{change.memory_bytes // 2**20}MiB' if change.memory_bytes >= 2**20 else repr('0')}"


def _of_tiers(shape: Shape, change: Shape) -> Iterator[str]:
    if change.within != shape.within:
        yield f"placing.within: {change.within or repr('')}"
    if change.group != shape.group:
        yield f"placing.group: {change.group}"
    elif change.group_within != shape.group_within:
        yield f"placing.group_within: {change.group_within}"


# What is wanted of nodes


def _wants(shape: Shape) -> tuple[_Want, ...]:
    """Each thing that a node has or has not, in a fixed order."""
    return (
        *(_needed(feature) for feature in sorted(shape.needs)),
        *(_labelled(name, value) for name, value in shape.where),
        *([_NO_SPOT] if shape.spot == "never" else ()),
    )


def _needed(feature: str) -> _Want:
    field = _ASKED_BY.get(feature, feature)
    means = _MEANS.get(feature, f"give more nodes {feature}")
    return _Want(field, f"leave {field} out", means, replace(_ANYWHERE, needs=frozenset({feature})))


def _labelled(name: str, value: str) -> _Want:
    shape = replace(_ANYWHERE, where=((name, value),))
    return _Want(f"{WHERE}{name}", f"leave {WHERE}{name} out", f"label more nodes {name}={value} in the policy", shape)


_NO_SPOT: Final = _Want(SPOT, f"set {SPOT}: allow", "add nodes that are not taken away", replace(_ANYWHERE, spot="never"))


def _unwanting(shape: Shape) -> Shape:
    return replace(shape, needs=frozenset(), where=(), spot="allow" if shape.spot == "never" else shape.spot)


def _met(want: _Want, fleet: Fleet) -> Mask:
    return fleet.able(want.shape) & _there(fleet)


def _there(fleet: Fleet) -> Mask:
    """Nodes with devices, but for those that nobody should count on; where there are none, those without too."""
    known = ~fleet.ground.gone
    devices = known & (sum(fleet.ground.total.values()) > 0) if fleet.ground.total else known
    return np.asarray(devices if devices.any() else known)


def _without_unmet(shape: Shape, fleet: Fleet) -> Shape:
    """Without what no node meets together with the most of the rest."""
    wants = _wants(shape)
    if not wants or (fleet.able(shape) & _there(fleet)).any():
        return shape
    met = np.array([_met(want, fleet) for want in wants])
    ablest = int(np.argmax(met.sum(0)))
    for want, meets in zip(wants, met[:, ablest], strict=True):
        shape = shape if meets else want.without(shape)
    return shape


def _rarest(shape: Shape, wants: Sequence[_Want], fleet: Fleet) -> _Want:
    """The one in the way: the first without which it would fit; else of those that the ablest nodes lack the rarest."""
    for want in wants:
        if eligible_types(want.without(shape), fleet):
            return want
    lacking = [want for want in wants if want not in _wants(_without_unmet(shape, fleet))] or wants
    return min(lacking, key=lambda want: (int(np.count_nonzero(_met(want, fleet))), want.field))


def _unable(shape: Shape, wants: Sequence[_Want], fleet: Fleet, change: str) -> NeverFits:
    """What is wanted of nodes stands in the way, before anything else."""
    want = _rarest(shape, wants, fleet)
    largest = max((int(np.count_nonzero(fleet.could_hold(shape, kind))) for kind in accepted_types(shape, fleet)), default=0)
    if largest:
        return NeverFits(f"{NODES}{want.field}", str(shape.fewest_nodes), str(largest), change)
    return NeverFits(want.field, str(shape.fewest_nodes), "none", change)


# How much


def _types_on(shape: Shape, fleet: Fleet, able: Mask) -> tuple[str, ...]:
    return tuple(kind for kind in accepted_types(shape, fleet) if fleet.ground.total[kind][able].any())


def _measures(shape: Shape, kind: str, fleet: Fleet) -> tuple[_Measure, ...]:
    ground, request = fleet.ground, shape.request
    return (
        _Measure(_devices(kind), request.count, ground.total[kind], lambda number: f"{number:.0f}"),
        _Measure(DEVICE_MEMORY, request.memory_bytes, ground.device_memory_bytes, lambda size: show_size(int(size))),
        _Measure(CPUS, shape.cpus, ground.cpus, _cores),
        _Measure(MEMORY, shape.memory_bytes, ground.memory_bytes, lambda size: show_size(int(size))),
    )


def _shortage(shape: Shape, kind: str, fleet: Fleet, able: Mask) -> _Shortage:
    left = able & (fleet.ground.total[kind] > 0)
    measures = _measures(shape, kind, fleet)
    for step, measure in enumerate(measures):
        rows = np.flatnonzero(left)
        left = left & measure.holds()
        if not left.any():
            row = int(rows[np.argmax(measure.has[rows])])
            has = float(measure.has[row])
            shown = f"{measure.show(has)} ({fleet.ground.nodes[row].node})"
            return _Shortage(measure.resource, measure.show(measure.asked), shown, step, has / measure.asked)
    enough = int(np.count_nonzero(left))
    also = " and that room" if shape.cpus or shape.memory_bytes or shape.request.memory_bytes else ""
    part = f"{NODES}{kind}:{shape.request.count}{also}"
    if enough < shape.fewest_nodes:
        return _Shortage(part, str(shape.fewest_nodes), str(enough), len(measures), enough / shape.fewest_nodes)
    near = largest_of(shape, left, fleet)
    together = f"{WITHIN}{shape.within}" if shape.within else f" in groups of {shape.group}{WITHIN}{shape.group_within}"
    return _Shortage(f"{part}{together}", str(shape.fewest_nodes), str(near), len(measures) + 1, near / shape.fewest_nodes)


def _best_type(shape: Shape, kinds: Sequence[str], fleet: Fleet, able: Mask) -> str:
    """The accepted type that comes nearest."""

    def nearness(kind: str) -> tuple[int, float]:
        short = _shortage(shape, kind, fleet, able)
        return short.step, short.share

    return max(kinds, key=nearness)


def _holding(shape: Shape, kind: str, fleet: Fleet, able: Mask) -> Mask:
    mask = able & (fleet.ground.total[kind] > 0)
    for measure in _measures(shape, kind, fleet):
        mask = mask & measure.holds()
    return mask


def _lying_apart(shape: Shape, kind: str, holding: Mask, fleet: Fleet) -> Shape:
    """On as many of the nodes as there are, as near together as they lie."""
    shape = _on(shape, int(np.count_nonzero(holding)))
    for looser in _looser(shape):
        if largest_idle(looser, kind, fleet) >= looser.fewest_nodes:
            return looser
    return shape


def _looser(shape: Shape) -> Iterator[Shape]:
    """The shape itself, then in wider tiers, then anywhere."""
    yield shape
    if shape.within is not None:
        for tier in (*TIERS[TIERS.index(shape.within) + 1 :], None):
            yield replace(shape, within=tier)
    if shape.group > 1:
        for tier in TIERS[TIERS.index(shape.group_within) + 1 :]:
            yield replace(shape, within=None, group_within=tier)
        yield replace(shape, within=None, group=0)


def _on(shape: Shape, num_nodes: int) -> Shape:
    """On at most so many nodes."""
    if shape.fewest_nodes <= num_nodes:
        return shape
    if shape.min_nodes:
        return replace(shape, min_nodes=max(1, num_nodes))
    return replace(shape, num_nodes=max(1, num_nodes))


def _smaller_part(shape: Shape, kind: str, fleet: Fleet, able: Mask) -> Shape:
    """Cuts one thing after the other down to what enough nodes have."""
    left = able & (fleet.ground.total[kind] > 0)
    shape = _on(shape, int(np.count_nonzero(left)))
    cut: list[float] = []
    for measure in _measures(shape, kind, fleet):
        has = np.sort(measure.has[left])[::-1]
        cut.append(min(measure.asked, max(0, float(has[shape.fewest_nodes - 1]))))
        left = left & replace(measure, asked=cut[-1]).holds()
    request = replace(shape.request, count=int(cut[0]), memory_bytes=int(cut[1]))
    return replace(shape, request=request, cpus=cut[2], memory_bytes=int(cut[3]))


def _of_type(shape: Shape, kind: str) -> Shape:
    return replace(shape, request=replace(shape.request, types=(kind,)))


def _devices(kind: str) -> str:
    if kind == CPU_SLOT:  # "cpu devices" would read as if cores were meant
        return "CPU slots on a node"
    return f"{kind} devices on a node" if kind else "devices on a node"


def _cores(number: float) -> str:
    return f"{number:.10g}"
