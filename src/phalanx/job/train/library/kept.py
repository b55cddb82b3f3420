"""All that a script's checkpoints hold: model, moments, what else has a `state_dict`, random generators and the loaders' cursors.

Tensors lie in the shards; what is no tensor is JSON among the manifest's numbers.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

import torch
from torch import nn

from phalanx.core.errors import CheckpointError, UserError
from phalanx.job.checkpoint.live import LiveState
from phalanx.job.checkpoint.manifest import Scalar
from phalanx.job.checkpoint.owners import local_parts, specs_of
from phalanx.job.checkpoint.restore import Found
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.state import Optimizers, listed, set_training_state, training_state
from phalanx.job.checkpoint.whole import TensorSpec
from phalanx.job.data.cursor import EXTRA
from phalanx.job.train.library.generators import own_parts
from phalanx.job.train.library.packed import pack, unpack

STATE: Final = "script"
"""What is no tensor, among the numbers of a checkpoint."""
_OTHERS: Final = "others."


class Stateful(Protocol):
    """A scheduler, a loss scaler, an average of weights, a loader."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


class Kept:
    """Of one run. loaders: by name, those of `run.loader`; one that is made later takes its place from `cursor_of`."""

    def __init__(self, model: nn.Module, optimizers: Optimizers, others: Mapping[str, Stateful]) -> None:
        """Raises UserError for what cannot be saved by its kind."""
        if not isinstance(model, nn.Module):
            raise UserError("model", f"a {type(model).__name__}", "give a torch.nn.Module; several in a torch.nn.ModuleDict")
        self.model = model
        self.optimizers = _checked(optimizers)
        for name, other in others.items():
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise UserError(name, f"a {type(other).__name__}", "give an object with state_dict and load_state_dict")
        self.others = dict(others)
        self.loaders: dict[str, Stateful] = {}
        self._cursors: dict[str, Any] = {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Those that a checkpoint is read into; moments that are not there yet are made."""
        return {**training_state(self.model, self.optimizers), **self.of_others()}

    def of_others(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, other in self.others.items():
            pack(other.state_dict(), f"{_OTHERS}{name}", found)
        return found

    def numbers(self) -> dict[str, Scalar]:
        """For a manifest. The cursor of the loader `data` has the name that every reader of checkpoints knows."""
        seen: dict[str, torch.Tensor] = {}
        state = {
            "options": [_options(one) for one in self.optimizers],
            "others": {name: pack(other.state_dict(), f"{_OTHERS}{name}", seen) for name, other in self.others.items()},
        }
        cursors = {_cursor_name(name): json.dumps(loader.state_dict()) for name, loader in self.loaders.items()}
        return {STATE: json.dumps(state), **cursors}

    def restore(self, found: Found, tensors: Mapping[str, torch.Tensor]) -> None:
        """tensors: those of `tensors`, filled. Raises CheckpointError where the checkpoint is of another script."""
        state = self.told(found)
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OTHERS)}
        set_training_state(self.model, self.optimizers, own)
        for optimizer, groups in zip(self.optimizers, state["options"], strict=True):
            _set_options(optimizer, groups)
        for name, other in self.others.items():
            other.load_state_dict(unpack(state["others"][name], tensors))
        self._cursors = {name: json.loads(str(said)) for name, said in found.manifest.extra.items() if name.startswith(EXTRA)}
        for name, loader in self.loaders.items():
            self._resume(name, loader)

    def add_loader(self, name: str, loader: Stateful) -> None:
        """Raises UserError for a name that is taken."""
        if name in self.loaders:
            raise UserError("name", name, "is another loader's; give each its own")
        self.loaders[name] = loader
        self._resume(name, loader)

    def told(self, found: Found) -> Any:
        """What is no tensor in a checkpoint, once it fits. Raises CheckpointError."""
        place = f"checkpoint {found.name}"
        if STATE not in found.manifest.extra:
            raise CheckpointError(place, None, "was not made by phalanx.run(); restore it by what made it")
        state = json.loads(str(found.manifest.extra[STATE]))
        if set(state["others"]) != set(self.others):
            was, now = (", ".join(sorted(names)) or "nothing" for names in (state["others"], self.others))
            raise CheckpointError(place, was, f"is what it holds besides model and optimizer; this script gives {now}")
        if len(state["options"]) != len(self.optimizers):
            raise CheckpointError(place, len(state["options"]), f"optimizers are in it; this script gives {len(self.optimizers)}")
        return state

    def _resume(self, name: str, loader: Stateful) -> None:
        cursor = self._cursors.get(_cursor_name(name))
        if cursor is not None:
            loader.load_state_dict(cursor)


class KeptState(LiveState):
    """Where it lies in memory, for the saves in the background."""

    def __init__(self, kept: Kept, rank: int) -> None:
        super().__init__(kept.model, kept.optimizers)
        self._kept = kept
        self._rank = rank
        self._measured: list[Part] | None = None

    def own(self) -> list[tuple[Part, torch.Tensor]]:
        """Others may change at any time: copies of theirs. Raises UserError when something has another size than at first."""
        others = {name: tensor.clone() for name, tensor in self._kept.of_others().items()}
        found = [*super().own(), *local_parts(others), *own_parts(self._rank)]
        parts = [part for part, _ in found]
        if self._measured is not None and parts != self._measured:
            odd = next(iter({part.name for part in parts} ^ {part.name for part in self._measured}), "a tensor")
            raise UserError("what is saved", odd, "came, went or changed its size since the first save; keep it as it is")
        self._measured = parts
        return found

    def specs(self) -> Mapping[str, TensorSpec]:
        return {**super().specs(), **specs_of(self._kept.of_others())}


def _checked(optimizers: Optimizers) -> list[torch.optim.Optimizer]:
    several = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    for one in several:
        if not isinstance(one, torch.optim.Optimizer):
            raise UserError("optimizer", f"a {type(one).__name__}", "give a torch.optim.Optimizer, a list of them, or none")
    return listed(optimizers)


def _cursor_name(name: str) -> str:
    return EXTRA if name == "data" else f"{EXTRA}.{name}"


def _options(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Of each group, such as a learning rate, which a scheduler has moved. What is a tensor is among the moments."""
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        options = {name: value for name, value in options.items() if not isinstance(value, torch.Tensor)}
        groups.append(pack(options, f"optimizer group {number}", {}))
    return groups


def _set_options(optimizer: torch.optim.Optimizer, groups: list[Any]) -> None:
    if len(groups) != len(optimizer.param_groups):
        raise CheckpointError("groups of the optimizer", len(groups), f"are saved; this one has {len(optimizer.param_groups)}")
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        group.update(unpack(options, {}))
