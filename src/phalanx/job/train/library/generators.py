"""Python's and NumPy's random generators of a rank, as parts of its own shard beside torch's; see `checkpoint.rng`."""

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from phalanx.job.checkpoint.reader import read_whole
from phalanx.job.checkpoint.rng import rng_name
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.whole import Checkpoint

_WORDS: Final = 624
_PYTHON: Final = struct.Struct(f"<{_WORDS + 1}I?d")
_NUMPY: Final = struct.Struct(f"<{_WORDS}Ii?d")
_TWISTER: Final = "MT19937"
_KINDS: Final = ("python", "numpy")


@dataclass(frozen=True, slots=True)
class Generators:
    """Of one rank, as a checkpoint has them. states: by kind, none after a change of the gang's size; seed: then."""

    states: Mapping[str, bytes]
    seed: str


def own_parts(rank: int) -> list[tuple[Part, torch.Tensor]]:
    """Of this process, of one length whatever they are at: a snapshot's memory is measured once."""
    states = {"python": _python(), "numpy": _numpy()}
    return [(_part(rng_name(rank, kind), len(state)), torch.frombuffer(state, dtype=torch.uint8)) for kind, state in states.items()]


def read_own(checkpoint: Checkpoint, rank: int, world_size: int) -> Generators:
    """Raises Damaged, on this rank alone: call it where that is told to all."""
    same = world_size == checkpoint.manifest.origin.world_size
    saved = read_whole(checkpoint, {kind: rng_name(rank, kind) for kind in _KINDS} if same else {})
    return Generators({kind: bytes(state.numpy()) for kind, state in saved.items()}, f"{checkpoint.digest} {rank} {world_size}")


def set_own(own: Generators) -> None:
    """In a gang of another size each rank starts from a seed of its own, as torch's generators do."""
    if set(own.states) == set(_KINDS):
        _set_python(own.states["python"])
        _set_numpy(own.states["numpy"])
        return
    random.seed(own.seed)
    np.random.seed(random.getrandbits(32))


def _python() -> bytearray:
    _, words, gauss = random.getstate()
    return bytearray(_PYTHON.pack(*words, gauss is not None, gauss or 0.0))


def _set_python(state: bytes) -> None:
    *words, is_there, gauss = _PYTHON.unpack(state)
    random.setstate((3, tuple(words), gauss if is_there else None))


def _numpy() -> bytearray:
    """NumPy's global one is always of this kind, unless somebody put another in its place, who then keeps it."""
    kind, words, at, has_gauss, gauss = np.random.get_state(legacy=True)
    if kind != _TWISTER:
        words, at, has_gauss, gauss = np.zeros(_WORDS, dtype=np.uint32), -1, 0, 0.0
    return bytearray(_NUMPY.pack(*(int(word) for word in words), at, bool(has_gauss), gauss))


def _set_numpy(state: bytes) -> None:
    *words, at, has_gauss, gauss = _NUMPY.unpack(state)
    if at >= 0:
        np.random.set_state((_TWISTER, np.array(words, dtype=np.uint32), at, int(has_gauss), gauss))


def _part(name: str, length: int) -> Part:
    return Part(name=name, dtype="U8", shape=(length,), start=(0,), size=(length,))
