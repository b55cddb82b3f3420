"""How far the ranks of an axis lie from each other: what its collectives run over."""

from typing import Literal

from phalanx.fabric.layouts.layout import Axis, Layout

Reach = Literal["none", "domain", "rail", "across"]
"""none: nobody to talk to. domain: every group lies in one NVLink domain. rail: where a group leaves it, it has on every node the
same GPUs, by their number there, so that all that leaves a node goes along rails. across: some of it changes rails."""


def reach(layout: Layout, axis: Axis, gpus_per_node: int, nodes_per_domain: int = 1) -> Reach:
    """Of the groups of `axis`, over ranks that lie node after node."""
    if layout.sizes[axis] == 1:
        return "none"
    groups = layout.groups(axis)
    if all(len({rank // (gpus_per_node * nodes_per_domain) for rank in group}) == 1 for group in groups):
        return "domain"
    return "rail" if all(_is_along_rails(group, gpus_per_node) for group in groups) else "across"


def _is_along_rails(group: tuple[int, ...], gpus_per_node: int) -> bool:
    there: dict[int, set[int]] = {}
    for rank in group:
        there.setdefault(rank // gpus_per_node, set()).add(rank % gpus_per_node)
    first, *others = there.values()
    return all(one == first for one in others)
