"""A model of ours as a folder that Hugging Face's libraries read: config.json, safetensors in files of bounded size, tokenizer."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import save_file

from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.llama_shape import LlamaShape
from phalanx.job.models.hf_config import config_of
from phalanx.job.models.hf_names import pieces
from phalanx.storage.atomic import fsync_folder, make_folders, refused, write_atomic

FILE_BYTES_MAX: Final = 5_000_000_000
"""Of one file of weights, as transformers cuts them; a single tensor may be larger."""
ExportDtype = Literal["float32", "bfloat16"]
Take = Callable[[str], torch.Tensor]


def write_hf(
    to: Path,
    shape: LlamaShape,
    names: Mapping[str, tuple[int, ...]],
    take: Take,
    dtype: ExportDtype,
    beside: Mapping[str, bytes],
    context: int,
    end_id: int | None,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> None:
    """names: our parameters with their shapes; `take` gives each when its file is written, so that no more than one file's are
    held. beside: more files, such as the tokenizer's. context, end_id: see `config_of`.

    Raises UserError where `to` holds something, SetupError or StoreUnavailable where it cannot be written; nothing is there then.
    """
    if shape.experts:
        raise UserError("model", str(to), "a mixture of experts is not written in Hugging Face's form yet; sample or train it here")
    with appearing(to) as folder:
        kept = getattr(torch, dtype)
        views = {
            theirs: (name, start, end) for name, whole in names.items() for theirs, start, end in pieces(name, whole[0], shape)
        }
        empty = {
            theirs: torch.empty((end - start, *names[name][1:]), dtype=kept, device="meta")
            for theirs, (name, start, end) in views.items()
        }
        split = split_torch_state_dict_into_shards(empty, max_shard_size=file_bytes_max)
        for file, tensors in split.filename_to_tensors.items():
            cut = {
                theirs: take(name)[start:end].to(kept).contiguous() for theirs in tensors for name, start, end in [views[theirs]]
            }
            save_tensors(folder / file, cut)
        if split.is_sharded:
            put_json(folder / "model.safetensors.index.json", {"metadata": split.metadata, "weight_map": split.tensor_to_filename})
        put_json(folder / "config.json", config_of(shape, context, dtype, end_id))
        put_json(
            folder / "generation_config.json", {"_from_model_config": True, **({} if end_id is None else {"eos_token_id": end_id})}
        )
        for file, data in beside.items():
            write_atomic(folder / file, data)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Durably. Raises OSError or SafetensorError."""
    save_file(dict(tensors), path, metadata={"format": "pt"})
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
