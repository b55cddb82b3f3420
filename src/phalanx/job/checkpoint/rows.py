"""Fused matrices whose rows lie otherwise in a run than in its checkpoints.

A fused matrix holds several, one below the other, such as those of queries, keys and values. Who cuts it over ranks so that each
has its part of all of them lays the rows anew, rank after rank, since torch cuts by neighbouring rows alone. In checkpoints rows
lie as they do in a model that nobody cuts: what is saved in one layout is read in any other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

_ATTRIBUTE: Final = "rows_of_checkpoints"
"""Of a model: the rows of those parameters that lie otherwise."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring rows: where they begin in the run's matrix, and in the checkpoint's."""

    own: int
    saved: int
    count: int


Rows = tuple[Run, ...]


class State(dict[str, Tensor]):
    """A state dictionary. rows: of those tensors whose rows lie otherwise in checkpoints."""

    def __init__(self, tensors: Mapping[str, Tensor], rows: Mapping[str, Rows]) -> None:
        super().__init__(tensors)
        self.rows = rows


def fused(heights: Sequence[int], ranks: int) -> Rows:
    """Of matrices of these heights, one below the other, each of which `ranks` share evenly."""
    runs, own = [], 0
    for rank in range(ranks):
        top = 0
        for height in heights:
            count = height // ranks
            runs.append(Run(own, top + rank * count, count))
            own, top = own + count, top + height
    return tuple(runs)


def lay_anew(saved: Tensor, rows: Rows) -> Tensor:
    """A matrix as in checkpoints, in the run's order."""
    return torch.cat([saved[run.saved : run.saved + run.count] for run in rows])


def as_saved(own: Tensor, rows: Rows) -> Tensor:
    """The reverse."""
    return torch.cat([own[run.own : run.own + run.count] for run in sorted(rows, key=lambda run: run.saved)])


def set_rows(model: nn.Module, rows: Mapping[str, Rows]) -> None:
    """Says of a model's parameters, by name, how their rows lie."""
    setattr(model, _ATTRIBUTE, dict(rows))


def rows_of(model: nn.Module) -> Mapping[str, Rows]:
    """By the name of a parameter; empty where all lie as in checkpoints."""
    found: Mapping[str, Rows] = getattr(model, _ATTRIBUTE, {})
    return found


def rows_in(state: Mapping[str, Tensor]) -> Mapping[str, Rows]:
    """By the name of a tensor."""
    return state.rows if isinstance(state, State) else {}


def stretches(local: Tensor, start: tuple[int, ...], rows: Rows | None) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """A rank's piece, which begins at `start` of the run's matrix, as pieces of the checkpoint's, each with its place there."""
    if rows is None:
        yield start, local
        return
    first, stop = start[0], start[0] + local.shape[0]
    for run in rows:
        low, high = max(first, run.own), min(stop, run.own + run.count)
        if low < high:
            yield (run.saved + low - run.own, *start[1:]), local[low - first : high - first]
