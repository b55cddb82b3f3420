"""Many packing problems at once. A row is one: GPUs that may hold the same experts, which are one layer's, or those of one node of
it where groups keep to nodes. All are worked on together, since a NumPy call costs more than a row. Shapes: P rows, M GPUs of a
row, S slots of a GPU, E experts of a row."""

from dataclasses import dataclass

import numpy as np

from phalanx.fabric.experts.layout import Bools, Floats, Ints

NEAR = 5e-4
"""A row that is this near its lower bound, of which it is a part, is done: loads are estimates, and the rest costs most time."""

LEAST = 1e-6
"""What is gained less, as a part of the largest load, is rounding."""


@dataclass(slots=True)
class Rows:
    """Where experts lie and what they take there; changed in place.

    loads: tokens [P, E]. copies: replicas [P, E]; 0 of an expert that is none, where rows differ in size. experts: [P, M, S].
    tokens: what each slot takes [P, M, S]. gpus: tokens of each GPU [P, M]. enough: a largest GPU load that needs no work [P].
    """

    loads: Floats
    copies: Ints
    experts: Ints
    tokens: Floats
    gpus: Floats
    enough: Floats

    def at(self, rows: Ints) -> "Rows":
        """A copy of some."""
        return Rows(
            self.loads[rows], self.copies[rows], self.experts[rows], self.tokens[rows], self.gpus[rows], self.enough[rows]
        )  # fmt: skip

    def put(self, rows: Ints, other: "Rows") -> None:
        """These rows become the other's."""
        for name in ("copies", "experts", "tokens", "gpus"):
            getattr(self, name)[rows] = getattr(other, name)

    def largest(self) -> Floats:
        return np.asarray(self.gpus.max(1))

    def open(self, among: Ints) -> Ints:
        """Those that still need work."""
        return np.asarray(among[self.gpus[among].max(1) > self.enough[among]])

    def all(self) -> Ints:
        return np.arange(len(self.loads))


def lower_bound(loads: Floats, copies: Ints, num_gpus: int) -> Floats:
    """No placement of these experts has a smaller largest GPU load, [P], where the copies are the apportioned ones."""
    return np.asarray(np.maximum(loads.sum(1) / num_gpus, (loads / np.maximum(copies, 1)).max(1)))


def ranked(values: Floats) -> Ints:
    """From the largest to the smallest; equal ones by their index."""
    return np.argsort(-values, axis=1, kind="stable")


def holds(experts: Ints, wanted: Ints) -> Bools:
    """Whether each GPU has each wanted expert: experts [P, M, S], wanted [P, W], so [P, W, M]."""
    return np.asarray((experts[:, None, :, :] == wanted[:, :, None, None]).any(-1))
