"""Counts of parameters and floating-point operations, which are facts of the shape alone."""

from phalanx.core.llama_shape import flops_per_token, num_parameters

__all__ = ["flops_per_token", "num_parameters"]
