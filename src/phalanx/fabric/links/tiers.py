"""Which ranks share which links: the groups of each tier, from the nearest to the widest."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

LABELS: Final = ("domain", "rack", "block")
"""Of nodes, by which tiers are told apart: as in a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank and where it lies. node: number of its node in the gang; name: of the node. domain, rack, block: labels, '' where
    there are none: then a node is an NVLink domain of its own, a block is one rack, and all nodes are one block."""

    rank: int
    node: int
    local_rank: int
    name: str = ""
    domain: str = ""
    rack: str = ""
    block: str = ""

    @property
    def near(self) -> Hashable:
        """What NVLink joins: a domain of several nodes, or a node."""
        return self.domain or self.node

    @property
    def leaf(self) -> tuple[str, str, int]:
        """The switch that its adapter is plugged into: a rack has one for each rail."""
        return self.block, self.rack, self.local_rank


@dataclass(frozen=True, slots=True)
class Tier:
    """Groups of ranks, each of two or more, that are measured at the same time."""

    name: str
    groups: tuple[tuple[int, ...], ...]

    @property
    def num_ranks(self) -> int:
        """Of the largest group."""
        return max(len(group) for group in self.groups)


def tiers(members: Sequence[Member]) -> tuple[Tier, ...]:
    """`node`: all ranks of a node. `domain`: all of an NVLink domain of several nodes. `rail`: one rank of each node of a rack,
    those of equal number, which lie on one leaf switch. `rack`: one rank of each rack of a block, those of equal number and place;
    between them is the block's spine. `block`: one rank of each block, those of equal number and place. `all`: the gang.

    A tier whose groups are those of a nearer one is left out. Groups of a tier have disjoint ranks.
    """
    in_rack = _positions(members, lambda one: (one.block, one.rack))
    in_block = _positions(members, lambda one: one.block)
    kinds: list[tuple[str, Callable[[Member], Hashable]]] = [
        ("node", lambda one: one.node),
        ("domain", lambda one: one.near),
        ("rail", lambda one: one.leaf),
        ("rack", lambda one: (one.block, in_rack[one.node], one.local_rank)),
        ("block", lambda one: (in_block[one.node], one.local_rank)),
        ("all", lambda one: 0),
    ]
    found: list[Tier] = []
    for name, key in kinds:
        groups = dict[Hashable, list[int]]()
        for one in members:
            groups.setdefault(key(one), []).append(one.rank)
        tier = Tier(name, tuple(tuple(sorted(group)) for group in groups.values() if len(group) > 1))
        if tier.groups and all(set(tier.groups) != set(nearer.groups) for nearer in found):
            found.append(tier)
    return tuple(found)


def _positions(members: Sequence[Member], of: Callable[[Member], Hashable]) -> dict[int, int]:
    """Of each node its place in what it lies in."""
    places = dict[Hashable, dict[int, int]]()
    for one in sorted(members, key=lambda one: one.node):
        nodes = places.setdefault(of(one), {})
        nodes.setdefault(one.node, len(nodes))
    return {node: place for nodes in places.values() for node, place in nodes.items()}


def class_of(a: Member, b: Member) -> str:
    """The links between two ranks: pairs are compared with others of their class."""
    if a.node == b.node:
        return "node"
    if a.domain and a.domain == b.domain:
        return "domain"
    if a.block != b.block:
        return "block"
    return "rail" if a.rack == b.rack else "rack"
