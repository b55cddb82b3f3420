"""What a run saved: its weights, or adapters and the folder of the weights that they were trained on. Checked before it is used."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from phalanx.core import wire
from phalanx.core.errors import CheckpointError
from phalanx.core.lora import Lora
from phalanx.job.checkpoint.digest import weights_digest
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.models.lora import adapter_shapes, merge
from phalanx.job.models.model_config import ADAPTER, refuse_images
from phalanx.job.models.model_folder import ModelFolder
from phalanx.storage.hashes import sha256_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """base: folder of the weights that they were trained on, whose content has `base_digest`."""

    lora: Lora
    base: str
    base_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """tensors: of the whole model; of the adapters alone where it has `adapter`. sequence: tokens of a row it was trained on."""

    folder: Path
    shape: LlamaShape
    sequence: int
    tensors: Mapping[str, torch.Tensor]
    adapter: Adapters | None


def open_saved(folder: Path, digest: str = "") -> SavedModel:
    """Raises CheckpointError when a file is missing or damaged, when the weights are not those of `digest`, or when adapters
    are not those that config.json says."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        refuse_images(folder, config)
        shape: LlamaShape = wire.build(LlamaShape, config["shape"])
        sequence = int(config["config"]["sequence"])
        own = str(config["weights_digest"])
        own_tokenizer = str(config["tokenizer_sha256"])
        adapter = _adapters(config[ADAPTER]) if ADAPTER in config else None
        tensors = load_file(folder / "model.safetensors")
        found_tokenizer = sha256_file(folder / "tokenizer.json")
    except OSError as error:
        raise CheckpointError("model", str(folder), f"{error.filename or folder}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError("model", str(folder), f"is not a whole saved model: {error}") from error
    found = weights_digest(tensors)
    if found != (digest or own):
        fix = f"its digest is {found} and not {digest or own}: the file is damaged, or another model's; take the model from a copy"
        raise CheckpointError("weights", str(folder / "model.safetensors"), fix)
    if found_tokenizer != own_tokenizer:
        fix = f"its SHA-256 is {found_tokenizer} and not {own_tokenizer}: the file is damaged; take the model from a copy"
        raise CheckpointError("tokenizer", str(folder / "tokenizer.json"), fix)
    if adapter is not None:
        _check_fit(folder, adapter_shapes(shape, adapter.lora), tensors)
    return SavedModel(folder=folder, shape=shape, sequence=sequence, tensors=tensors, adapter=adapter)


def merged(saved: SavedModel) -> Llama:
    """The model that the adapters make of the weights they were trained on. Raises CheckpointError where those are others now."""
    adapter = saved.adapter
    assert adapter is not None
    base = ModelFolder(Path(adapter.base))
    if base.shape != saved.shape or base.digest() != adapter.base_digest:
        fix = f"holds other weights than the adapters in {saved.folder} were trained on; put those back there"
        raise CheckpointError("base", adapter.base, fix)
    model = Llama(saved.shape)
    for name, part in model.named_children():
        base.fill(part, name)
    merge(model, saved.tensors, adapter.lora)
    return model.eval()


def _check_fit(folder: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, torch.Tensor]) -> None:
    """Whoever merges adapters or hands them on finds each, in its shape, and no other."""
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    odd = next((name for name in sorted(shapes.keys() | found.keys()) if shapes.get(name) != found.get(name)), "")
    if odd:
        asked, has = (list(of[odd]) if odd in of else "none" for of in (shapes, found))
        fix = f"adapters do not fit config.json: of {odd} it asks for {asked} and there is {has}; take the model from a copy"
        raise CheckpointError("model", str(folder), fix)


def _adapters(said: Mapping[str, Any]) -> Adapters:
    lora: Lora = wire.build(Lora, {name: said[name] for name in ("rank", "alpha", "targets")})
    return Adapters(lora=lora, base=str(said["base"]), base_digest=str(said["base_digest"]))
