"""A rank's random generators, saved as parts of its own shard: nothing that is read back can run code.

The trainer draws only from torch's generators; the data order needs none (it is a function of seed and step). In a gang of as many
ranks each goes on from its own. In a gang of another size, or on another kind of device, there is no "own": then each generator
starts from a seed that is a function of the checkpoint, the rank, the new world size and the device's kind, so that two such
resumes draw the same and two ranks draw differently.
"""

import hashlib
from collections.abc import Mapping

import torch

from phalanx.job.checkpoint.commit import RNG
from phalanx.job.checkpoint.shard_file import Part


def rng_parts(rank: int, device: torch.device) -> list[tuple[Part, torch.Tensor]]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return [(_part(rng_name(rank, kind), state), state) for kind, state in states.items()]


def rng_name(rank: int, kind: str) -> str:
    return f"{RNG}{rank:05d}.{kind}"


def set_rng(saved: Mapping[str, torch.Tensor], digest: str, rank: int, world_size: int, device: torch.device) -> None:
    """saved: by kind of device, of this rank in a gang of the same size; empty after a change of it. digest: the checkpoint's."""
    for kind in ("cpu", "cuda") if device.type == "cuda" else ("cpu",):
        where = device if kind == "cuda" else torch.device("cpu")
        state = saved[kind] if kind in saved else _seeded(f"{digest} {rank} {world_size} {kind}", where)
        if kind == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)


def _seeded(text: str, device: torch.device) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
    return torch.Generator(device).manual_seed(seed).get_state()


def _part(name: str, state: torch.Tensor) -> Part:
    return Part(name=name, dtype="U8", shape=tuple(state.shape), start=(0,), size=tuple(state.shape))
