"""Layers to stages, so that the dearest stage costs as little as can be: a pipeline is as slow as that one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import SpecError

LAYERS_MAX: Final = 4_096
"""A table of layers x layers is filled once a stage."""
_TIES: Final = 1e-12
"""Of the total: sums of the same costs in another order are equal."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What the parts of a model cost, in any unit. layers: each. embedding: with the first stage, before its layers. output: norm,
    output matrix and loss, with the last one, after its layers."""

    layers: tuple[float, ...]
    embedding: float = 0
    output: float = 0

    def check(self, num_stages: int) -> None:
        """Raises SpecError unless so many stages can be cut from it."""
        if not 1 <= len(self.layers) <= LAYERS_MAX:
            raise SpecError("layers", len(self.layers), f"write 1 to {LAYERS_MAX:,} costs")
        named = {f"layers[{index}]": cost for index, cost in enumerate(self.layers)}
        for name, cost in {**named, "embedding": self.embedding, "output": self.output}.items():
            if not (math.isfinite(cost) and cost >= 0):
                raise SpecError(name, cost, "write a finite cost, 0 or more")
        if not 1 <= num_stages <= len(self.layers):
            fix = f"a stage has one of the {len(self.layers)} layers at least; write 1 to {len(self.layers)}"
            raise SpecError("num_stages", num_stages, fix)

    def of(self, stages: Sequence[range]) -> tuple[float, ...]:
        """What each stage costs."""
        plain = [sum(self.layers[stage.start : stage.stop]) for stage in stages]
        plain[0] += self.embedding
        plain[-1] += self.output
        return tuple(plain)


def balanced_stages(costs: LayerCosts, num_stages: int) -> tuple[range, ...]:
    """The layers of each stage, at least one each. No other way to cut has a cheaper dearest stage; of those that are as good, this
    is one with the smallest sum of squares, so that equal layers give equal counts, or one more; then the one with fewer layers
    in front, where a schedule holds the most activations. Raises SpecError where `check` does."""
    costs.check(num_stages)
    table = _stage_costs(costs, num_stages)
    tie = _TIES * (sum(costs.layers) + costs.embedding + costs.output)
    dearest = _best(table, np.maximum)[-1]
    within = [np.where(stage <= dearest + tie, stage**2, np.inf) for stage in table]
    return _cuts(within, tie)


def _stage_costs(costs: LayerCosts, num_stages: int) -> list[Floats]:
    """For each stage, [first layer, layer after the last one]: what it would cost; inf where it would be empty."""
    sums = np.concatenate([[0.0], np.cumsum(costs.layers, dtype=np.float64)])
    plain = sums[None, :] - sums[:, None]
    plain[np.tril_indices(len(sums))] = np.inf
    table = [plain] * num_stages
    table[0] = table[0] + costs.embedding
    table[-1] = table[-1] + costs.output
    return table


def _best(table: Sequence[Floats], add: np.ufunc) -> Floats:
    """The least that layers from the front cost, by how many they are, once all stages are cut from them."""
    least = np.full(len(table[0]), np.inf)
    least[0] = 0.0
    for stage in table:
        least = add(least[:, None], stage).min(axis=0)
    return least


def _cuts(table: Sequence[Floats], tie: float) -> tuple[range, ...]:
    """The cuts with the least sum; of equal ones those that come first."""
    rest = [np.full(len(table[0]), np.inf)]
    rest[0][-1] = 0.0  # behind the last layer nothing is left
    for stage in reversed(table):
        rest.append((stage + rest[-1][None, :]).min(axis=1))
    rest.reverse()
    slack, at, found = tie * math.sqrt(float(rest[0][0])), 0, []
    for stage, after in zip(table, rest[1:], strict=True):
        whole = stage[at] + after
        end = int(np.flatnonzero(whole <= whole.min() + slack)[0])
        found.append(range(at, end))
        at = end
    return tuple(found)
