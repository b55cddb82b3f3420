"""The safetensors in a folder with a model, whoever's names they have: opened, compared with what is wanted, read one by one.

Nothing is unpickled, and files are named by the folder's index alone as plain names in it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from phalanx.core.errors import CheckpointError
from phalanx.job.models.model_config import read_json

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
DTYPES: Final = ("F32", "BF16", "F16")
"""Each of their values is a float32 too, in which weights are trained."""
_NAMED_MAX: Final = 3


class TensorFiles:
    """names: of the files."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for what is missing or no safetensors, and for a tensor that is there twice."""
        self.folder = folder
        self.names = _files(folder)
        self._opened = {name: _opened(folder / name) for name in self.names}
        self._where: dict[str, str] = {}
        for name, file in self._opened.items():
            for tensor in file.keys():  # noqa: SIM118 (no mapping)
                if self._where.setdefault(tensor, name) != name:
                    raise CheckpointError("model", str(folder), f"has {tensor} twice, in {self._where[tensor]} and in {name}")

    def check(self, wanted: Mapping[str, tuple[int, ...]], ignored: tuple[str, ...], of_any_type: tuple[str, ...] = ()) -> None:
        """wanted: shapes by name. ignored: endings of names of what may be there too. of_any_type: endings of what is no weight.

        Raises CheckpointError for a tensor too many or too few, or of another shape or type. Reads none.
        """
        found = {tensor for tensor in self._where if not tensor.endswith(ignored)}
        self._refuse(sorted(wanted.keys() - found), "lacks these tensors that its config.json asks for")
        self._refuse(sorted(found - wanted.keys()), "has these tensors that the architecture of its config.json does not")
        for tensor, shape in wanted.items():
            piece = self._file(tensor).get_slice(tensor)
            if tuple(piece.get_shape()) != shape:
                fix = f"its config.json asks for {list(shape)}; the two are of different models"
                raise CheckpointError(f"shape of {tensor} in {self.folder}", list(piece.get_shape()), fix)
            if not tensor.endswith(of_any_type) and piece.get_dtype() not in DTYPES:
                fix = f"weights are read as one of {', '.join(DTYPES)}; take a model that is not quantised"
                raise CheckpointError(f"type of {tensor} in {self.folder}", piece.get_dtype(), fix)

    def tensor(self, name: str) -> torch.Tensor:
        """One of those that are there, read now."""
        found: torch.Tensor = self._file(name).get_tensor(name)
        return found

    def digest(self) -> str:
        """BLAKE3 over all files of weights. Reads them whole, by all cores."""
        total = blake3()
        for name in sorted(self.names):
            try:
                total.update(blake3(max_threads=blake3.AUTO).update_mmap(self.folder / name).digest())
            except OSError as error:
                raise CheckpointError(name, str(self.folder), f"cannot be read ({error.strerror})") from error
        return total.hexdigest()

    def _file(self, tensor: str) -> Any:
        return self._opened[self._where[tensor]]

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
