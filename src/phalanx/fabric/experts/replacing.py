"""Between steps: from where experts lie to a better placement, as far as what it gains is worth what it moves."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from phalanx.core.errors import DataError
from phalanx.fabric.experts.exchange import rehost, swap_largest
from phalanx.fabric.experts.layout import ExpertLayout, ExpertPlacement, Floats, Ints, checked_loads, node_shares
from phalanx.fabric.experts.level import level, settle
from phalanx.fabric.experts.likeness import alike, in_place
from phalanx.fabric.experts.moves import Move, moves_between
from phalanx.fabric.experts.placing import balance, placed
from phalanx.fabric.experts.present import check_placement, rows_of
from phalanx.fabric.experts.rows import LEAST
from phalanx.fabric.experts.search import of_layer

CHANGES = 16
"""Single changes of a layer that are tried one after the other. Beyond them a placement made anew is near."""


@dataclass(frozen=True, slots=True)
class MoveCost:
    """What a move costs and what a lower load gains, both in seconds.

    expert_bytes: of one replica in one layer, with all that moves with it. token_s: what a GPU needs for one token of one expert,
    forward and backward. num_steps: until loads are balanced the next time. node_bytes_per_s, fabric_bytes_per_s: into one GPU,
    from its own node and from another one. buffers: experts of one layer that a GPU can take in beside its slots at a time.
    """

    expert_bytes: int
    token_s: float
    num_steps: int
    node_bytes_per_s: float
    fabric_bytes_per_s: float
    buffers: int = 1

    def check(self) -> None:
        """Raises DataError."""
        for name in ("expert_bytes", "token_s", "num_steps"):
            if not 0 <= getattr(self, name) < np.inf:
                raise DataError(name, getattr(self, name), "write a finite number, 0 or more")
        for name in ("node_bytes_per_s", "fabric_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise DataError(name, getattr(self, name), "write a number above 0")
        if self.buffers < 1:
            raise DataError("buffers", self.buffers, "write 1 or more")


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """placement: what is best now; where nothing moves, the present one with shares for the new loads. moves: what brings the
    present placement to it, slot for slot. gain_s: what its steps take less than with the present replicas under their best shares,
    [L]. cost_s: what the moves take, [L]: the GPU that gets most, at the given rates. node_bytes, fabric_bytes: moved within nodes,
    and between them."""

    placement: ExpertPlacement
    moves: tuple[Move, ...]
    gain_s: Floats
    cost_s: Floats
    node_bytes: int
    fabric_bytes: int


def rebalance(present: ExpertPlacement, loads_LE: ArrayLike, cost: MoveCost) -> Rebalanced:
    """The placement of each layer with the most gain less cost, among: the present replicas with new shares, up to CHANGES single
    changes of them, and a new placement whose GPUs are named so that most replicas stay.

    loads_LE: tokens of a step for each expert, [L, E], as they are expected until the next time. Raises DataError.
    """
    loads = checked_loads(loads_LE)
    check_placement(present, loads)
    cost.check()
    best = _Best(_settled(present, loads), loads, cost, present)
    if cost.num_steps:  # else nothing is worth a move, and whoever wants new shares at every step wants them at once
        for placement in _changed(best.placement, loads):
            best.offer(placement)
        best.offer(alike(balance(loads, present.layout), present, loads.shape[1]))
    placement, moves = _with_moves(present, best.placement, cost.buffers)
    per_node = present.layout.gpus_per_node
    between = sum(move.source // per_node != move.target // per_node for move in moves)
    node_bytes = (len(moves) - between) * cost.expert_bytes
    return Rebalanced(placement, moves, best.gain_s, best.cost_s, node_bytes, between * cost.expert_bytes)


class _Best:
    """The best placement of each layer so far."""

    def __init__(self, placement: ExpertPlacement, loads: Floats, cost: MoveCost, present: ExpertPlacement) -> None:
        layers = present.num_layers
        self.placement, self.gain_s, self.cost_s = placement, np.zeros(layers), np.zeros(layers)
        self._loads, self._cost, self._present = loads, cost, present
        self._largest = placement.gpu_loads(loads).max(1)

    def offer(self, other: ExpertPlacement) -> None:
        """Takes the layers in which it is better."""
        cost, experts = self._cost, other.experts_LGS
        gain_s = (self._largest - other.gpu_loads(self._loads).max(1)) * cost.token_s * cost.num_steps
        cost_s = moved_s(self._present.experts_LGS, experts, other.layout, cost, self._loads.shape[1])
        rounding = LEAST * self._largest * cost.token_s * cost.num_steps
        better = gain_s - cost_s > self.gain_s - self.cost_s + rounding
        chosen = better[:, None, None]
        shares = np.where(chosen, other.shares_LGS, self.placement.shares_LGS)
        self.placement = replace(other, experts_LGS=np.where(chosen, experts, self.placement.experts_LGS), shares_LGS=shares)
        self.gain_s, self.cost_s = np.where(better, gain_s, self.gain_s), np.where(better, cost_s, self.cost_s)


def moved_s(before_LGS: Ints, after_LGS: Ints, layout: ExpertLayout, cost: MoveCost, num_experts: int) -> Floats:
    """How long the GPU takes that gets most, [L]; an expert comes from its own node where that has it, and once."""
    slots = np.arange(layout.slots_per_gpu)
    again = ((after_LGS[..., :, None] == after_LGS[..., None, :]) & (slots < slots[:, None])).any(-1)
    comes = ~(again | (after_LGS[..., :, None] == before_LGS[..., None, :]).any(-1))
    on_node = node_shares(layout, before_LGS, np.ones(before_LGS.shape), num_experts) > 0
    node = np.arange(layout.num_gpus)[None, :, None] // layout.gpus_per_node
    within = (comes & on_node[np.arange(len(after_LGS))[:, None, None], node, after_LGS]).sum(2)
    seconds = within / cost.node_bytes_per_s + (comes.sum(2) - within) / cost.fabric_bytes_per_s
    return np.asarray(seconds.max(1) * cost.expert_bytes)


def _settled(present: ExpertPlacement, loads: Floats) -> ExpertPlacement:
    """The same replicas with shares for these loads."""
    rows, members = rows_of(present, loads)
    settle(rows)
    return placed(present.layout, rows, members, len(loads), even=False)


def _changed(present: ExpertPlacement, loads: Floats) -> Iterator[ExpertPlacement]:
    """After each single change of each layer's heaviest GPU, be it a swap or a replica that becomes another expert's."""
    rows, members = rows_of(present, loads)
    for _ in range(CHANGES):
        rows.enough = of_layer(rows.largest(), len(loads)) * (1 - LEAST)  # other nodes than the heaviest one keep what they have
        changed = swap_largest(rows, rounds=1)
        rest = rows.open(np.flatnonzero(~changed))
        if len(rest):
            part = rows.at(rest)
            changed[rest] = rehost(part)
            rows.put(rest, part)
        if not changed.any():
            return
        rows.enough = np.where(changed, 0.0, np.inf)
        level(rows)
        yield placed(present.layout, rows, members, len(loads), even=False)


def _with_moves(present: ExpertPlacement, wanted: ExpertPlacement, buffers: int) -> tuple[ExpertPlacement, tuple[Move, ...]]:
    """The moves, and the placement with its slots as they leave them."""
    moves = moves_between(present.layout, present.experts_LGS, in_place(present.experts_LGS, wanted).experts_LGS, buffers)
    experts = present.experts_LGS.copy()
    for move in moves:
        experts[move.layer, move.target, move.slot] = move.expert
    return in_place(experts, wanted), moves
