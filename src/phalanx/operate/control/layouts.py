"""Whether a job's layout can work on the ranks that it asks for: found out at submit and by `plan`, before a rank starts. Pure."""

from phalanx.core.errors import SpecError
from phalanx.core.recipe import AnyRecipe
from phalanx.core.spec import JobSpec
from phalanx.core.spec_layout import PLAIN
from phalanx.core.spec_parse import recipe_config
from phalanx.fabric.layouts import RankFacts, facts_of, named, problems, recipe_problems


def refuse_unfitting(spec: JobSpec, given: AnyRecipe | None = None) -> None:
    """Raises SpecError for the first thing that cannot work, with the values that can. given: the job's recipe with the shape of
    the model of its `init`, which is known where somebody has looked into the folder."""
    recipe = given or (recipe_config(spec) if spec.recipe else None)
    is_plain = spec.layout == PLAIN
    model = facts_of(recipe) if recipe is not None and not is_plain and (given or not recipe.init) else None
    ranks = RankFacts(world_size=spec.num_ranks, per_domain=ranks_per_domain(spec))
    of_recipe = recipe_problems(spec.layout, recipe) if recipe is not None else []
    of_layout = problems(spec.layout, model, ranks) if not is_plain else []
    for field, value, fix in (*of_recipe, *of_layout):
        raise SpecError(named(field), value, fix)


def ranks_per_domain(spec: JobSpec) -> int:
    """That lie in one NVLink domain for sure: those of a node, unless the job asks for more to lie in one."""
    placing, on_node = spec.placing, spec.resources.devices.count
    if placing.within == "domain":
        return spec.num_ranks
    return on_node * (placing.group if placing.group and placing.group_within == "domain" else 1)
