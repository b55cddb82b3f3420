"""The most bus bandwidth that a group of ranks can have, by what its links carry."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.fabric.links.tiers import Member, Tier

RINGS: Final = ("all_reduce", "all_gather", "reduce_scatter")
Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """of_gpus: it is the rate of a GPU's own links, else that of adapters."""

    bytes_per_s: float
    of_gpus: bool


def bounds(
    tier: Tier, members: Sequence[Member], collective: str, gpu: float | None, nics: float | None
) -> Mapping[Group, Bound | None]:
    """Of each group of a tier; None where nobody can say it. gpu: of a GPU's links; nics: of all adapters of a node together.

    Inside an NVLink domain, of one node or several, a GPU's own links carry it. A ring of all-reduce, all-gather or reduce-scatter
    over more leaves each domain once, so that all adapters of the group's nodes there carry it (nccl-tests, doc/PERFORMANCE.md), of
    which the groups of the tier have shares by their ranks. An all-to-all mixes both kinds of links, and has no such bound, unless
    each of its ranks is alone in its domain.
    """
    known = {one.rank: one for one in members}
    busy = Counter(known[rank].node for group in tier.groups for rank in group)
    return {group: _bound([known[rank] for rank in group], busy, collective, gpu, nics) for group in tier.groups}


def least(found: Mapping[Group, Bound | None]) -> Bound | None:
    """Of a tier, whose slowest group is the tier's; None where nobody can say it of one."""
    said = [one for one in found.values() if one is not None]
    return min(said, key=lambda one: one.bytes_per_s) if len(said) == len(found) and said else None


def _bound(
    group: Sequence[Member], busy: Mapping[int, int], collective: str, gpu: float | None, nics: float | None
) -> Bound | None:
    domains = dict[object, list[Member]]()
    for one in group:
        domains.setdefault(one.near, []).append(one)
    inner = Bound(gpu, of_gpus=True) if gpu is not None else None
    if len(domains) == 1:
        return inner
    alone = all(len(ranks) == 1 for ranks in domains.values())
    if nics is None or (collective not in RINGS and not alone):
        return None
    outer = Bound(min(nics * _share(ranks, busy) for ranks in domains.values()), of_gpus=False)
    return min(outer, inner, key=lambda one: one.bytes_per_s) if inner is not None and not alone else outer


def _share(ranks: Sequence[Member], busy: Mapping[int, int]) -> float:
    """Of the adapters of these ranks' nodes, as so many of a node's."""
    nodes = {one.node for one in ranks}
    return len(nodes) * len(ranks) / sum(busy[node] for node in nodes)
