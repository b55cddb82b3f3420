"""What objects say in their `state_dict`: tensors by name, and the rest as JSON that refers to them. Nothing of it can run code."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from phalanx.core.errors import CheckpointError, UserError

_KIND: Final = "$"
_OF: Final = "of"
_DEPTH_MAX: Final = 64


def pack(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """JSON of a state; its tensors go into `tensors`, under names that begin with `name`. Raises UserError, with the place, for
    what is neither a number, a text, a list, a mapping nor an array, and for two tensors of one name."""
    return _pack(value, name, tensors, 0)


def unpack(packed: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The reverse. Raises CheckpointError for what `pack` did not make."""
    match packed:
        case {"$": "tensor", "of": str(name)}:
            return _tensor(tensors, name)
        case {"$": "array", "of": str(name)}:
            return _tensor(tensors, name).cpu().numpy()
        case {"$": "tuple", "of": list(items)}:
            return tuple(unpack(item, tensors) for item in items)
        case {"$": "dict", "of": list(pairs)}:
            return {unpack(key, tensors): unpack(item, tensors) for key, item in pairs}
        case {"$": _}:
            raise CheckpointError("state in the checkpoint", str(packed)[:80], "is of a kind that this version does not know")
        case dict():
            return {key: unpack(item, tensors) for key, item in packed.items()}
        case list():
            return [unpack(item, tensors) for item in packed]
    return packed


def _pack(value: Any, name: str, tensors: dict[str, torch.Tensor], depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise UserError(f"state of {name}", None, "is nested too deep to be saved, or holds itself")
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.Tensor():
            return _noted("tensor", value.detach(), name, tensors)
        case np.generic():
            return _pack(value.item(), name, tensors, depth + 1)
        case np.ndarray() if value.dtype.kind in "biuf":
            return _noted("array", torch.from_numpy(np.ascontiguousarray(value)), name, tensors)
        case list() | tuple():
            items = [_pack(item, f"{name}.{index}", tensors, depth + 1) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {_KIND: "tuple", _OF: items}
        case Mapping():
            pairs = [(key, _pack(item, f"{name}.{key}", tensors, depth + 1)) for key, item in value.items()]
            if all(isinstance(key, str) and key != _KIND for key, _ in pairs):
                return dict(pairs)
            if all(key is None or isinstance(key, str | int | float | bool) for key, _ in pairs):
                return {_KIND: "dict", _OF: [list(pair) for pair in pairs]}
    fix = "cannot be saved: give an object whose state_dict holds numbers, texts, lists, mappings and tensors alone"
    raise UserError(f"state of {name}", f"a {type(value).__name__}", fix)


def _noted(kind: str, tensor: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> Mapping[str, str]:
    if name in tensors:  # by keys such as 1 and "1", or "a.b" and "a" with "b" in it
        raise UserError(f"state of {name}", None, "names two tensors; give keys that differ when dots join them to one name")
    tensors[name] = tensor
    return {_KIND: kind, _OF: name}


def _tensor(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in tensors:
        raise CheckpointError("state in the checkpoint", name, "is a tensor that the checkpoint does not hold")
    return tensors[name]
