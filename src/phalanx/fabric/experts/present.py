"""A placement that somebody gives us: whether it is one, and as rows that can be worked on."""

import numpy as np

from phalanx.core.errors import DataError
from phalanx.fabric.experts.layout import ExpertPlacement, Floats, Ints, at, counted, node_shares
from phalanx.fabric.experts.placing import gpus_of_row, grouped, row_loads
from phalanx.fabric.experts.rows import Rows


def check_placement(present: ExpertPlacement, loads: Floats) -> None:
    """Raises DataError where a placement is not one of these experts in its layout."""
    layout, (layers, num_experts) = present.layout, loads.shape
    layout.check(num_experts)
    shape = (layers, layout.num_gpus, layout.slots_per_gpu)
    for name, table in (("experts_LGS", present.experts_LGS), ("shares_LGS", present.shares_LGS)):
        if table.shape != shape:
            raise DataError(name, table.shape, f"the loads and the layout make it {shape}; give the placement of this layout")
    experts = present.experts_LGS
    if experts.min() < 0 or experts.max() >= num_experts:
        raise DataError("experts_LGS", int(experts.max()), f"the loads are of experts 0 to {num_experts - 1}; give their placement")
    _check_replicas(present, num_experts)
    total = np.zeros(loads.shape)
    np.add.at(total, (np.arange(layers)[:, None, None], experts), present.shares_LGS)
    if not np.isfinite(total).all() or (present.shares_LGS < 0).any() or np.abs(total - 1).max() > 1e-6:
        raise DataError("shares_LGS", None, "are not 0 or more with the sum 1 for each expert of a layer; scale them")


def _check_replicas(present: ExpertPlacement, num_experts: int) -> None:
    layout, experts = present.layout, present.experts_LGS
    absent = np.argwhere(present.replicas(num_experts) == 0)
    if len(absent):
        layer, expert = map(int, absent[0])
        raise DataError("experts_LGS", None, f"layer {layer} has no replica of expert {expert}; give each a slot")
    order = np.sort(experts, axis=2)
    twice = np.argwhere(order[:, :, 1:] == order[:, :, :-1])
    if len(twice):
        layer, gpu, slot = map(int, twice[0])
        said = f"GPU {gpu} has expert {order[layer, gpu, slot]} twice in layer {layer}"
        raise DataError("experts_LGS", None, f"{said}; begin from a placement without even_shares")
    if layout.num_groups:
        nodes = (node_shares(layout, experts, np.ones(experts.shape), num_experts) > 0).reshape(
            len(experts), layout.num_nodes, layout.num_groups, -1
        )
        apart = np.argwhere(nodes.any(3).sum(1) > 1)
        if len(apart):
            layer, group = map(int, apart[0])
            raise DataError(
                "experts_LGS", None, f"group {group} of layer {layer} lies on two nodes; give num_groups 0, or a node each"
            )


def rows_of(placement: ExpertPlacement, loads: Floats) -> tuple[Rows, Ints]:
    """A placement's rows, and the experts of each row."""
    layout, (layers, num_experts) = placement.layout, loads.shape
    num_gpus = gpus_of_row(layout)
    members = np.tile(np.arange(num_experts), (layers, 1))
    if layout.num_groups:
        there = node_shares(layout, placement.experts_LGS, np.ones(placement.experts_LGS.shape), num_experts)
        node = there.argmax(1).astype(np.int64)
        members = grouped(node, layout.num_nodes, np.zeros_like(node))
    experts = placement.experts_LGS.reshape(len(members), -1)
    numbers = np.zeros((len(members), num_experts + 1), np.int64)
    numbers[np.arange(len(members))[:, None], members] = np.arange(members.shape[1])  # -1 writes the last column
    local = np.take_along_axis(numbers, experts, 1).reshape(len(members), num_gpus, -1)
    of_rows, _ = row_loads(loads, members)
    tokens = at(of_rows, local) * placement.shares_LGS.reshape(local.shape)
    copies = counted(local.reshape(len(members), -1), members.shape[1])
    return Rows(of_rows, copies, local, tokens, tokens.sum(-1), np.zeros(len(members))), members
