"""What pairs of ranks exchange in a second, both ways at once, in rounds in which each rank has one partner."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import torch
import torch.distributed as dist

from phalanx.fabric.links.faults import Edge, suspects
from phalanx.fabric.links.naming import by_class
from phalanx.fabric.links.rounds import packed, rounds
from phalanx.fabric.links.tiers import Member
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.train.device import Rank
from phalanx.job.train.fabric_test.timing import slowest, together_s

ROUNDS_MAX: Final = 16
"""Between nodes: so many others each node is measured with."""
BYTES_GPU: Final = 64 * 2**20
BYTES_CPU: Final = 2**20


def fixtures(members: Sequence[Member]) -> list[list[Edge]]:
    """Rounds inside all nodes at once, then between nodes, in which ranks of equal number meet."""
    ranks = {(one.node, one.local_rank): one.rank for one in members}
    nodes = sorted({one.node for one in members})
    locals_ = sorted({one.local_rank for one in members})
    inside = [
        [_edge(ranks, (node, locals_[a]), (node, locals_[b])) for node in nodes for a, b in one]
        for one in rounds(len(locals_), len(locals_))
    ]
    between = [
        [_edge(ranks, (nodes[a], index), (nodes[b], index)) for a, b in one for index in locals_]
        for one in rounds(len(nodes), ROUNDS_MAX)
    ]
    return [found for one in inside + between if (found := [edge for edge in one if edge is not None])]


def again(rates: dict[Edge, float], members: Sequence[Member]) -> list[list[Edge]]:
    """Rounds for the pairs by which somebody would be named: a moment's disturbance is nobody's fault."""
    return packed(pair for some in by_class(rates, members).values() for pair in suspects(some))


def measured(fixed: Iterable[list[Edge]], rank: Rank, seconds: float, clock_s: Callable[[], float]) -> Iterator[dict[Edge, float]]:
    """The rates of each round, alike on every rank. A collective of all."""
    size = BYTES_GPU if rank.device.type == "cuda" else BYTES_CPU
    mine, theirs = (torch.zeros(size // 4, device=rank.device) for _ in range(2))
    for one in fixed:
        partner = next((a + b - rank.rank for a, b in one if rank.rank in (a, b)), None)
        times = told_by_all(together_s(_exchange(mine, theirs, partner), rank, seconds, clock_s))
        yield {(a, b): size / slowest([times[a], times[b]]) for a, b in one}


def better(first: dict[Edge, float], second: dict[Edge, float]) -> dict[Edge, float]:
    return first | {pair: max(rate, first.get(pair, 0.0)) for pair, rate in second.items()}


def _exchange(mine: torch.Tensor, theirs: torch.Tensor, partner: int | None) -> Callable[[], None]:
    def act() -> None:
        if partner is None:
            return
        sent, got = dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, theirs, partner)
        for work in dist.batch_isend_irecv([sent, got]):
            work.wait()

    return act


def _edge(ranks: dict[tuple[int, int], int], a: tuple[int, int], b: tuple[int, int]) -> Edge | None:
    """None where nodes have unequal numbers of ranks."""
    if a not in ranks or b not in ranks:
        return None
    low, high = sorted((ranks[a], ranks[b]))
    return low, high
