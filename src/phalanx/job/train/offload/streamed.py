"""AdamW whose moments lie elsewhere than its weights, and come to them piece by piece in each step.

The update is torch's own fused one, on the device of the weights, of each element from the same numbers as without: the same bits,
wherever moments lie. What moves is 8 bytes a weight each way, while pieces before and after are on their way too; to update weights
on the host would move half of that, and do there, in other bits, what a GPU does a hundred times faster.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from phalanx.core.errors import Bug
from phalanx.job.checkpoint.digest import bit_sum
from phalanx.job.checkpoint.local import local_of
from phalanx.job.train.local_adamw import MOMENTS, LocalAdamW, update
from phalanx.job.train.offload.carriers import Across, Here
from phalanx.job.train.offload.pieces import Piece, Plan, plan
from phalanx.job.train.offload.place import OffloadPlace, agreed, check_room
from phalanx.job.train.offload.stores import AHEAD, TURNS, InMemory, OnDisk, Pair, Store

T = TypeVar("T")
PIECE_BYTES: Final = 16 * 2**20
"""Of each of both moments. Moved at tens of GB/s it lasts some tenths of a millisecond, tens of times as long as to enqueue it."""
Groups: TypeAlias = Sequence[Mapping[str, Any]]
"""Of parameters and their options, as torch's optimisers take them."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A parameter that has a gradient: what of both is this rank's, flat."""

    group: Mapping[str, Any]
    weight: Tensor
    gradient: Tensor
    step: Tensor


class StreamedAdamW(LocalAdamW):
    """Its state has the names, shapes and cuts of AdamW's, from the start on, in host memory or in a file. See `streamed_adamw`."""

    def __init__(self, groups: Groups, store: Store, carrier: Here | Across, pieces: Plan, **options: Any) -> None:
        super().__init__([dict(group) for group in groups], **options)
        self.store = store
        self.carrier = carrier
        self._plan = pieces
        for parameter, start in zip(_parameters(groups), pieces.starts, strict=True):
            self.state[parameter] = _state(parameter, store.arrays, start)
        weakref.finalize(self, store.close).atexit = False  # with the process all of it goes anyhow

    def _update_all(self) -> None:
        """Raises StoreUnavailable where the file cannot be read or written: weights and moments are then of no step."""
        due = self._due()
        for turn, piece in self._in_turns(piece for piece in self._plan.pieces if any(one.array in due for one in piece.stretches)):
            self._one(turn, piece, due)
        if due:
            torch._foreach_add_([one.step for one in due.values()], 1)
        self.carrier.finish()
        self.store.finish()

    @torch.no_grad()
    def bit_sums(self, device: torch.device) -> Mapping[int, Tensor]:
        """`bit_sum` of this rank's part of each moment, on the device, by the address of where it lies. A file is read ahead piece
        by piece as in a step, so that all of it is never in memory. Raises StoreUnavailable."""
        found: dict[int, Tensor] = {}
        starts = [[array[start:].data_ptr() for start in self._plan.starts] for array in self.store.arrays]
        for turn, piece in self._in_turns(self._plan.pieces):
            for places, half in zip(starts, self.store.there(turn, piece), strict=True):
                for one in piece.stretches:
                    total = bit_sum(half[one.at : one.at + one.count], device)
                    place = places[one.array]
                    found[place] = found[place] + total if place in found else total
        return found

    def _in_turns(self, pieces: Iterable[Piece]) -> Iterator[tuple[int, Piece]]:
        """Each with its turn, once those that follow are begun."""
        every = list(pieces)
        for number, piece in enumerate(every[:AHEAD]):
            self.store.begin(number % TURNS, piece)
        for number, piece in enumerate(every):
            for later in every[number + AHEAD : number + AHEAD + 1]:
                self.store.begin((number + AHEAD) % TURNS, later)
            yield number % TURNS, piece

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What is loaded is copied to where the moments lie; torch's own would move it to the weights' device."""
        kept = dict(self.state)
        super().load_state_dict({**state_dict, "state": {}})
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(numbers, _parameters(self.param_groups), strict=True):
            for kind, value in state_dict["state"].get(number, {}).items():
                _put(kept[parameter][kind], value)
        self.state.update(kept)

    def _due(self) -> dict[int, _Due]:
        """By the number of the parameter."""
        found, number = {}, 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    weight, gradient = local_of(parameter), local_of(parameter.grad)
                    step = self.state[parameter]["step"]
                    found[number] = _Due(group, weight.view(-1), gradient.reshape(-1), step)
                number += 1
        return found

    def _one(self, turn: int, piece: Piece, due: Mapping[int, _Due]) -> None:
        host = self.store.there(turn, piece)
        _update(piece, self.carrier.up(turn, host), due)
        self.store.changed(turn, piece, self.carrier.down(turn, host))


@torch.no_grad()
def streamed_adamw(
    groups: Groups, place: OffloadPlace, piece_bytes: int = PIECE_BYTES, staged: bool = False, **options: Any
) -> StreamedAdamW:
    """A collective of all ranks. staged: pieces are copied even where the host is the device. options: of torch.optim.AdamW.

    Raises SetupError, on every rank, where there is no room for the moments of one.
    """
    parameters = _parameters(groups)
    weights = [local_of(parameter) for parameter in parameters]
    dtype, device = _only({weight.dtype for weight in weights}), _only({weight.device for weight in weights})
    if not all(weight.is_contiguous() for weight in weights):
        raise Bug("weights whose moments lie elsewhere have to be contiguous")
    pieces = plan([weight.numel() for weight in weights], piece_bytes // dtype.itemsize)
    check_room(place, 2 * pieces.count * dtype.itemsize)
    largest = max((piece.count for piece in pieces.pieces), default=0)

    def kept() -> Store:
        if place.kind == "cpu":
            return InMemory(pieces.count, dtype, device)
        return OnDisk(place.folder, pieces.count, dtype, largest, device)

    def carrier() -> Here | Across:
        return Across(largest, dtype, device) if staged or device.type != "cpu" else Here()

    store = agreed(place, kept, lambda made: made.close())
    return StreamedAdamW(groups, store, agreed(place, carrier), pieces, **options)


def _state(parameter: nn.Parameter, arrays: Pair, start: int) -> dict[str, Tensor]:
    local = local_of(parameter.detach())
    state = {"step": torch.zeros((), dtype=torch.float32, device=local.device)}
    for kind, array in zip(MOMENTS, arrays, strict=True):
        moment = torch.empty_like(parameter, device="cpu", requires_grad=False)  # takes no memory: nothing is written to it
        with torch.no_grad():
            local_of(moment).set_(array[start : start + local.numel()].view(local.shape))  # type: ignore[call-overload]
        state[kind] = moment
    return state


def _update(piece: Piece, near: Pair, due: Mapping[int, _Due]) -> None:
    """Of those parameters of a piece that are due, group by group."""
    by_group: dict[int, list[tuple[_Due, Tensor, Tensor, Tensor, Tensor]]] = {}
    for one in piece.stretches:
        if (found := due.get(one.array)) is not None:
            own, there = slice(one.first, one.first + one.count), slice(one.at, one.at + one.count)
            parts = found.weight[own], found.gradient[own], near[0][there], near[1][there]
            by_group.setdefault(id(found.group), []).append((found, *parts))
    for some in by_group.values():
        group = some[0][0].group
        weights, gradients, means, squares = (list(column) for column in list(zip(*some, strict=True))[1:])
        steps = [found.step.clone() for found, *_ in some]  # each is counted up, and those of a parameter in parts only once
        update(group, weights, gradients, means, squares, steps)


def _put(own: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        to, source = local_of(own), local_of(value)
        if to.data_ptr() != source.data_ptr():
            to.copy_(source)


def _parameters(groups: Iterable[Mapping[str, Any]]) -> list[nn.Parameter]:
    return [parameter for group in groups for parameter in group["params"]]


def _only(found: set[T]) -> T:
    """Of all weights."""
    if len(found) != 1:
        raise Bug(f"weights whose moments lie elsewhere are of {found}; one kind on one device is known")
    return next(iter(found))
