"""Counts of parameters and floating-point operations, which are facts of the shape alone."""

from phalanx.core.llama_shape import LlamaShape, active_parameters, causal_flops_per_token, flops_per_token, num_parameters
from phalanx.core.recipe import AnyRecipe
from phalanx.core.vit_shape import VitShape, flops_per_image

__all__ = ["active_parameters", "causal_flops_per_token", "flops_per_token", "num_parameters", "step_flops_per_token"]


def step_flops_per_token(shape: LlamaShape | VitShape, recipe: AnyRecipe) -> float:
    """Of a training step by a recipe; of an image a token is a patch, or the one for its class."""
    if isinstance(shape, VitShape):
        return flops_per_image(shape) / shape.tokens
    return flops_per_token(shape, recipe.sequence, frozen=recipe.lora is not None)
