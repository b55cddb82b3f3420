"""What a gang wants of its nodes that they have or have not: features, labels, that they stay; and what of it stands in the way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from phalanx.core import features
from phalanx.core.devices import DeviceRequest
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.eligible import eligible_types
from phalanx.decide.scheduler.where.fleet import Fleet, Mask

WHERE: Final = "placing.where."
SPOT: Final = "placing.spot"
"""Parts of resources in `NeverFits` that wants stand for: 'placing.where.zone', 'placing.spot'."""

_ASKED_BY: Final = MappingProxyType(
    {
        features.IMAGE: "environment.image",
        features.LOCK: "environment.lock",
        features.SECRETS: "secrets",
        features.SECRET_FILES: "secret_files",
        features.LEASE: "on_partition",
        features.RECOVERY: "recovery.in_gang",
        features.SHRINK: "recovery.min_ranks",
        features.RECOVERY_NODES: "recovery.in_gang",
        features.DATA_SPEC: "data",
        features.CHECKPOINT_STORE: "checkpoint.store",
        features.LAYOUT: "layout",
        features.PIPELINE: "layout.pp",
    }
)
"""Feature to the field of the spec that needs it."""

_MEANS: Final = MappingProxyType(
    {
        features.IMAGE: "install podman, apptainer or enroot on more nodes that do not keep jobs apart",
        features.LOCK: "give more nodes a phalanx that builds environments, with uv, and does not keep jobs apart",
        features.SECRETS: "upgrade phalanx on more nodes to one that fetches secrets",
        features.SECRET_FILES: "start more agents as root with `--isolation uid`",
        features.LEASE: "upgrade phalanx on more nodes to one whose shims keep the lease",
        features.RECOVERY: "upgrade phalanx on more nodes to one whose shims recover gangs",
        features.SHRINK: "upgrade phalanx on more nodes to one whose shims let gangs shrink",
        features.RECOVERY_NODES: "upgrade phalanx on more nodes to one whose shims recover gangs of several nodes",
        features.DATA_SPEC: "upgrade phalanx on more nodes to one whose recipes mix and fetch data, or name one folder",
        features.CHECKPOINT_STORE: "upgrade phalanx on more nodes to one whose ranks save elsewhere than in the job's folder",
        features.LAYOUT: "upgrade phalanx on more nodes to one whose recipes know layouts",
        features.PIPELINE: "upgrade phalanx on more nodes to one whose recipes know pipelines",
    }
)
"""Feature to what gives it to a node."""

_ANYWHERE: Final = Shape(DeviceRequest(), spot="allow")


@dataclass(frozen=True, slots=True)
class Want:
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


def wants_of(shape: Shape) -> tuple[Want, ...]:
    """Each thing that a node has or has not, in a fixed order."""
    return (
        *(_needed(feature) for feature in sorted(shape.needs)),
        *(_labelled(name, value) for name, value in shape.where),
        *([NO_SPOT] if shape.spot == "never" else ()),
    )


def _needed(feature: str) -> Want:
    field = _ASKED_BY.get(feature, feature)
    means = _MEANS.get(feature, f"give more nodes {feature}")
    return Want(field, f"leave {field} out", means, replace(_ANYWHERE, needs=frozenset({feature})))


def _labelled(name: str, value: str) -> Want:
    shape = replace(_ANYWHERE, where=((name, value),))
    return Want(f"{WHERE}{name}", f"leave {WHERE}{name} out", f"label more nodes {name}={value} in the policy", shape)


NO_SPOT: Final = Want(SPOT, f"set {SPOT}: allow", "add nodes that are not taken away", replace(_ANYWHERE, spot="never"))


def unwanting(shape: Shape) -> Shape:
    return replace(shape, needs=frozenset(), where=(), spot="allow" if shape.spot == "never" else shape.spot)


def _met(want: Want, fleet: Fleet) -> Mask:
    return fleet.able(want.shape) & nodes_with_devices(fleet)


def nodes_with_devices(fleet: Fleet) -> Mask:
    """Nodes with devices, but for those that nobody should count on; where there are none, those without too."""
    known = ~fleet.ground.gone
    devices = known & (sum(fleet.ground.total.values()) > 0) if fleet.ground.total else known
    return np.asarray(devices if devices.any() else known)


def without_unmet(shape: Shape, fleet: Fleet) -> Shape:
    """Without what no node meets together with the most of the rest."""
    wants = wants_of(shape)
    if not wants or (fleet.able(shape) & nodes_with_devices(fleet)).any():
        return shape
    met = np.array([_met(want, fleet) for want in wants])
    ablest = int(np.argmax(met.sum(0)))
    for want, meets in zip(wants, met[:, ablest], strict=True):
        shape = shape if meets else want.without(shape)
    return shape


def rarest(shape: Shape, wants: Sequence[Want], fleet: Fleet) -> Want:
    """The one in the way: the first without which it would fit; else of those that the ablest nodes lack the rarest."""
    for want in wants:
        if eligible_types(want.without(shape), fleet):
            return want
    lacking = [want for want in wants if want not in wants_of(without_unmet(shape, fleet))] or wants
    return min(lacking, key=lambda want: (int(np.count_nonzero(_met(want, fleet))), want.field))
