"""Step 4, where exactly: a whole gang or nothing, near together and on the fullest nodes that hold it, so that large holes stay
whole."""

from collections.abc import Collection

import numpy as np

from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.fleet import Counts, Fleet, Rows
from phalanx.decide.scheduler.where.topology import arrange


def fit(shape: Shape, kind: str, fleet: Fleet, free: Counts, avoids: Collection[NodeId] = ()) -> Rows | None:
    """Rows for the gang in rank order, from `free` whole devices of the type per node and, for shares, from what is left of those
    held in part: as many nodes as asked, or as near as there is room down to the fewest that will do. None when it does not fit."""
    mask = fleet.roomy(shape, kind, free)
    for node in avoids:
        if node in fleet.ground.row:
            mask[fleet.ground.row[node]] = False
    if np.count_nonzero(mask) < shape.fewest_nodes:
        return None
    rows = np.flatnonzero(mask)
    return arrange(shape, fleet.ground.terrain, rows, fleet.wish(shape.request, kind)[rows], fleet.room(kind))


def fits(shape: Shape, kind: str, fleet: Fleet, free: Counts, avoids: Collection[NodeId] = ()) -> bool:
    """Whether `fit` finds rows. Which ones matters only where nodes have to be near together. For a `free` that does not change
    until what is free in the fleet does."""
    if fleet.num_roomy(shape, kind, free) < shape.fewest_nodes:
        return False
    is_anywhere = shape.within is None and shape.group <= 1 and not avoids
    return is_anywhere or fit(shape, kind, fleet, free, avoids) is not None
