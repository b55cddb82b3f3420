"""The first weights of a model of images: drawn from the seed, or those of a folder, with a head for the data's classes."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from torch import nn

from phalanx.core.vit_recipe import VitRecipe
from phalanx.job.models.vit import initialise
from phalanx.job.models.vit_config import GivenVit, why_new_head
from phalanx.job.models.vit_folder import VitFolder
from phalanx.job.models.vit_names import HEAD
from phalanx.job.train.initial import Fill

_log: Final = logging.getLogger(__name__)


def first_vit_weights(recipe: VitRecipe, classes: int, names: Sequence[str], fresh: bool) -> Fill:
    """classes, names: that the run tells apart, see `why_new_head`. Not fresh: none, for who loads them all. Raises CheckpointError
    where the folder's are not those of its config.json."""
    if not fresh:
        return lambda part, name: None
    drawn = partial(initialise, seed=recipe.seed, std=recipe.init_std)
    if not recipe.init:
        return drawn
    folder = VitFolder(Path(recipe.init))
    why = why_new_head(folder.given, classes, names)
    _log.info("%s", _told(recipe.init, folder.given, classes, names, why))

    def fill(part: nn.Module, name: str) -> None:
        first = drawn if name == HEAD and why else folder.fill
        first(part, name)

    return fill


def _told(init: str, given: GivenVit, classes: int, names: Sequence[str], why: str) -> str:
    """For the log. A folder's head is kept by the number of its classes, so what they are called is said where it differs."""
    if why:
        return f"weights are those of {init}, but for the head, which is new for {classes} classes: {why}"
    other = next((pair for pair in zip(given.names, names, strict=False) if pair[0] != pair[1]), None)
    called = f"; what is called {other[0]!r} there is {other[1]!r} in the data" if other else ""
    return f"weights are those of {init}, with its head for {classes} classes{called}"
