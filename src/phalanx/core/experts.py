"""Where experts of a mixture-of-experts lie: what is asked, and what the command line shows."""

from dataclasses import dataclass
from typing import Final

SLOTS_MAX: Final = 2**20
"""Of a layer, over all GPUs: far beyond any deployment that is known, and of tables that end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsAsked:
    """loads: measured tokens, one row of experts for each layer. The others are as of `fabric.experts.ExpertLayout`."""

    loads: tuple[tuple[float, ...], ...]
    num_nodes: int
    gpus_per_node: int
    slots_per_gpu: int
    num_groups: int = 0
    even_shares: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsLayerView:
    """One layer. imbalance: largest over mean GPU load. between_nodes: the part of tokens that leaves its node. replicas: of each
    expert. experts: of each GPU, node after node, the expert in each slot; shares: the part of its tokens that it takes there."""

    imbalance: float
    between_nodes: float
    replicas: tuple[int, ...]
    experts: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsView:
    """A placement. num_groups: 0 where experts lie anywhere."""

    num_nodes: int
    gpus_per_node: int
    slots_per_gpu: int
    num_groups: int
    num_experts: int
    layers: tuple[ExpertsLayerView, ...]
