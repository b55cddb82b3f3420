"""The text that both sides of the training benchmark train on: sources of Python and torch, two bytes a token. No torch."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TEXT_BYTES_MAX = 48 * 2**20
TEXT = "text.npy"
_VOCAB = "vocab"


def text_in(folder: Path, vocab: int, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Writes it where it is not there yet; what was written."""
    told = f"{vocab} {bytes_max}"
    if (folder / _VOCAB).is_file() and (folder / _VOCAB).read_text() == told:
        return ""
    number = write_text(folder, vocab, bytes_max)
    (folder / _VOCAB).write_text(told)
    return f"text of {number:,} tokens"


def write_text(folder: Path, vocab: int, bytes_max: int = TEXT_BYTES_MAX) -> int:
    """Sources of Python and torch, two bytes a token, the commonest ones with numbers of their own; how many tokens there are."""
    pairs = np.frombuffer(_sources(bytes_max), dtype="<u2")
    commonest = np.argsort(-np.bincount(pairs, minlength=2**16), kind="stable")[: vocab - 1]
    number_of = np.full(2**16, vocab - 1, dtype=np.uint16)
    number_of[commonest] = np.arange(len(commonest), dtype=np.uint16)
    np.save(folder / TEXT, number_of[pairs])
    return len(pairs)


def _sources(bytes_max: int) -> bytes:
    spec = importlib.util.find_spec("torch")
    roots = [Path(os.__file__).parent, *(Path(one) for one in (spec.submodule_search_locations or () if spec else ()))]
    found = bytearray()
    for path in (path for root in roots for path in _python_files(root)):
        found += path.read_bytes()
        if len(found) >= bytes_max:
            break
    return bytes(found[: min(len(found), bytes_max) // 2 * 2])


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if one not in ("site-packages", "dist-packages", "__pycache__"))
        yield from (Path(folder) / name for name in sorted(files) if name.endswith(".py"))


class Text:
    """Samples of s + 1 tokens, in one order for any side. Each rank reads its part of a step's batch."""

    def __init__(self, folder: Path, sequence: int, rank: int, ranks: int) -> None:
        self._tokens = np.load(folder / TEXT, mmap_mode="r")
        self._sequence, self._rank, self._ranks = sequence, rank, ranks
        self._samples = (len(self._tokens) - 1) // sequence

    def batch(self, step: int, size: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Of step `step`, counted from 1: (size, s + 1)."""
        first = ((step - 1) * self._ranks + self._rank) * size
        # By a stride that no number of samples shares a factor with: neighbours in a file are not neighbours in a batch.
        starts = [(first + at) * 7919 % self._samples * self._sequence for at in range(size)]
        return np.stack([self._tokens[start : start + self._sequence + 1] for start in starts]).astype(np.int64)
