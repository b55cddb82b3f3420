"""What an idle fleet lacks to hold a gang, and the nearest gang that it would hold. On columns: any number of jobs may ask.

A node must be able to do what the job needs and lie where it wants (`wants.py`: yes or no), have enough of each thing
(`shortage.py`), and there must be enough such nodes, lying together as they have to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from phalanx.core.devices import DeviceRequest
from phalanx.core.policy import TIERS
from phalanx.core.reasons import NeverFits
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.eligible import accepted_types, eligible_types, largest_idle
from phalanx.decide.scheduler.where.fleet import Fleet, Mask
from phalanx.decide.scheduler.why.shortage import (
    NODES,
    best_type,
    devices_named,
    measures_of,
    nodes_holding,
    shortage,
    show_cores,
    types_on,
)
from phalanx.decide.scheduler.why.wants import NO_SPOT, Want, nodes_with_devices, rarest, unwanting, wants_of, without_unmet


def impossible(shape: Shape, fleet: Fleet) -> NeverFits:
    """Why no idle fleet of these nodes holds the gang; it must be so."""
    change = in_words(shape, smallest_change(shape, fleet), fleet)
    wants, able = wants_of(shape), fleet.able(shape) & nodes_with_devices(fleet)
    if wants and (not able.any() or eligible_types(unwanting(shape), fleet)):
        return _unable(shape, wants, fleet, change)
    kinds = types_on(shape, fleet, able)
    if not kinds:
        there = ", ".join(kind for kind in fleet.ground.kinds if fleet.ground.total[kind][able].any()) or "no devices"
        asked = devices_named("|".join(shape.request.types))
        return NeverFits(asked, str(shape.request.count), f"0 (the fleet has {there})", change)
    short = shortage(shape, best_type(shape, kinds, fleet, able), fleet, able)
    return NeverFits(short.resource, short.asked, short.largest, change)


def _unable(shape: Shape, wants: Sequence[Want], fleet: Fleet, change: str) -> NeverFits:
    """What is wanted of nodes stands in the way, before anything else."""
    want = rarest(shape, wants, fleet)
    largest = max((int(np.count_nonzero(fleet.could_hold(shape, kind))) for kind in accepted_types(shape, fleet)), default=0)
    if largest:
        return NeverFits(f"{NODES}{want.field}", str(shape.fewest_nodes), str(largest), change)
    return NeverFits(want.field, str(shape.fewest_nodes), "none", change)


# The nearest gang that fits


def smallest_change(shape: Shape, fleet: Fleet) -> Shape | None:
    """The nearest gang that could fit: on spot nodes if those would do; else without what no node meets, and with nothing else that
    it wants, of a type it accepts if there is one, on as many nodes as asked if that many have any, then lying less near
    together, and then the largest part. None when nothing fits, whatever the change."""
    if shape.spot == "never" and eligible_types(on_spot := NO_SPOT.without(shape), fleet):
        return on_spot
    shape = without_unmet(shape, fleet)
    able = fleet.able(shape) & nodes_with_devices(fleet)
    kinds = types_on(shape, fleet, able)
    if not kinds:
        there = [kind for kind in fleet.ground.kinds if fleet.ground.total[kind][able].any()]
        whole = [kind for kind in there if eligible_types(_of_type(shape, kind), fleet)]
        if not there:
            return None
        shape = _of_type(shape, (whole or there)[0])
        kinds = (shape.request.types[0],)
    kind = best_type(shape, kinds, fleet, able)
    holding = nodes_holding(shape, kind, fleet, able)
    if holding.any():
        return _lying_apart(shape, kind, holding, fleet)
    smaller = _smaller_part(shape, kind, fleet, able)
    return _lying_apart(smaller, kind, nodes_holding(smaller, kind, fleet, able), fleet)


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
    for measure in measures_of(shape, kind, fleet):
        has = np.sort(measure.has[left])[::-1]
        cut.append(min(measure.asked, max(0, float(has[shape.fewest_nodes - 1]))))
        left = left & replace(measure, asked=cut[-1]).holds()
    request = replace(shape.request, count=int(cut[0]), memory_bytes=int(cut[1]))
    return replace(shape, request=request, cpus=cut[2], memory_bytes=int(cut[3]))


def _of_type(shape: Shape, kind: str) -> Shape:
    return replace(shape, request=replace(shape.request, types=(kind,)))


# What to write


def in_words(shape: Shape, change: Shape | None, fleet: Fleet) -> str:
    """What to write in the spec for `change`, and what else would help."""
    if change is None:
        return "add a node with devices"
    left_out = [want for want in wants_of(shape) if want not in wants_of(change)]
    wishes = [want.leave_out for want in left_out]
    if shape.within is not None and change.within is None:
        wishes.append("leave placing.within out")
    parts = list(_settings(shape, change))
    wish = " and ".join([*wishes, f"set {', '.join(parts)}"] if parts else wishes) or "ask for less"
    if not wants_of(shape) or not eligible_types(unwanting(shape), fleet):
        return f"{wish}, or add nodes"
    return f"{wish}, or {rarest(shape, wants_of(shape), fleet).means}"


def _settings(shape: Shape, change: Shape) -> Iterator[str]:
    yield from _of_devices(shape.request, change.request)
    if change.cpus != shape.cpus:
        yield f"resources.cpus: {show_cores(change.cpus)}"
    if change.memory_bytes != shape.memory_bytes:
        yield f"resources.memory: {change.memory_bytes // 2**20}MiB"
    if change.num_nodes != shape.num_nodes:
        yield f"num_nodes: {change.num_nodes}"
    if change.min_nodes != shape.min_nodes:
        yield f"min_nodes: {change.min_nodes}"
    yield from _of_tiers(shape, change)


def _of_devices(asked: DeviceRequest, change: DeviceRequest) -> Iterator[str]:
    if (change.types, change.count) != (asked.types, asked.count):
        yield f"resources.gpus: {change}"
    if change.memory_bytes != asked.memory_bytes:
        yield f"resources.gpu_memory: {f'{change.memory_bytes // 2**20}MiB' if change.memory_bytes >= 2**20 else repr('0')}"


def _of_tiers(shape: Shape, change: Shape) -> Iterator[str]:
    if change.within is not None and change.within != shape.within:
        yield f"placing.within: {change.within}"
    if change.group != shape.group:
        yield f"placing.group: {change.group}"
    elif change.group_within != shape.group_within:
        yield f"placing.group_within: {change.group_within}"
