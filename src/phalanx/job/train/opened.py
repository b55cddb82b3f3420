"""The data of a run, opened and looked at before anything is built."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from phalanx.core.recipe import LlamaRecipe
from phalanx.core.training_data import DataSource
from phalanx.core.vit_recipe import VitRecipe
from phalanx.job.data.images.open import ImageData, Look, open_images
from phalanx.job.data.open import TokenData
from phalanx.job.data.sources import Sources, open_sources
from phalanx.job.models.vit_folder import VitFolder
from phalanx.job.train.initial import check_init

_CHECKED_FIRST_BYTES_MAX: Final = 256 * 2**20
"""Data up to this size is read whole before the first step, in 0.2 s, so that damage shows before anything is trained. Of more,
each block is checked when it is first read."""


def opened_tokens(asked: DataSource, recipe: LlamaRecipe) -> Sources:
    """Raises DataError for what cannot be trained on, and as `check_init` does."""
    sources = open_sources(asked)
    check_init(recipe, sources)
    for data in checked_first(sources):
        data.verify()
    sources.prepare(recipe.sequence)
    return sources


def checked_first(sources: Sources) -> list[TokenData]:
    """What is read whole before the first step. Of a store nothing: each rank would read all of it past the node's cache."""
    near = [data for data in sources.opened.values() if data.far("train") is None]
    size = sum(entry.size_bytes for data in near for entry in data.manifest.files)
    stops = sources.asked.on_bad_data == "stop"  # else damage is set aside where it is met
    return near if stops and size <= _CHECKED_FIRST_BYTES_MAX else []


def opened_images(asked: DataSource, recipe: VitRecipe, threads: int) -> ImageData:
    """threads: that decode. Raises as `open_images` does, and CheckpointError for a folder of `init` whose weights do not fit its
    config.json."""
    if recipe.init:
        VitFolder(Path(recipe.init))
    look = Look(side=recipe.image, area_min=recipe.crop_min, flip=recipe.flip, seed=recipe.seed)
    return open_images(asked, look, recipe.classes, recipe.held_out, threads)


def decoding_threads(recipe: VitRecipe, environ: Mapping[str, str]) -> int:
    """Of this rank: what the recipe says, else its part of the processors that its node lets it use."""
    ranks = int(environ.get("LOCAL_WORLD_SIZE") or 1)
    return recipe.decode_threads or max(1, len(os.sched_getaffinity(0)) // ranks)
