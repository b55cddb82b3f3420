"""A rank's random generators as tensors in a safetensors file: nothing that is read back can run code.

The trainer draws only from torch's generators; the data order needs none (it is a function of seed and step).
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from phalanx.core.errors import CheckpointError
from phalanx.storage.atomic import write_atomic


def file_name(rank: int) -> str:
    return f"rng-{rank:05d}.safetensors"


def save_rng(folder: Path, rank: int, device: torch.device) -> Path:
    """Raises SetupError or StoreUnavailable when the file cannot be written."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    path = folder / file_name(rank)
    write_atomic(path, save(states))
    return path


def load_rng(folder: Path, rank: int, device: torch.device) -> None:
    """Raises CheckpointError when the file is not this kind of rank's."""
    path = folder / file_name(rank)
    try:
        states = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {folder.name}", path.name, f"cannot be read: {error}") from error
    wanted = {"cpu", "cuda"} if device.type == "cuda" else {"cpu"}
    if set(states) != wanted:
        raise CheckpointError(f"checkpoint {folder.name}", path.name, f"has generators {sorted(states)}, not {sorted(wanted)}")
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
