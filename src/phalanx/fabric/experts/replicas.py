"""Replicas beside owners: each expert stays where its state lies, and GPUs with little to do take a part of the tokens of those
with much, in a few slots of their own. Whole numbers alone, so that every rank finds the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PARTS: Final = 1 << 16
"""In which an expert's tokens are counted out."""
EVEN: Final = 0.02
"""What a GPU may have above the mean, as a part of it, before others help it: a replica costs a copy of weights in every pass."""


@dataclass(frozen=True, slots=True)
class Replica:
    """The GPU `gpu` takes `parts` of PARTS of the tokens of an expert that lies elsewhere."""

    expert: int
    gpu: int
    parts: int


def replicas(load_e: Sequence[int], num_gpus: int, spare: int) -> tuple[Replica, ...]:
    """At most `spare` on each GPU. load_e: tokens of each expert, in the order in which GPUs own them, as many each.

    The emptiest GPU is filled up to the mean from the fullest one, again and again, as urns are in the alias method (Vose, 1991):
    there one slot for each urn makes all of them level. Here what one slot brings is at most the tokens of one expert.
    """
    mean = sum(load_e)  # of GPUs, since tokens count num_gpus times: so everything stays a whole number
    gpus = _Gpus(load_e, num_gpus, spare)
    while max(gpus.load) > (1 + EVEN) * mean:
        targets = [gpu for gpu in range(num_gpus) if gpus.free[gpu] and gpus.load[gpu] < mean]
        if not targets:
            break
        target = min(targets, key=lambda gpu: (gpus.load[gpu], gpu))
        if not gpus.fill(target, mean):
            gpus.free[target] = 0
    return tuple(
        Replica(expert, gpu, parts)
        for gpu, held in enumerate(gpus.held)
        for expert, tokens in held.items()
        if gpus.owner(expert) != gpu and (parts := tokens * PARTS // (load_e[expert] * num_gpus))
    )


def gpu_loads(load_e: Sequence[int], num_gpus: int, found: Sequence[Replica] = ()) -> list[float]:
    """Tokens of each GPU. load_e: as of `replicas`, of any step."""
    mine = len(load_e) // num_gpus
    loads = [float(sum(load_e[gpu * mine : (gpu + 1) * mine])) for gpu in range(num_gpus)]
    for one in found:
        moved = load_e[one.expert] * one.parts / PARTS
        loads[one.gpu] += moved
        loads[one.expert // mine] -= moved
    return loads


class _Gpus:
    """held: of each GPU, how many tokens it has of which expert. load: of all. free: slots."""

    def __init__(self, load_e: Sequence[int], num_gpus: int, spare: int) -> None:
        self._mine = len(load_e) // num_gpus
        of_gpus = [range(gpu * self._mine, (gpu + 1) * self._mine) for gpu in range(num_gpus)]
        self.held = [{expert: load_e[expert] * num_gpus for expert in own} for own in of_gpus]
        self.load = [sum(held.values()) for held in self.held]
        self.free = [spare] * num_gpus

    def owner(self, expert: int) -> int:
        return expert // self._mine

    def fill(self, target: int, mean: int) -> bool:
        """From the fullest GPU that can: whether there is one."""
        above = [gpu for gpu in range(len(self.load)) if self.load[gpu] > mean]
        for source in sorted(above, key=lambda gpu: (-self.load[gpu], gpu)):
            others = [
                (tokens, expert) for expert, tokens in self.held[source].items() if tokens and expert not in self.held[target]
            ]
            if not others:
                continue
            wanted = mean - self.load[target]
            if not self.free[source]:  # else it is filled up again in its turn
                wanted = min(wanted, self.load[source] - mean)
            tokens, expert = min((one for one in others if one[0] >= wanted), default=max(others))
            self._hand(expert, min(tokens, wanted), source, target)
            return True
        return False

    def _hand(self, expert: int, tokens: int, source: int, target: int) -> None:
        self.held[source][expert] -= tokens
        self.held[target][expert] = tokens
        self.load[source] -= tokens
        self.load[target] += tokens
        self.free[target] -= 1
