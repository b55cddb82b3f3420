"""A look at a job's data and `init` before it is submitted: what its ranks would refuse minutes later is refused now."""

from typing import TYPE_CHECKING

from phalanx.show.cli.text import note

if TYPE_CHECKING:
    from phalanx.core.spec import JobSpec
    from phalanx.show.cli.tools import Tools


def look_ahead(tools: "Tools", spec: "JobSpec") -> None:
    """Warns of what cannot be seen from here. Raises DataError, SpecError for a number of classes or for what the model of `init`
    cannot have, CheckpointError for its folder."""
    if spec.data is None:
        return
    from phalanx.core.data_asked import ForeseeAsked
    from phalanx.core.spec_parse import recipe_config
    from phalanx.core.vit_recipe import VitRecipe

    asked = ForeseeAsked(data=spec.data, env=spec.env)
    if spec.recipe:
        recipe = recipe_config(spec)
        held_out = recipe.batch_per_rank * spec.num_data_ranks if recipe.eval_batches else 0
        of_images = isinstance(recipe, VitRecipe)
        of_tokens = {} if of_images else {"sequence": recipe.sequence}
        reads = of_tokens or {"images": recipe.held_out, "classes": recipe.classes}
        asked = ForeseeAsked(data=spec.data, env=spec.env, held_out=held_out, **reads)
    begins = spec.recipe and spec.hyperparameters.get("init")
    for warning in (*tools.foresee_data(asked), *(tools.foresee_model(spec) if begins else ())):
        note(f"Warning: {warning}.")
