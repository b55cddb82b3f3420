"""The model that a recipe trains, for the data that it reads."""

from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.recipe import AnyRecipe, LlamaRecipe
from phalanx.core.vit_recipe import VitRecipe
from phalanx.job.data.images.open import ImageData
from phalanx.job.data.sources import Sources
from phalanx.job.models.llama import Llama
from phalanx.job.models.vit import Vit
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import RunData
from phalanx.job.train.parallel.build import sharded_llama
from phalanx.job.train.parallel.build_vit import sharded_vit
from phalanx.job.train.precision import Dtype


def sharded_model(recipe: AnyRecipe, data: RunData, rank: Rank, mesh: DeviceMesh, dtype: Dtype, fresh: bool) -> Llama | Vit:
    """See `sharded_llama`. A collective of all ranks."""
    match recipe, data:
        case LlamaRecipe(), Sources():
            return sharded_llama(recipe.shape(data.vocab_size), recipe, rank, mesh, dtype, fresh)
        case VitRecipe(), ImageData():
            return sharded_vit(recipe.shape(data.classes), recipe, rank, mesh, dtype, fresh)
    raise AssertionError(f"{type(recipe).__name__} does not read {type(data).__name__}")
