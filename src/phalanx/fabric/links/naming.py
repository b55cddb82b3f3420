"""From slow ranks and pairs to what a person can go and look at: a GPU, a node, a rail or a link, each with the numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from phalanx.core.fabric_test import SlowView
from phalanx.fabric.links.faults import Edge, Rates, Slow, comparable, slow, slow_values, whole
from phalanx.fabric.links.rates import GpuLinks
from phalanx.fabric.links.tiers import Member, class_of

_WHERE: Final = {
    "node": "inside its node", "domain": "in its NVLink domain", "rail": "between nodes", "rack": "between racks",
    "block": "between blocks",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What each rank measured alone. flops: of matrix products; memory: bytes a second of a copy; nvlinks: active ones, None where
    no driver counts them."""

    flops: Mapping[int, float] = field(default_factory=dict)
    memory: Mapping[int, float] = field(default_factory=dict)
    nvlinks: Mapping[int, int | None] = field(default_factory=dict)


def by_class(rates: Rates, members: Sequence[Member]) -> dict[str, dict[Edge, float]]:
    """Pairs of unequal kinds of links are not compared."""
    known = {one.rank: one for one in members}
    found = dict[str, dict[Edge, float]]()
    for (a, b), rate in rates.items():
        found.setdefault(class_of(known[a], known[b]), {})[a, b] = rate
    return found


def judged(rates: Rates, members: Sequence[Member]) -> int:
    """Pairs that have others of their kind to be compared with."""
    return sum(len(some) for some in by_class(rates, members).values() if comparable(some))


def named(members: Sequence[Member], rates: Rates, own: Own, links: GpuLinks | None) -> tuple[SlowView, ...]:
    """links: of this type of GPU, as its maker has them."""
    known = {one.rank: one for one in members}
    found: list[SlowView] = []
    for kind, some in by_class(rates, members).items():
        found += _of_pairs(kind, slow(some), known, some)
    for what, values, unit, scale in (("matrix products", own.flops, "TFLOP/s", 1e12), ("memory copies", own.memory, "GB/s", 1e9)):
        for one in slow_values(values):
            numbers = f"{one.rate / scale:.3g} {unit}, the median of all is {one.usual / scale:.3g}"
            found.append(SlowView(kind="gpu", name=_gpu(known[one.ranks[0]]), part=one.part, evidence=f"its {what}: {numbers}"))
    if links is not None and links.nvlinks:
        found += _with_fewer_links(known, own.nvlinks, links)
    return tuple(found)


def _of_pairs(kind: str, slows: Iterable[Slow], known: Mapping[int, Member], rates: Rates) -> list[SlowView]:
    """Where all ranks of a node, or between nodes all of a rail in all racks or in one, are slow, that is what is named."""
    seen = {rank for pair in rates for rank in pair}
    alone = {one.ranks[0]: one for one in slows if len(one.ranks) == 1}
    found, told = list[SlowView](), set[int]()
    by_node = whole(alone, {rank: known[rank].node for rank in seen})
    by_adapters = kind not in ("node", "domain")
    by_rail = whole(alone, {rank: known[rank].local_rank for rank in seen}) if by_adapters else {}
    by_leaf = whole(alone, {rank: known[rank].leaf for rank in seen}) if by_adapters else {}
    for groups, name, say in ((by_node, "node", _node), (by_rail, "rail", _rail), (by_leaf, "rail", _leaf)):
        for ranks in groups.values():
            if not told.issuperset(ranks):
                told |= set(ranks)
                worst = min((alone[rank] for rank in ranks), key=lambda one: one.part)
                every = f"all its {len(ranks)} GPUs: {_against(kind, worst)}"
                found.append(SlowView(kind=name, name=say(known[ranks[0]]), part=worst.part, evidence=every))
    for rank, one in alone.items():
        if rank not in told:
            evidence = f"its {one.pairs} pairs: {_against(kind, one)}"
            found.append(SlowView(kind="gpu", name=_gpu(known[rank]), part=one.part, evidence=evidence))
    for one in slows:
        if len(one.ranks) == 2:
            ends = " - ".join(_gpu(known[rank]) for rank in one.ranks)
            numbers = f"{_gb(one.rate)} GB/s {_where(kind)}, its ends reach {_gb(one.usual)} with others"
            found.append(SlowView(kind="link", name=ends, part=one.part, evidence=numbers))
    return found


def _with_fewer_links(known: Mapping[int, Member], counted: Mapping[int, int | None], links: GpuLinks) -> list[SlowView]:
    """Where no GPU has all, they are of another form, and none is at fault for it."""
    most = max((count for count in counted.values() if count is not None), default=0)
    return [
        SlowView(kind="gpu", name=_gpu(known[rank]), part=count / most, evidence=f"{count} of {most} NVLinks are active")
        for rank, count in sorted(counted.items())
        if count is not None and count < most <= links.nvlinks
    ]


def _against(kind: str, one: Slow) -> str:
    return f"at most {_gb(one.rate)} GB/s {_where(kind)}, the median of all is {_gb(one.usual)}"


def _where(kind: str) -> str:
    return _WHERE[kind]


def _gb(rate: float) -> str:
    return f"{rate / 1e9:.3g}"


def _gpu(one: Member) -> str:
    return f"{one.name or one.node}:{one.local_rank}"


def _node(one: Member) -> str:
    return one.name or str(one.node)


def _rail(one: Member) -> str:
    return str(one.local_rank)


def _leaf(one: Member) -> str:
    block, rack, number = one.leaf
    place = "/".join(filter(None, (block, rack)))
    return f"{place}:{number}" if place else str(number)
