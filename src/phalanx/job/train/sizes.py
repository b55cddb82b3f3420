"""Counts of parameters and floating-point operations."""

from phalanx.job.models.llama import LlamaShape


def num_parameters(shape: LlamaShape) -> int:
    """All weights, embeddings included."""
    block = 4 * shape.dim**2 + 3 * shape.dim * shape.ffn_dim + 2 * shape.dim
    return 2 * shape.vocab * shape.dim + shape.layers * block + shape.dim


def flops_per_token(shape: LlamaShape, sequence: int) -> int:
    """Of a training step: 6 x (parameters - embedding) + 12 x layers x dim x sequence.

    As PaLM's appendix B (arXiv:2204.02311) and torchtitan count: attention in full although it is causal; recomputation not.
    """
    return 6 * (num_parameters(shape) - shape.vocab * shape.dim) + 12 * shape.layers * shape.dim * sequence
