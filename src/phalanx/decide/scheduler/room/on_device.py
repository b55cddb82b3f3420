"""Devices held in part, where gangs are ended for others: what several let go of counts only where it is on one device.

For a share one device of each node counts: one that has room already, or the one where those that are in the way are cheapest. For
whole devices those count of which nobody stays.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE
from phalanx.decide.scheduler.room.buying import Amounts, Market, Offered, has_room
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.fleet import Counts, Mask, Rows

NEEDS: Final = (1.0, 1.0)
"""Thousandths of a device, and its memory, are counted in what one share asks for."""


def on_cheapest_device(shape: Shape, kind: str, base: Counts, at: Rows, round_: Round) -> tuple[Amounts, Amounts]:
    """For a gang that asks for a share of one device on each of its nodes: what there is of that device on each node of the fleet,
    and what comes free of it with each slice of the type. base: whole devices that the job may use. at: places, in the columns, of
    slices that may be bought."""
    fleet, columns, parts = round_.fleet, round_.victims.columns(kind), round_.victims.parts(kind)
    there = np.flatnonzero(parts.device >= 0)
    slices = parts.at[there]
    device, of_device = np.unique(parts.device[there], return_inverse=True)
    row = device // parts.width
    own_part = fleet.ground.device_memory_bytes * shape.request.milli // WHOLE
    asked = np.empty((2, len(own_part)), np.int64)
    asked[0], asked[1] = shape.request.milli, shape.request.memory_bytes or own_part
    given = _in_shares(np.stack([parts.milli, parts.memory])[:, there], asked[:, row[of_device]])
    left = _in_shares(np.stack(fleet.shares.left_of(row, device % parts.width)), asked[:, row])
    may = np.zeros(len(columns.slice_gang), np.bool_)
    may[at] = True
    price = _prices(columns.slice_gang[slices], of_device, may[slices], given, left, shape.fewest_nodes, round_)
    order = np.lexsort((price, row))
    cheapest = order[np.flatnonzero(np.diff(row[order], prepend=-1))]
    has_room_now = fleet.sharable(shape.request, kind, base) >= 1
    cheapest = cheapest[~has_room_now[row[cheapest]]]
    has = np.where(has_room_now, 1.0, np.zeros((2, len(base))))
    has[:, row[cheapest]] = left[:, cheapest]
    counts, freed = np.isin(of_device, cheapest), np.zeros((2, len(may)))
    freed[:, slices[counts]] = given[:, counts]
    return has, freed


def as_whole_devices(kind: str, at: Rows, round_: Round) -> tuple[NDArray[np.float64], Rows]:
    """How many whole devices come free with each slice of the type, and the first slice of those that have to be bought together.
    A device that nobody of those stays on comes free with all of them who do not end anyway, a part with each. at: as above."""
    columns, parts, ending = round_.victims.columns(kind), round_.victims.parts(kind, of_shares=True), round_.victims.ending
    freed, together = np.where(columns.shared, 0.0, columns.slice_devices), np.arange(len(columns.shared))
    may = np.zeros(len(together), np.bool_)
    may[at] = True
    held = np.flatnonzero((parts.device >= 0) & (parts.milli < WHOLE) & may[parts.at])
    slices, milli = parts.at[held], parts.milli[held]
    device, first, of_device = np.unique(parts.device[held], return_index=True, return_inverse=True)
    left = round_.fleet.shares.left_of(device // parts.width, device % parts.width)[0]
    ends = ending[columns.slice_gang[slices]]
    in_all, soon = (np.bincount(of_device, amounts, len(device)) for amounts in (milli, milli * ends))
    is_free_soon = left + soon >= WHOLE
    counts = np.where(is_free_soon[of_device], ends, ~ends & (left + in_all >= WHOLE)[of_device])
    np.add.at(freed, slices, counts * milli / np.maximum(1, np.where(is_free_soon, soon, in_all - soon))[of_device])
    together[slices] = slices[first][of_device]
    return freed, together


def _in_shares(amounts: Rows, asked: Rows) -> Amounts:
    """Of nothing that is asked for there is enough."""
    return np.where(asked > 0, amounts / np.maximum(1, asked), 1.0)


def _prices(gang: Rows, device: Rows, may: Mask, given: Amounts, left: Amounts, missing: int, round_: Round) -> NDArray[np.float64]:
    """What room on each device costs, if those that end anyway let go first. gang, device, may, given: of parts of slices."""
    ends = may & round_.victims.ending[gang]
    num_devices = left.shape[1]
    left = left + [np.bincount(device[ends], more[ends], num_devices) for more in given]
    price = np.where(has_room(NEEDS, left), 0.0, np.inf)
    for_sale = np.flatnonzero(may & ~ends & (price > 0)[device])
    market = Market(NEEDS, Offered(gang[for_sale], device[for_sale], given[:, for_sale]), left, round_.victims.cost)
    price[market.rows] = market.prices(missing)
    return price
