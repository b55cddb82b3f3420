"""Two placements beside each other: GPUs that are named so that most replicas stay, and slots that keep their expert."""

from dataclasses import replace

import numpy as np

from phalanx.fabric.experts.layout import ExpertPlacement, Floats, Ints


def alike(wanted: ExpertPlacement, present: ExpertPlacement, num_experts: int) -> ExpertPlacement:
    """`wanted` with its GPUs in the order in which they have most in common with `present`; where groups keep to nodes, its nodes
    first, and then the GPUs of each. Loads stay as they are."""
    layout, layers = wanted.layout, wanted.num_layers
    if layout.num_groups:
        by_node = (layers, layout.num_nodes, layout.slots_per_node)
        nodes = matched(_overlap(present.experts_LGS.reshape(by_node), wanted.experts_LGS.reshape(by_node), num_experts))
        wanted = _reordered(wanted, nodes, layout.num_nodes)
    blocks = layers * (layout.num_nodes if layout.num_groups else 1)
    by_gpu = (blocks, -1, layout.slots_per_gpu)
    gpus = matched(_overlap(present.experts_LGS.reshape(by_gpu), wanted.experts_LGS.reshape(by_gpu), num_experts))
    return _reordered(wanted, gpus, gpus.shape[1])


def matched(overlap: Floats) -> Ints:
    """Which column each row of a table [B, n, n] gets: greedily the largest entry of what is left, the first one of equal ones."""
    blocks, size, _ = overlap.shape
    left, found, block = overlap.astype(np.float64), np.zeros((blocks, size), np.int64), np.arange(blocks)
    for _ in range(size):
        row, column = np.divmod(left.reshape(blocks, -1).argmax(1), size)
        found[block, row] = column
        left[block, row, :] = -1.0
        left[block, :, column] = -1.0
    return found


def in_place(present_LGS: Ints, wanted: ExpertPlacement) -> ExpertPlacement:
    """`wanted` with each expert that its GPU has already in the slot where that is; others in the slots that are left."""
    same = present_LGS[..., :, None] == wanted.experts_LGS[..., None, :]
    kept, stays = same.any(-1), same.any(-2)
    free, comes = np.argsort(kept, axis=-1, kind="stable"), np.argsort(stays, axis=-1, kind="stable")
    origin = same.argmax(-1)
    rank = np.argsort(free, axis=-1, kind="stable")  # of a free slot: how many are before it
    origin = np.where(kept, origin, np.take_along_axis(comes, rank, -1))
    experts, shares = np.take_along_axis(wanted.experts_LGS, origin, -1), np.take_along_axis(wanted.shares_LGS, origin, -1)
    return replace(wanted, experts_LGS=experts, shares_LGS=shares)


def _overlap(present: Ints, wanted: Ints, num_experts: int) -> Floats:
    """How many experts each block of slots has in common with each other one, [B, n, n]."""
    return np.asarray(_marks(present, num_experts) @ _marks(wanted, num_experts).transpose(0, 2, 1), np.float64)


def _marks(experts: Ints, num_experts: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    blocks, size, _ = experts.shape
    found = np.zeros((blocks, size, num_experts), np.float32)
    found[np.arange(blocks)[:, None, None], np.arange(size)[None, :, None], experts] = 1.0
    return found


def _reordered(placement: ExpertPlacement, order: Ints, size: int) -> ExpertPlacement:
    """order [B, n]: which of its n parts comes to each place of a block."""
    shape, parts = placement.experts_LGS.shape, (len(order), size, -1)
    experts = np.take_along_axis(placement.experts_LGS.reshape(parts), order[:, :, None], 1).reshape(shape)
    shares = np.take_along_axis(placement.shares_LGS.reshape(parts), order[:, :, None], 1).reshape(shape)
    return replace(placement, experts_LGS=experts, shares_LGS=shares)
