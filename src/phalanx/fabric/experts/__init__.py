"""The expert load balancer: replicas of a mixture-of-experts' experts and their places on nodes and GPUs, from measured loads."""

from phalanx.fabric.experts.layout import ExpertLayout, ExpertPlacement
from phalanx.fabric.experts.moves import Move
from phalanx.fabric.experts.placing import balance
from phalanx.fabric.experts.replacing import MoveCost, Rebalanced, rebalance
from phalanx.fabric.experts.replicas import Replica, gpu_loads, replicas

__all__ = [
    "ExpertLayout",
    "ExpertPlacement",
    "Move",
    "MoveCost",
    "Rebalanced",
    "Replica",
    "balance",
    "gpu_loads",
    "rebalance",
    "replicas",
]
