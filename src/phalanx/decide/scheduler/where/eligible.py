"""Where a job could ever run: the device types in which an idle fleet would hold its gang."""

import numpy as np

from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.where.topology import largest


def accepted_types(shape: Shape, fleet: Fleet) -> tuple[str, ...]:
    """The fleet's types that the job accepts, in its order of preference. A gang runs on one of them."""
    known = fleet.ground.kinds
    return tuple(kind for kind in shape.request.types if kind in known) if shape.request.types else known


def eligible_types(shape: Shape, fleet: Fleet) -> tuple[str, ...]:
    """The accepted types in which enough nodes, lying as they have to, could hold a part; empty when the job can never fit."""
    known = fleet.ground.seen.eligible
    if shape not in known:
        kinds = accepted_types(shape, fleet)
        known[shape] = tuple(kind for kind in kinds if largest_idle(shape, kind, fleet) >= shape.fewest_nodes)
    return known[shape]


def largest_idle(shape: Shape, kind: str, fleet: Fleet) -> int:
    """Nodes of the largest gang of the shape, up to what it asks for, that the fleet would hold if it were idle."""
    return largest_of(shape, fleet.could_hold(shape, kind), fleet)


def largest_now(shape: Shape, kind: str, fleet: Fleet) -> int:
    """Nodes of the largest gang of the shape, up to what it asks for, that what is free would hold."""
    return largest_of(shape, fleet.roomy(shape, kind, fleet.free[kind]), fleet)


def largest_of(shape: Shape, mask: np.ndarray[tuple[int], np.dtype[np.bool_]], fleet: Fleet) -> int:
    if shape.within is None and shape.group <= 1:
        return min(shape.num_nodes, int(np.count_nonzero(mask)))
    return largest(shape, fleet.ground.terrain, np.flatnonzero(mask))
