"""The model that a recipe trains, for the data that it reads, as the job's layout has it."""

from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.recipe import AnyRecipe, LlamaRecipe
from phalanx.core.vit_recipe import VitRecipe
from phalanx.job.data.images.open import ImageData
from phalanx.job.data.sources import Sources
from phalanx.job.models.llama import Llama
from phalanx.job.models.vit import Vit
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import RunData
from phalanx.job.train.parallel.build_vit import sharded_vit
from phalanx.job.train.pipeline.build import laid_llama
from phalanx.job.train.pipeline.stage import RankPart
from phalanx.job.train.precision import Dtype


def laid_model(
    recipe: AnyRecipe, data: RunData, rank: Rank, mesh: DeviceMesh, dtype: Dtype, num_microbatches: int, fresh: bool
) -> Llama | RankPart | Vit:
    """See `laid_llama`. A collective of all ranks."""
    match recipe, data:
        case LlamaRecipe(), Sources():
            return laid_llama(recipe.shape(data.vocab_size), recipe, rank, mesh, dtype, num_microbatches, fresh)
        case VitRecipe(), ImageData():
            return sharded_vit(recipe.shape(data.classes), recipe, rank, mesh, dtype, fresh, data.names_of_classes)
    raise AssertionError(f"{type(recipe).__name__} does not read {type(data).__name__}")
