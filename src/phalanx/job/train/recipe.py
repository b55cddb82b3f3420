"""A recipe's configuration from the hyperparameters that a rank was given."""

from collections.abc import Mapping
from pathlib import Path

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.recipe import RECIPES, AnyRecipe, LlamaRecipe, of_given, written_out
from phalanx.core.spec import Scalar
from phalanx.job.models.model_config import read_shape


def recipe_of(name: str, hyperparameters: Mapping[str, Scalar]) -> AnyRecipe:
    """With the shape of the folder that `init` names. Raises SpecError for an unknown or impossible value; under Phalanx submit
    has already refused those. Raises CheckpointError for a folder that is no model's."""
    try:
        recipe: AnyRecipe = wire.build(RECIPES[name], written_out(hyperparameters, name))
    except ValueError as error:
        raise SpecError("hyperparameters", dict(hyperparameters), str(error)) from error
    for field, value, fix in recipe.problems():
        raise SpecError(f"hyperparameters.{field}", value, fix)
    if isinstance(recipe, LlamaRecipe) and recipe.init:
        recipe = of_given(recipe, read_shape(Path(recipe.init)))
    return recipe


def llama_recipe(hyperparameters: Mapping[str, Scalar]) -> LlamaRecipe:
    """See `recipe_of`."""
    recipe = recipe_of("llama", hyperparameters)
    assert isinstance(recipe, LlamaRecipe)
    return recipe
