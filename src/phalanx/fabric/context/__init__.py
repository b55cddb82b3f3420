"""Context parallelism: which tokens of a row each of the ranks that share it has, and which attention each computes when."""

from phalanx.core.spec import ContextKind
from phalanx.fabric.context.blocks import Block, Round, bounds_of, rounds, whole_rows
from phalanx.fabric.context.cut import KINDS, ContextCut, check_heads, fitting_ranks, head_problems

__all__ = [
    "KINDS", "Block", "ContextCut", "ContextKind", "Round", "bounds_of", "check_heads", "fitting_ranks",
    "head_problems", "rounds", "whole_rows",
]  # fmt: skip
