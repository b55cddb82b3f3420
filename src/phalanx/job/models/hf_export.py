"""A model of ours as a folder that Hugging Face's libraries read: config.json, safetensors in files of bounded size, tokenizer."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import save_file

from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.llama_shape import LlamaShape
from phalanx.core.lora import Lora
from phalanx.job.models.hf_config import config_of
from phalanx.job.models.hf_names import pieces
from phalanx.job.models.llama import Llama
from phalanx.job.models.lora import peft_names
from phalanx.job.models.model_config import CONFIG
from phalanx.job.models.tensor_files import INDEX
from phalanx.storage.atomic import fsync_folder, make_folders, refused, write_atomic

FILE_BYTES_MAX: Final = 5_000_000_000
"""Of one file of weights, as transformers cuts them; a single tensor may be larger."""
ExportDtype = Literal["float32", "bfloat16"]


def write_hf(
    to: Path,
    model: Llama,
    dtype: ExportDtype,
    beside: Mapping[str, bytes],
    context: int,
    end_id: int | None,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> None:
    """beside: more files, such as the tokenizer's. context, end_id: see `config_of`. Weights are converted file by file.

    Raises UserError where `to` holds something, SetupError or StoreUnavailable where it cannot be written; nothing is there then.
    """
    if model.shape.experts:
        raise UserError("model", str(to), "a mixture of experts is not written in Hugging Face's form yet; sample or train it here")
    with appearing(to) as folder:
        put_weights(folder, dict(_pieces(model)), dtype, file_bytes_max)
        put_json(folder / CONFIG, config_of(model.shape, context, dtype, end_id))
        end = {} if end_id is None else {"eos_token_id": end_id}
        put_json(folder / "generation_config.json", {"_from_model_config": True, **end})
        for file, data in beside.items():
            write_atomic(folder / file, data)


def _pieces(model: Llama) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor by its name there, as a view of ours."""
    for name, weight in model.named_parameters():
        for theirs, start, end in pieces(name, weight.shape[0], model.shape):
            yield theirs, weight.detach()[start:end]


def write_peft(to: Path, shape: LlamaShape, lora: Lora, base: str, tensors: Mapping[str, torch.Tensor], dtype: ExportDtype) -> None:
    """Adapters as PEFT's `PeftModel.from_pretrained` reads them, on the model in `base`. Raises as `write_hf` does."""
    names, kept = peft_names(shape, lora), getattr(torch, dtype)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "lora_dropout": 0.0, "target_modules": list(lora.targets), "bias": "none", "fan_in_fan_out": False,
        "use_rslora": False, "inference_mode": True,
    }  # fmt: skip
    with appearing(to) as folder:
        save_tensors(folder / "adapter_model.safetensors", {names[name]: tensor.to(kept) for name, tensor in tensors.items()})
        put_json(folder / "adapter_config.json", config)


def put_weights(folder: Path, views: Mapping[str, torch.Tensor], dtype: ExportDtype, file_bytes_max: int) -> None:
    """By their names there, in one file or several with their index. Raises as `save_tensors` does."""
    kept = getattr(torch, dtype)
    empty = {name: torch.empty(view.shape, dtype=kept, device="meta") for name, view in views.items()}
    split = split_torch_state_dict_into_shards(empty, max_shard_size=file_bytes_max)
    for file, names in split.filename_to_tensors.items():
        save_tensors(folder / file, {name: views[name].to(kept).contiguous() for name in names})
    if split.is_sharded:
        put_json(folder / INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Durably. Raises OSError or SafetensorError."""
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(0o644)  # for others, as the files beside it; the library leaves it to its owner
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def put_json(path: Path, data: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(data, indent=2).encode() + b"\n")


@contextmanager
def appearing(to: Path) -> Iterator[Path]:
    """A folder beside `to` that becomes it when all is written. Raises UserError where `to` holds something."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError("--to", str(to), "is there already; name a folder that is not, or an empty one")
    building = to.with_name(f".{to.name}.exporting")
    try:
        make_folders(to.parent)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        yield building
        if to.exists():
            to.rmdir()
        building.rename(to)
        fsync_folder(to.parent)
    except OSError as error:
        raise refused(to, error) from error
    except SafetensorError as error:  # a full disk comes as one
        raise StoreUnavailable(f"{to}: the model could not be written ({error})") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
