"""Random faults of all kinds that a run must survive bit for bit, one after the other or two at once, from a seed."""

from collections.abc import Iterator
from random import Random
from typing import Final

from phalanx.core.chaos import Asked, FaultKind

WEIGHTS: Final[dict[FaultKind, int]] = {
    "kill-rank": 8,
    "hang-rank": 3,
    "slow-rank": 2,
    "kill-agent": 2,
    "kill-node": 2,
    "fill-disk": 2,
    "drop-store": 2,
}
"""How often each comes. `flip-bit` is not among them: what it changes stays changed."""
AT_ONCE: Final = 0.25
"""How often another follows in the same moment: in its recovery, its save or its restore."""
AHEAD: Final = (4, 25)
"""Steps from now on: an exact one that is still to come when the rank hears of it."""


def faults(random: Random, ranks: int) -> Iterator[tuple[tuple[Asked, int], ...]]:
    """For ever: faults that are asked for together, each with how many steps ahead; 0 is the next one."""
    first = list(WEIGHTS)
    random.shuffle(first)  # a short run, too, has one of most kinds
    while True:
        kinds = [first.pop() if first else _kind(random)]
        while random.random() < AT_ONCE:
            kinds.append(_kind(random))
        ahead = random.randint(*AHEAD)
        yield tuple((_fault(random, kind, ranks), ahead + random.randint(0, 2) if random.random() < 0.8 else 0) for kind in kinds)


def flips(random: Random, ranks: int, count: int) -> Iterator[Asked]:
    """Of weights and of gradients in turn."""
    for number in range(count):
        rank = random.randrange(ranks)
        gradient = Asked(fault="flip-bit", rank=rank, flip="gradient", for_ms=10_000)
        yield Asked(fault="flip-bit", rank=rank) if number % 2 else gradient


def _kind(random: Random) -> FaultKind:
    return random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]


def _fault(random: Random, kind: FaultKind, ranks: int) -> Asked:
    rank = random.randrange(ranks)
    match kind:
        case "hang-rank":  # half of them go on by themselves, before anybody counts them as hung
            return Asked(fault=kind, rank=rank, for_ms=random.choice((None, random.randint(100, 2_000))))
        case "slow-rank":
            return Asked(fault=kind, rank=rank, for_ms=random.randint(500, 3_000), slow_ms=random.randint(1, 30))
        case "kill-agent" | "kill-node":
            return Asked(fault=kind, rank=rank, for_ms=random.randint(1, 2_000))
        case "fill-disk" | "drop-store":
            return Asked(fault=kind, rank=random.choice((None, rank)), for_ms=random.randint(500, 6_000))
        case _:
            return Asked(fault=kind, rank=rank)
