"""config.json of a folder with a model: Hugging Face's, or that of a model that a run of ours saved. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.errors import CheckpointError
from phalanx.core.llama_shape import LlamaShape
from phalanx.core.recipe import reads_images
from phalanx.job.models.hf_config import shape_of

CONFIG: Final = "config.json"
ADAPTER: Final = "adapter"
"""Key of the configuration of a saved model that is adapters alone."""
CONTEXT: Final = "context"
"""Key of the configuration of a saved model: tokens of the longest row that it, or the model it began with, was made for."""
CARRIED: Final = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json")
"""Files beside weights that say how a model is used: a run that begins with a folder hands them on to what it saves."""
_JSON_BYTES_MAX: Final = 64 << 20
_CARRIED_BYTES_MAX: Final = 16 << 20


def read_shape(folder: Path) -> LlamaShape:
    """As `read_config` says it."""
    return read_config(folder)[0]


def read_config(folder: Path) -> tuple[LlamaShape, bool]:
    """The shape, and whether it is a model that a run of ours saved. Raises CheckpointError."""
    config = read_json(folder / CONFIG)
    refuse_images(folder, config)
    if ADAPTER in config:
        raise CheckpointError("model", str(folder), "holds adapters alone; name what `phalanx model export` makes of it")
    return _shape(folder, config), is_own(config)


def context_of(folder: Path, usual: int) -> int:
    """Tokens of the longest row that the model was made for; `usual` where it does not say."""
    config = read_json(folder / CONFIG)
    said = config.get(CONTEXT, config.get("max_position_embeddings"))
    return said if type(said) is int and said > 0 else usual


def carried(folder: Path) -> Mapping[str, bytes]:
    """Those of CARRIED that are there, by name. Raises OSError."""
    found = [folder / name for name in CARRIED]
    return {path.name: path.read_bytes() for path in found if path.is_file() and path.stat().st_size <= _CARRIED_BYTES_MAX}


def read_json(path: Path) -> Mapping[str, Any]:
    """A mapping. Raises CheckpointError."""
    try:
        if path.stat().st_size > _JSON_BYTES_MAX:
            raise CheckpointError(path.name, str(path), f"is larger than {_JSON_BYTES_MAX} bytes, so it is none")
        found = json.loads(path.read_bytes())
    except OSError as error:
        fix = f"{path.name} cannot be read ({error.strerror}); name a folder with a model, config.json beside its weights"
        raise CheckpointError("model", str(path.parent), fix) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path.name, str(path), f"is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise CheckpointError(path.name, str(path), "holds no mapping")
    return found


def is_own(config: Mapping[str, Any]) -> bool:
    """Whether it is of a model that a run of ours saved."""
    return "shape" in config and "recipe" in config


def refuse_images(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError for a saved model of another recipe than of language."""
    if reads_images(config.get("recipe")):
        raise CheckpointError("model", str(folder), "is a model of images, and here a model of language is needed")


def _shape(folder: Path, config: Mapping[str, Any]) -> LlamaShape:
    if not is_own(config):
        return shape_of(config, str(folder / CONFIG))
    try:
        shape: LlamaShape = wire.build(LlamaShape, config["shape"])
    except ValueError as error:
        raise CheckpointError("shape", str(folder / CONFIG), f"is not one of a saved model ({error})") from error
    sizes = (shape.vocab, shape.dim, shape.layers, shape.heads, shape.ffn_dim, shape.kv_heads, shape.head_dim)
    if min(sizes) < 1 or next(shape.problems(), None):
        raise CheckpointError("shape", str(folder / CONFIG), "is what no model can have")
    return shape
