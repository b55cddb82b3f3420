"""A recipe's configuration from the hyperparameters that a rank was given."""

from collections.abc import Mapping

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import Scalar


def llama_recipe(hyperparameters: Mapping[str, Scalar]) -> LlamaRecipe:
    """Raises SpecError for an unknown or impossible value; under Phalanx submit has already refused those."""
    try:
        recipe: LlamaRecipe = wire.build(LlamaRecipe, dict(hyperparameters))
    except ValueError as error:
        raise SpecError("hyperparameters", dict(hyperparameters), str(error)) from error
    for name, value, fix in recipe.problems():
        raise SpecError(f"hyperparameters.{name}", value, fix)
    return recipe
