"""The whole test: each GPU alone, pairs, then collectives on each tier; and the report of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from phalanx.core.fabric_test import (
    SIZES_CPU,
    SIZES_GPU,
    FabricAsked,
    FabricReport,
    PointView,
    TierView,
    place_of,
)
from phalanx.fabric.catalogue import lookup
from phalanx.fabric.links.bounds import Bound, Group, bounds, least
from phalanx.fabric.links.bus import bus_bytes_per_s
from phalanx.fabric.links.cost import costs
from phalanx.fabric.links.faults import Edge
from phalanx.fabric.links.naming import Own, judged, named
from phalanx.fabric.links.rates import LINKS, GpuLinks, with_links
from phalanx.fabric.links.tiers import Member, Tier, tiers
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.train.device import Rank, backend_of
from phalanx.job.train.fabric_test import alone, collectives, pairs
from phalanx.job.train.fabric_test.facts import Facts, facts
from phalanx.job.train.fabric_test.timing import slowest

Said = Callable[[int, int, str], None]
"""Called on rank 0 as (done, total, what is next)."""
_AGAIN: Final = 2
"""Times that doubtful pairs are measured again."""
_ALONE: Final = 2
"""Measurements of each GPU alone."""


@dataclass(slots=True)
class Found:
    """As it comes together; the same on every rank."""

    told: list[Facts]
    members: list[Member]
    tiers: tuple[Tier, ...]
    unplaced: bool = False
    own: Own = field(default_factory=Own)
    rates: dict[Edge, float] = field(default_factory=dict)
    points: list[PointView] = field(default_factory=list)


def tested(asked: FabricAsked, rank: Rank, job: str, said: Said, clock_s: Callable[[], float], made_ms: int) -> FabricReport | None:
    """The report, on rank 0. A collective of all ranks."""
    told = told_by_all(facts(rank))
    members = [member(number, one, asked) for number, one in enumerate(told)]
    found = Found(told, members, tiers(members), asked.unplaced)
    sizes = asked.sizes or (SIZES_GPU if rank.device.type == "cuda" else SIZES_CPU)
    rounds = pairs.fixtures(members) if asked.pairs else []
    progress = _Progress(_ALONE + len(rounds) + len(found.tiers) * len(asked.collectives) * len(sizes), said, rank)
    progress.next("each GPU alone")
    flops = alone.products(rank, clock_s)
    progress.next("each GPU alone")
    nvlinks = {number: one.nvlinks for number, one in enumerate(told)}
    found.own = Own(flops=flops, memory=alone.copies(rank, clock_s), nvlinks=nvlinks)
    _meet(found, rounds, asked, rank, progress, clock_s)
    groups: collectives.Groups = {}
    for tier in found.tiers:
        for collective, size, measure in collectives.measured(tier, asked, sizes, rank, groups, clock_s):
            progress.next(f"{collective} of {size} bytes, tier {tier.name}")
            found.points.append(point(tier, measure(), found))
    return report(found, rank, job, made_ms) if rank.rank == 0 else None


def member(rank: int, one: Facts, asked: FabricAsked) -> Member:
    labels = place_of(one.name, asked.places)
    return Member(
        rank=rank, node=one.node, local_rank=one.local_rank, name=one.name,
        domain=labels.get("domain", ""), rack=labels.get("rack", ""), block=labels.get("block", ""),
    )  # fmt: skip


def point(tier: Tier, measured: collectives.Measured, found: Found) -> PointView:
    """The slowest group is the tier's: a step waits for it."""
    collective, size_bytes, times = measured
    of_group = {group: slowest([times[one] for one in group]) for group in tier.groups}
    group = max(of_group, key=lambda one: of_group[one])
    seconds = of_group[group]
    bus = bus_bytes_per_s(collective, len(group), size_bytes, seconds)
    bound = _bounds(tier, collective, found)[group]
    first = found.members[group[0]]
    return PointView(
        tier=tier.name, collective=collective, num_ranks=len(group), size_bytes=size_bytes, seconds=seconds, bus_bytes_per_s=bus,
        part=bus / bound.bytes_per_s if bound else None, slowest=f"of {first.name}:{first.local_rank}" if len(of_group) > 1 else "",
    )  # fmt: skip


def report(found: Found, rank: Rank, job: str, made_ms: int) -> FabricReport:
    nodes = {one.node: one.name for one in found.members}
    return FabricReport(
        made_ms=made_ms, job=job, backend=backend_of(rank.device), device=rank.device_name, torch=torch.__version__,
        nodes=tuple(nodes[node] for node in sorted(nodes)), num_ranks=rank.world_size,
        tiers=tuple(tier_view(tier, found) for tier in found.tiers),
        points=tuple(found.points), costs=costs(found.points),
        slow=named(found.members, found.rates, found.own, _maker(found)), pairs=len(found.rates), notes=notes(found),
        judged=judged(found.rates, found.members),
    )  # fmt: skip


def notes(found: Found) -> tuple[str, ...]:
    """What nobody may conclude from this report."""
    said = []
    if len(found.members) < 3:
        said.append("two ranks have nobody to be compared with: which of them is slow, or whether their link is, cannot be told")
    elif 0 < (compared := judged(found.rates, found.members)) < (every := len(found.rates)):
        said.append(f"{compared} of {every} pairs of ranks had others of their kind to be compared with; the rest were not judged")
    if found.unplaced:
        said.append(
            "where nodes lie is not known, since the policy's labels are more than ranks can be given: all are taken for one rack"
        )
    if len({one.device for one in found.told}) > 1:
        said.append(f"devices differ: {', '.join(sorted({one.device for one in found.told}))}; the slower kind may be named slow")
    if len(found.told) > 1 and len({one.host for one in found.told}) == 1 and len({one.node for one in found.told}) > 1:
        said.append("all nodes are of one machine: what is between them is its memory, and no network")
    if found.told[0].device == "cpu":
        said.append("without GPUs this measures gloo between processes: it shows that the test runs, and no fabric")
    return tuple(said)


def _meet(
    found: Found, rounds: list[list[Edge]], asked: FabricAsked, rank: Rank, progress: "_Progress", clock_s: Callable[[], float]
) -> None:
    """All pairs, then again those by which somebody would still be named."""
    for part in pairs.measured(progress.each(rounds, "pairs of ranks"), rank, asked.seconds, clock_s):
        found.rates |= part
    for _ in range(_AGAIN):
        doubtful = pairs.again(found.rates, found.members)
        progress.total += len(doubtful)
        for part in pairs.measured(progress.each(doubtful, "slow pairs again"), rank, asked.seconds, clock_s):
            found.rates = pairs.better(found.rates, part)


def _maker(found: Found) -> GpuLinks | None:
    model = lookup(found.told[0].device)
    return LINKS.get(model.type) if model is not None else None


def _links(found: Found) -> GpuLinks | None:
    """As the card that has most of them has."""
    known = _maker(found)
    counted = [count for count in found.own.nvlinks.values() if count is not None]
    return with_links(known, max(counted, default=None)) if known is not None else None


def _bounds(tier: Tier, collective: str, found: Found) -> Mapping[Group, Bound | None]:
    links, hosts = _links(found), {one.host for one in found.told}
    given = [one.nics for one in found.told if one.nics is not None]
    nics = min(given) if len(given) == len(found.told) and len(hosts) > 1 else None
    return bounds(tier, found.members, collective, links.bytes_per_s if links else None, nics)


def tier_view(tier: Tier, found: Found) -> TierView:
    bound, links = least(_bounds(tier, "all_reduce", found)), _links(found)
    source = (links.source if links and bound.of_gpus else "its network adapters") if bound else ""
    return TierView(
        name=tier.name, num_groups=len(tier.groups), num_ranks=tier.num_ranks,
        hardware_bytes_per_s=bound.bytes_per_s if bound else None, source=source,
    )  # fmt: skip


class _Progress:
    """Says on rank 0 what is next."""

    def __init__(self, total: int, said: Said, rank: Rank) -> None:
        self.total = total
        self._done = 0
        self._said = said if rank.rank == 0 else None

    def next(self, what: str) -> None:
        if self._said is not None:
            self._said(self._done, self.total, what)
        self._done += 1

    def each(self, rounds: list[list[Edge]], what: str) -> Iterator[list[Edge]]:
        for one in rounds:
            self.next(what)
            yield one
