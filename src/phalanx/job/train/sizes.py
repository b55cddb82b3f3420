"""Counts of parameters and floating-point operations, which are facts of the shape alone."""

from phalanx.core.llama_shape import active_parameters, causal_flops_per_token, flops_per_token, num_parameters

__all__ = ["active_parameters", "causal_flops_per_token", "flops_per_token", "num_parameters"]
