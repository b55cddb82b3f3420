"""A recipe whose weights are given: with what the folder of its `init` says. No torch."""

from pathlib import Path

from phalanx.core import vit_recipe
from phalanx.core.recipe import AnyRecipe, of_given
from phalanx.core.vit_recipe import VitRecipe
from phalanx.job.models.model_config import read_shape
from phalanx.job.models.vit_config import read_vit


def with_given(recipe: AnyRecipe) -> AnyRecipe:
    """With the shape of the model in that folder. Raises CheckpointError for a folder that is no model's of the recipe, SpecError
    for what such a model cannot have."""
    folder = Path(recipe.init)
    if isinstance(recipe, VitRecipe):
        given = read_vit(folder)
        return vit_recipe.of_given(recipe, given.shape, given.normalise)
    return of_given(recipe, read_shape(folder))


def foreseen_init(recipe: AnyRecipe) -> tuple[AnyRecipe | None, tuple[str, ...]]:
    """Before a job is submitted: as `with_given`, or none and warnings of what is not seen from here. Raises as that does, for what
    a rank would refuse."""
    if not Path(recipe.init).exists():
        return None, (f"init {recipe.init} is not there on this machine; if the machines of its ranks have it, all is well",)
    return with_given(recipe), ()
