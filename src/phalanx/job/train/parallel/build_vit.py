"""A vision transformer with its first weights, laid over the mesh block by block."""

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.vit_recipe import VitRecipe
from phalanx.job.models.vit import Vit, VitShape
from phalanx.job.train.activations import plain, whole
from phalanx.job.train.classes import ImageClasses
from phalanx.job.train.compiled import compiled_by_all, compiles, run_by
from phalanx.job.train.device import Rank
from phalanx.job.train.initial import fill_part
from phalanx.job.train.initial_vit import first_vit_weights
from phalanx.job.train.parallel.data import DataParallel
from phalanx.job.train.parallel.mesh import of_rank
from phalanx.job.train.precision import Dtype
from phalanx.job.train.speed import look_ahead


def sharded_vit(
    shape: VitShape,
    recipe: VitRecipe,
    rank: Rank,
    mesh: DeviceMesh,
    dtype: Dtype,
    fresh: bool = True,
    names: Sequence[str] = (),
) -> Vit:
    """As `sharded_llama`: weights are those of `init`, or depend on nothing but shape, seed and `init_std`, and no rank ever holds
    more than its shards and one block. names: of the data's classes, by number."""
    with torch.device("meta"):
        model = Vit(shape)
    model.objective = objective(shape, recipe)
    compiled = compiles(compiled_by_all(recipe.compile, rank.device), rank.device)
    again = whole if recipe.activation_checkpointing == "full" else plain
    runs = [plain if index % recipe.activation_blocks else again for index in range(shape.layers)]
    run_by(model.blocks, runs, compiled)
    fill = first_vit_weights(recipe, shape.classes, names, fresh)
    data = DataParallel(mesh, dtype, of_rank(rank).zero, recipe)
    for index, block in enumerate(model.blocks):
        fill_part(block, f"blocks.{index}", fill, rank.device)
        data.part(block)
    for name, part in model.named_children():
        if name != "blocks":
            fill_part(part, name, fill, rank.device)
    data.whole(model)
    look_ahead(model.blocks, recipe.prefetch_blocks)
    return model


def objective(shape: VitShape, recipe: VitRecipe) -> ImageClasses:
    return ImageClasses(side=shape.image, normalise=recipe.normalise, smoothing=recipe.label_smoothing)
