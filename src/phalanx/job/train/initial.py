"""The weights that a run begins with: drawn from the seed, or read from the folder that its `init` names."""

import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from phalanx.core.errors import CheckpointError, DataError, SpecError
from phalanx.core.recipe import AnyRecipe, LlamaRecipe
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.data import tokens
from phalanx.job.data.sources import Sources
from phalanx.job.models.llama import initialise
from phalanx.job.models.lora import initialise_adapters
from phalanx.job.models.model_folder import ModelFolder
from phalanx.job.models.moe.mixture import reset_buffers
from phalanx.job.models.tensor_files import TensorFiles

Fill = Callable[[nn.Module, str], None]
"""Gives every parameter of a part of the model, by its name in that, its first value."""
_TOKENIZER = "tokenizer.json"


def first_weights(recipe: LlamaRecipe, fresh: bool) -> Fill:
    """Not fresh: none, for who loads them all; but frozen ones, which no checkpoint holds. Raises CheckpointError where the
    folder's are not those of its config.json."""
    if not fresh and recipe.lora is None:
        return lambda part, name: None
    drawn = partial(initialise, seed=recipe.seed, std=recipe.init_std)
    given = ModelFolder(Path(recipe.init)).fill if recipe.init else drawn

    def fill(part: nn.Module, name: str) -> None:
        given(part, name)
        initialise_adapters(part, name, recipe.seed)

    return fill


def fill_part(part: nn.Module, name: str, first: Fill, device: torch.device) -> None:
    """Gives one that was built without memory its memory there, its first values, and what in it is no parameter."""
    part.to_empty(device=device)
    reset_buffers(part)
    first(part, name)


def agreed_digest(recipe: AnyRecipe, node: str, saved: str = "") -> str:
    """Of the weights of `init`, the same on every rank; '' without one. A collective of all ranks, of which one a node reads them.
    node: which one this rank is on, by `Session.node`; the machine's name where that is ''. saved: what a checkpoint says, which
    needs them no more unless it is of adapters.

    Raises SpecError where nodes have other weights under one path, or adapters were trained on others; CheckpointError where they
    cannot be read.
    """
    if not recipe.init or (saved and recipe.lora is None):
        return saved
    told = told_by_all(_digest_of_node(recipe, node or platform.node()))
    for one in told:
        if isinstance(one, CheckpointError):
            raise one
    digest, *others = dict.fromkeys(str(one) for one in told if one)
    if others:
        fix = f"nodes have other weights there ({digest[:12]} and {others[0][:12]}): put the same folder on each"
        raise SpecError("hyperparameters.init", recipe.init, fix)
    if saved and digest != saved:
        fix = (
            f"its weights are {digest[:12]} and the adapters were trained on {saved[:12]}: put those back there, or start a new job"
        )
        raise SpecError("hyperparameters.init", recipe.init, fix)
    return digest


def _digest_of_node(recipe: AnyRecipe, node: str) -> str | CheckpointError:
    """'' on all ranks of a node but the first. A collective of all ranks."""
    nodes = told_by_all(node)
    rank = dist.get_rank()
    if nodes.index(nodes[rank]) != rank:
        return ""
    try:
        return TensorFiles(Path(recipe.init)).digest()
    except CheckpointError as error:  # told to all: none waits for who has gone
        return error


def check_init(recipe: LlamaRecipe, data: Sources) -> None:
    """Before anything is built. Raises SpecError for a vocabulary smaller than the data's, CheckpointError for a folder whose
    weights do not fit its config.json, DataError for data of another tokenizer than the model's."""
    if recipe.vocab and recipe.vocab < data.vocab_size:
        fix = f"prepare the data with the tokenizer of {recipe.init}" if recipe.init else "write at least that, or leave it out"
        raise SpecError("hyperparameters.vocab", recipe.vocab, f"the data's tokenizer has {data.vocab_size} tokens; {fix}")
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
