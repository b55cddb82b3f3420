"""A folder with a model: Hugging Face's config.json and safetensors, or one that a run of ours saved. Read tensor by tensor.

Strict: a tensor too many or too few, or of another shape or type, is refused before any weight is read, as are places of experts
that are none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from torch import nn

from phalanx.core.errors import CheckpointError
from phalanx.job.models.hf_names import IGNORED, pieces
from phalanx.job.models.llama import Llama
from phalanx.job.models.lora import is_of_adapter
from phalanx.job.models.model_config import read_config
from phalanx.job.models.moe.mixture import are_places
from phalanx.job.models.tensor_files import TensorFiles

PLACES: Final = (".slots",)
"""Tensors that are no weights, but say where experts lie."""


class ModelFolder:
    """Opened and checked; from here on its tensors can be read. own: as a run of ours saves them, with our names."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for what is missing, too many, of another shape or type, or no safetensors, and for places of
        experts of which one is missing or twice."""
        self.folder = folder
        self.shape, self.own = read_config(folder)
        self.files = TensorFiles(folder)
        self._check()

    @torch.no_grad()
    def fill(self, part: nn.Module, prefix: str) -> None:
        """Every parameter of a part of `Llama`, named `prefix` in it, but those of adapters, and what else its model has; no more
        than one tensor is read at a time."""
        for name, parameter in part.state_dict(prefix=f"{prefix}.").items():
            if is_of_adapter(name):
                continue
            for tensor, start, end in self._pieces(name, parameter):
                parameter[start:end].copy_(self.files.tensor(tensor))

    def digest(self) -> str:
        """See `TensorFiles.digest`."""
        return self.files.digest()

    def _pieces(self, name: str, parameter: torch.Tensor) -> Iterator[tuple[str, int, int]]:
        rows = parameter.shape[0]
        return iter([(name, 0, rows)]) if self.own else pieces(name, rows, self.shape)

    def _check(self) -> None:
        with torch.device("meta"):
            model = Llama(self.shape)
        wanted = {
            tensor: (end - start, *parameter.shape[1:])
            for name, parameter in model.state_dict().items()
            for tensor, start, end in self._pieces(name, parameter)
        }
        self.files.check(wanted, IGNORED, PLACES)
        for tensor in wanted:
            if tensor.endswith(PLACES):
                self._check_places(tensor)

    def _check_places(self, tensor: str) -> None:
        """Of one whose shape is known to be right."""
        slots = self.files.tensor(tensor)
        if not are_places(slots):
            fix = f"says where each expert lies: each number from 0 to {len(slots) - 1} once, as int64; take the model from a copy"
            raise CheckpointError(f"{tensor} in {self.folder}", slots.tolist(), fix)
