"""A recipe's configuration from the hyperparameters that a rank was given."""

from collections.abc import Mapping

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.recipe import RECIPES, AnyRecipe, LlamaRecipe, written_out
from phalanx.core.spec import Scalar
from phalanx.job.models.given import with_given


def recipe_of(name: str, hyperparameters: Mapping[str, Scalar]) -> AnyRecipe:
    """With the shape of the folder that `init` names. Raises SpecError for an unknown or impossible value; under Phalanx submit
    has already refused those. Raises CheckpointError for a folder that is no model's."""
    try:
        recipe: AnyRecipe = wire.build(RECIPES[name], written_out(hyperparameters, name))
    except ValueError as error:
        raise SpecError("hyperparameters", dict(hyperparameters), str(error)) from error
    for field, value, fix in recipe.problems():
        raise SpecError(f"hyperparameters.{field}", value, fix)
    return with_given(recipe) if recipe.init else recipe


def llama_recipe(hyperparameters: Mapping[str, Scalar]) -> LlamaRecipe:
    """See `recipe_of`."""
    recipe = recipe_of("llama", hyperparameters)
    assert isinstance(recipe, LlamaRecipe)
    return recipe
