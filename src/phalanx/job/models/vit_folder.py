"""A folder with a vision transformer: Hugging Face's config.json and safetensors, or one that a run of ours saved. Read tensor by
tensor, and as strict as `model_folder`."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from phalanx.job.models.tensor_files import TensorFiles
from phalanx.job.models.vit import Vit
from phalanx.job.models.vit_config import read_vit
from phalanx.job.models.vit_names import HEAD, POOLER, Piece, pieces


class VitFolder:
    """Opened and checked; from here on its tensors can be read."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for what is missing, too many, of another shape or type, or no safetensors."""
        self.folder = folder
        self.given = read_vit(folder)
        self.files = TensorFiles(folder)
        self.files.check(self._wanted(), () if self.given.own or self.given.prefix else POOLER)

    @torch.no_grad()
    def fill(self, part: nn.Module, prefix: str) -> None:
        """Every parameter of a part of `Vit`, named `prefix` in it; no more than one tensor is read at a time."""
        for name, parameter in part.named_parameters(prefix=prefix):
            for piece in self._pieces(name, parameter):
                rows = parameter[piece.start : piece.end]
                rows.copy_(self.files.tensor(piece.name).reshape(rows.shape))

    def _wanted(self) -> dict[str, tuple[int, ...]]:
        """Shapes, by the names in the files."""
        shape = self.given.shape
        with torch.device("meta"):
            model = Vit(replace(shape, classes=max(shape.classes, 1)))
        parts = [one for one in model.named_children() if one[0] != HEAD or shape.classes]
        named = [one for name, part in parts for one in part.named_parameters(prefix=name)]
        return {piece.name: piece.shape for name, parameter in named for piece in self._pieces(name, parameter)}

    def _pieces(self, name: str, parameter: torch.Tensor) -> Iterator[Piece]:
        if self.given.own:
            return iter([Piece(name, 0, len(parameter), tuple(parameter.shape))])
        return pieces(name, parameter.shape, self.given.shape, self.given.prefix)
