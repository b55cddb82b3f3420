"""The weights that a run begins with: drawn from the seed, or read from the folder that its `init` names."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from phalanx.core.errors import DataError, SpecError
from phalanx.core.recipe import SHAPE_FIELDS, LlamaRecipe
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.data import tokens
from phalanx.job.data.sources import Sources
from phalanx.job.models.llama import initialise
from phalanx.job.models.model_folder import ModelFolder, read_shape

Fill = Callable[[nn.Module, str], None]
"""Gives every parameter of a part of the model, by its name in that, its first value."""
_TOKENIZER = "tokenizer.json"


def with_shape_of_init(recipe: LlamaRecipe) -> LlamaRecipe:
    """The recipe with the shape that its folder says, if it names one. Raises CheckpointError."""
    if not recipe.init:
        return recipe
    shape = read_shape(Path(recipe.init))
    return replace(recipe, **{name: getattr(shape, name) for name in SHAPE_FIELDS})


def first_weights(recipe: LlamaRecipe, fresh: bool) -> Fill:
    """Not fresh: none, for who loads them all. Raises CheckpointError where the folder's are not those of its config.json."""
    if not fresh:
        return lambda part, name: None
    if recipe.init:
        return ModelFolder(Path(recipe.init)).fill
    return lambda part, name: initialise(part, name, recipe.seed, recipe.init_std)


def agreed_digest(recipe: LlamaRecipe, local_rank: int, saved: str = "") -> str:
    """Of the weights of `init`, the same on every rank; '' without one. A collective of all ranks, of which one a node reads them.
    saved: what a checkpoint says, which then needs them no more.

    Raises SpecError where nodes have other weights under one path.
    """
    if not recipe.init or saved:
        return saved
    told = dict.fromkeys(told_by_all(ModelFolder(Path(recipe.init)).digest() if local_rank == 0 else ""))
    digest, *others = [one for one in told if one]
    if others:
        fix = f"nodes have other weights there ({digest[:12]} and {others[0][:12]}): put the same folder on each"
        raise SpecError("hyperparameters.init", recipe.init, fix)
    return digest


def check_init(recipe: LlamaRecipe, data: Sources) -> None:
    """Before anything is built. Raises SpecError for a vocabulary smaller than the data's, CheckpointError for a folder whose
    weights do not fit its config.json, DataError for data of another tokenizer than the model's."""
    if recipe.vocab and recipe.vocab < data.vocab_size:
        what = f"init {recipe.init} has" if recipe.init else "write"
        raise SpecError("hyperparameters.vocab", recipe.vocab, f"the data's tokenizer has {data.vocab_size} tokens; {what} fewer")
    if recipe.init:
        ModelFolder(Path(recipe.init))
        _check_tokenizer(Path(recipe.init), recipe.vocab, data)


def _check_tokenizer(folder: Path, vocab: int, data: Sources) -> None:
    """The same token under each number. A model may know more numbers than its tokenizer has, as many round theirs up."""
    file, again = folder / _TOKENIZER, f"prepare the data again with `--tokenizer {folder}`"
    if not file.exists():
        if data.vocab_size != vocab:
            fix = f"init {folder} has {vocab} and no {_TOKENIZER} that would say what they are; put that beside its weights"
            raise DataError("tokens of the data", data.vocab_size, fix)
        return
    theirs, ours = (tokens.given(path).get_vocab(with_added_tokens=True) for path in (file, data.first.tokenizer_path))
    for token, number in ours.items():
        if theirs.get(token) != number:
            fix = f"is token {number} of the data and {theirs.get(token, 'none')} of the model in {folder}; {again}"
            raise DataError("tokenizer of the data", token, fix)
