"""The finished model: whole weights, configuration and tokenizer in one folder that appears at once."""

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from phalanx.core import wire
from phalanx.core.errors import StoreUnavailable
from phalanx.core.lora import Lora
from phalanx.core.recipe import name_of
from phalanx.job.checkpoint.digest import weights_digest
from phalanx.job.checkpoint.rows import as_saved, rows_of
from phalanx.job.checkpoint.together import decided_by_rank_zero
from phalanx.job.data.images.open import ImageData
from phalanx.job.data.quarantine import set_aside_of
from phalanx.job.models.model_config import ADAPTER, CONTEXT, carried, context_of
from phalanx.job.train.environment import describe_environment, lock_of
from phalanx.job.train.loop import Trained
from phalanx.job.train.pipeline.stage import RankPart
from phalanx.job.train.pipeline.whole import gathered_weights
from phalanx.job.train.set_aside import set_aside_lineage
from phalanx.job.train.setup import Training
from phalanx.storage.atomic import fsync_folder, write_atomic
from phalanx.storage.hashes import sha256_bytes

WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"


def finish(training: Training, trained: Trained) -> Path:
    """Saves the model, or the adapters that were trained, and says so. A collective of all ranks. Raises StoreUnavailable when
    either cannot be written."""
    model = training.model
    whole = gathered_weights(model) if isinstance(model, RankPart) else _gathered(model)
    return decided_by_rank_zero(lambda: _save_and_say(training, trained, whole))


def _gathered(model: nn.Module) -> dict[str, Tensor]:
    """In host memory, on rank 0 alone."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    gathered, rows = cast(dict[str, Tensor], get_model_state_dict(model, options=options)), rows_of(model)
    return {name: as_saved(one, rows[name]) if name in rows else one for name, one in gathered.items()}


def _save_and_say(training: Training, trained: Trained, whole: Mapping[str, Tensor]) -> Path:
    folder = Path(training.session.job_dir) / "model" / (training.session.attempt or "local")
    digest = weights_digest(whole)
    try:
        _write(folder, training, whole, digest)
    except (OSError, SafetensorError) as error:  # a full disk comes as either
        what = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StoreUnavailable(f"{folder}: the model could not be written ({what})") from error
    training.session.model(
        step=trained.step,
        path=str(folder),
        weights_digest=digest,
        metrics={**measured(trained), "tokens": _tokens(training)},
        lineage=_lineage(training, trained),
    )
    return folder


def measured(trained: Trained) -> dict[str, float]:
    """The held-out scores; none of a run that leaves them out."""
    scores = {"val_loss_first": trained.val_loss_first, "val_loss_final": trained.val_loss_final, **trained.scores}
    return {name: score for name, score in scores.items() if not math.isnan(score)}


def _write(folder: Path, training: Training, whole: Mapping[str, Tensor], digest: str) -> None:
    """Under a temporary name first: the folder is whole or absent."""
    beside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        _fill(beside, training, whole, digest)
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
        fsync_folder(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)  # half a model helps nobody and fills the disk


def _fill(beside: Path, training: Training, whole: Mapping[str, Tensor], digest: str) -> None:
    save_file({name: tensor.contiguous() for name, tensor in whole.items()}, beside / WEIGHTS)
    with (beside / WEIGHTS).open("rb+") as file:
        os.fsync(file.fileno())
    for name, data in _beside(training).items():
        write_atomic(beside / name, data)
    write_atomic(beside / CONFIG, json.dumps(_config(training, digest), indent=1).encode())


def _config(training: Training, digest: str) -> dict[str, Any]:
    recipe, shape = training.recipe, training.shape
    config: dict[str, Any] = {
        "format": 1,
        "recipe": name_of(recipe),
        "shape": wire.plain(type(shape), shape),
        "config": wire.plain(type(recipe), recipe),
        "weights_digest": digest,
    }
    if isinstance(training.data, ImageData):
        return {**config, "classes": list(training.data.names_of_classes)}
    first = training.data.first
    config |= {"tokenizer_sha256": sha256_bytes(first.tokenizer_path.read_bytes()), "end_of_document": first.end_of_document}
    if recipe.init:
        config[CONTEXT] = max(recipe.sequence, context_of(Path(recipe.init), 0))
    if recipe.lora is not None:
        base = {"base": recipe.init, "base_digest": training.init_digest}
        config[ADAPTER] = {**wire.plain(Lora, recipe.lora), **base}
    return config


def _beside(training: Training) -> Mapping[str, bytes]:
    """Further files, by name."""
    if isinstance(training.data, ImageData):
        return {}
    of_init = carried(Path(training.recipe.init)) if training.recipe.init else {}
    return {**of_init, TOKENIZER: training.data.first.tokenizer_path.read_bytes()}


def _lineage(training: Training, trained: Trained) -> dict[str, str]:
    return {
        "data_manifest": training.identity.origin.data,
        **_sources(training),
        **set_aside_lineage(set_aside_of(training.order), training.batch.samples),
        "environment": describe_environment(),
        "environment.lock": lock_of(os.environ),
        "config": training.identity.origin.config,
        "checkpoint": trained.checkpoint,
        **({"init": training.recipe.init, "init_weights": training.init_digest} if training.recipe.init else {}),
        "recipe": name_of(training.recipe),
        "dtype": training.identity.dtype,
        "device": training.rank.device_name,
    }


def _sources(training: Training) -> dict[str, str]:
    """Of a mixture, whose manifests one hash stands for."""
    if not training.data.asked.sources:
        return {}
    return {f"data_manifest.{name}": found for name, found in training.data.manifests.items()}


def _tokens(training: Training) -> float:
    return float(training.recipe.steps * training.batch.samples * training.recipe.sequence)
