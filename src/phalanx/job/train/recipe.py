"""A recipe's configuration from the hyperparameters that a rank was given."""

from collections.abc import Mapping

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.recipe import RECIPES, AnyRecipe, LlamaRecipe, written_out
from phalanx.core.spec import Scalar
from phalanx.job.train.initial import with_shape_of_init


def recipe_of(name: str, hyperparameters: Mapping[str, Scalar]) -> AnyRecipe:
    """With the shape of the folder that `init` names. Raises SpecError for an unknown or impossible value; under Phalanx submit
    has already refused those. Raises CheckpointError for a folder that is no model's."""
    try:
        recipe: AnyRecipe = wire.build(RECIPES[name], written_out(hyperparameters, name))
    except ValueError as error:
        raise SpecError("hyperparameters", dict(hyperparameters), str(error)) from error
    _check(recipe)
    if isinstance(recipe, LlamaRecipe) and recipe.init:
        recipe = with_shape_of_init(recipe)
        _check(recipe)  # what hangs on the shape could not be seen before
    return recipe


def llama_recipe(hyperparameters: Mapping[str, Scalar]) -> LlamaRecipe:
    """See `recipe_of`."""
    recipe = recipe_of("llama", hyperparameters)
    assert isinstance(recipe, LlamaRecipe)
    return recipe


def _check(recipe: AnyRecipe) -> None:
    for name, value, fix in recipe.problems():
        raise SpecError(f"hyperparameters.{name}", value, fix)
