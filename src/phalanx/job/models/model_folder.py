"""A folder with a model: Hugging Face's config.json and safetensors, or one that a run of ours saved. Read tensor by tensor.

Strict: a tensor too many or too few, or of another shape or type, is refused before any weight is read, as are places of experts
that are none. Nothing is unpickled, and files are named by the folder's index alone as plain names in it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import nn

from phalanx.core.errors import CheckpointError
from phalanx.job.models.hf_names import IGNORED, pieces
from phalanx.job.models.llama import Llama
from phalanx.job.models.lora import is_of_adapter
from phalanx.job.models.model_config import read_config, read_json
from phalanx.job.models.moe.mixture import are_places

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
DTYPES: Final = ("F32", "BF16", "F16")
"""Each of their values is a float32 too, in which weights are trained."""
PLACES: Final = (".slots",)
"""Tensors that are no weights, but say where experts lie."""
_NAMED_MAX: Final = 3


class ModelFolder:
    """Opened and checked; from here on its tensors can be read. own: as a run of ours saves them, with our names."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for what is missing, too many, of another shape or type, or no safetensors, and for places of
        experts of which one is missing or twice."""
        self.folder = folder
        self.shape, self.own = read_config(folder)
        self.files = _files(folder)
        self._opened = {name: _opened(folder / name) for name in self.files}
        self._where: dict[str, str] = {}
        for name, file in self._opened.items():
            for tensor in file.keys():  # noqa: SIM118 (no mapping)
                if self._where.setdefault(tensor, name) != name:
                    raise CheckpointError("model", str(folder), f"has {tensor} twice, in {self._where[tensor]} and in {name}")
        self._check()

    @torch.no_grad()
    def fill(self, part: nn.Module, prefix: str) -> None:
        """Every parameter of a part of `Llama`, named `prefix` in it, but those of adapters, and what else its model has; no more
        than one tensor is read at a time."""
        for name, parameter in part.state_dict(prefix=f"{prefix}.").items():
            if is_of_adapter(name):
                continue
            for tensor, start, end in self._pieces(name, parameter):
                parameter[start:end].copy_(self._file(tensor).get_tensor(tensor))

    def digest(self) -> str:
        """BLAKE3 over all files of weights. Reads them whole, by all cores."""
        total = blake3()
        for name in sorted(self.files):
            try:
                total.update(blake3(max_threads=blake3.AUTO).update_mmap(self.folder / name).digest())
            except OSError as error:
                raise CheckpointError(name, str(self.folder), f"cannot be read ({error.strerror})") from error
        return total.hexdigest()

    def _pieces(self, name: str, parameter: torch.Tensor) -> Iterator[tuple[str, int, int]]:
        rows = parameter.shape[0]
        return iter([(name, 0, rows)]) if self.own else pieces(name, rows, self.shape)

    def _file(self, tensor: str) -> Any:
        return self._opened[self._where[tensor]]

    def _check(self) -> None:
        with torch.device("meta"):
            model = Llama(self.shape)
        wanted = {
            tensor: (end - start, *parameter.shape[1:])
            for name, parameter in model.state_dict().items()
            for tensor, start, end in self._pieces(name, parameter)
        }
        found = {tensor for tensor in self._where if not tensor.endswith(IGNORED)}
        self._refuse(sorted(wanted.keys() - found), "lacks these tensors that its config.json asks for")
        self._refuse(sorted(found - wanted.keys()), "has these tensors that the architecture of its config.json does not")
        for tensor, shape in wanted.items():
            piece = self._file(tensor).get_slice(tensor)
            if tuple(piece.get_shape()) != shape:
                fix = f"its config.json asks for {list(shape)}; the two are of different models"
                raise CheckpointError(f"shape of {tensor} in {self.folder}", list(piece.get_shape()), fix)
            if tensor.endswith(PLACES):
                self._check_places(tensor)
            elif piece.get_dtype() not in DTYPES:
                fix = f"weights are read as one of {', '.join(DTYPES)}; take a model that is not quantised"
                raise CheckpointError(f"type of {tensor} in {self.folder}", piece.get_dtype(), fix)

    def _check_places(self, tensor: str) -> None:
        """Of one whose shape is known to be right."""
        slots = self._file(tensor).get_tensor(tensor)
        if not are_places(slots):
            fix = f"says where each expert lies: each number from 0 to {len(slots) - 1} once, as int64; take the model from a copy"
            raise CheckpointError(f"{tensor} in {self.folder}", slots.tolist(), fix)

    def _refuse(self, names: list[str], what: str) -> None:
        if names:
            more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
            raise CheckpointError("model", str(self.folder), f"{what}: {', '.join(names[:_NAMED_MAX])}{more}")


def _files(folder: Path) -> tuple[str, ...]:
    """As transformers looks for them: one file, else those that an index names."""
    if (folder / WEIGHTS).exists():
        return (WEIGHTS,)
    if not (folder / INDEX).exists():
        fix = f"has neither {WEIGHTS} nor {INDEX}; only safetensors are read, so convert other weights to them"
        raise CheckpointError("model", str(folder), fix)
    listed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(INDEX, str(folder), "has no weight_map, from each tensor's name to its file")
    names = sorted({str(name) for name in listed.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(INDEX, str(folder), f"names {name!r}, which is no safetensors file in the folder")
    return tuple(names)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(path.name, str(path.parent), f"cannot be read as safetensors ({error})") from error
