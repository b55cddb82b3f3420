"""What a gang has in memory, wherever: each place's own snapshots and the replicas that other places' keepers hold of them.

Whoever needs a state asks for it in this order: its own memory, a replica, and only then a checkpoint. No torch.
"""

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from phalanx.core.errors import NotFound, PhalanxError
from phalanx.job.checkpoint.keeper.link import look
from phalanx.job.checkpoint.keeper.messages import Item, Peer
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.keeper.replicas import fetch
from phalanx.job.checkpoint.sealed import Sealed
from phalanx.job.checkpoint.segment import Layout, Segment

RANK: Final = "rank"
WORLD_SIZE: Final = "world_size"
"""Both are in a snapshot's note: whose state it is, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One whole snapshot, and the keeper that has it.

    rank, world_size: of the gang that made it. owner: Place.key of the place whose it is. holder: of the keeper that has it, which
    is another's where this is a replica. node, folder, slot: the holder's. host, port: where others reach it; port 0 where they do
    not.
    """

    rank: int
    world_size: int
    step: int
    generation: int
    owner: str
    holder: str
    node: str
    folder: str
    slot: int
    host: str = ""
    port: int = 0

    @property
    def is_replica(self) -> bool:
        return self.owner != self.holder


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A state of a gang: after `step`, made in `generation` by a gang of `world_size`. Ordered by which is newer."""

    generation: int
    step: int
    world_size: int


def moment_of(one: Kept) -> Moment:
    return Moment(one.generation, one.step, one.world_size)


def of_node(place: Place, host: str = "") -> list[Kept]:
    """All that keepers of this place's node hold, those of slots without a process too. host: where other nodes reach this one."""
    found: list[Kept] = []
    for slot in slots_of(place):
        found += of_place(replace(place, slot=slot), host)
    return found


def of_place(place: Place, host: str = "") -> list[Kept]:
    """All that one keeper holds; nothing where there is none, or one of another attempt. host: where it is reached, if it does not
    say so itself."""
    try:
        link, _, descriptors = look(place)
    except PhalanxError:
        return []
    try:
        stock = link.stock()
    except PhalanxError:
        return []
    finally:
        link.close()
        for one in descriptors:
            os.close(one)
    kept = [_kept(item, place, stock.host or host, stock.port) for item in (*stock.own, *stock.held)]
    return [one for one in kept if one is not None]


def newest(kept: Iterable[Kept], world_size: int | None = None) -> Moment | None:
    """The newest state of which every rank's snapshot is there, of a gang of `world_size` where that is given."""
    ranks: dict[Moment, set[int]] = {}
    for one in kept:
        ranks.setdefault(moment_of(one), set()).add(one.rank)
    whole = [at for at, those in ranks.items() if those == set(range(at.world_size)) and world_size in (None, at.world_size)]
    return max(whole, default=None)


def safest(kept: Sequence[Kept], at: Moment) -> Moment:
    """Of the states up to `at`, of gangs of that size, of which each place has its own part: one that most ranks have a replica of,
    of those the newest. What a gang that goes on from `at` would go back to if a place were lost before it has newer replicas."""
    own: dict[Moment, set[int]] = {at: set(range(at.world_size))}
    held: dict[Moment, set[int]] = {}
    for one in kept:
        (held if one.is_replica else own).setdefault(moment_of(one), set()).add(one.rank)
    past = [when for when in own if when <= at and when.step <= at.step and when.world_size == at.world_size]
    whole = [when for when in past if len(own[when]) == at.world_size]
    return max(whole, key=lambda when: (len(held.get(when, ())), when))


def lacking(kept: Sequence[Kept]) -> str:
    """Why no state is whole, in words."""
    newest_made = max(map(moment_of, kept), default=None)
    if newest_made is None:
        return "no keeper holds any"
    generation, size = newest_made.generation, newest_made.world_size
    there = {one.rank for one in kept if (one.generation, one.world_size) == (generation, size)}
    if lost := sorted(set(range(size)) - there):
        return (
            f"nothing of generation {generation} is left of rank {', '.join(map(str, lost))}, neither its own memory nor a replica"
        )
    return f"of no step of generation {generation} all {size} ranks have their part"


def find(kept: Iterable[Kept], at: Moment, rank: int, near: Place | None = None) -> Kept | None:
    """That rank's part of the state: its place's own memory, else a replica; what is on the node of `near` first. None when nobody
    has it."""
    fits = [one for one in kept if moment_of(one) == at and one.rank == rank]

    def far(one: Kept) -> tuple[bool, bool, bool]:
        mine = near is not None and one.holder == near.key
        return not mine, near is None or one.node != node_of(near), one.is_replica

    return min(fits, key=far, default=None)


def peer_of(one: Kept, secret: str) -> Peer:
    """For Memory.fetch."""
    return Peer(host=one.host, port=one.port, secret=secret, owner=one.owner)


def read(one: Kept, secret: str, attempt: str) -> Sealed:
    """Its parts: in place where it is another place's own memory on this node, else fetched into memory of this process's own.

    Raises NotFound when it is not there any more, or its keeper cannot be reached.
    """
    place = Place(folder=Path(one.folder), slot=one.slot, attempt=attempt)
    if not one.is_replica and one.node == node_of(place):
        return Sealed.at(place)
    if not one.port:
        raise NotFound("snapshot", one.step, f"the keeper of slot {one.slot} of {one.node} takes no calls")
    made: list[Segment] = []

    def room(layout: Layout, *_: int) -> Segment:
        descriptor = os.memfd_create("phalanx-fetched", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, layout.size_bytes)
        made.append(Segment(descriptor, layout))
        return made[0]

    try:
        fetch((one.host, one.port), secret, one.owner, one.step, room, one.generation)
    except (OSError, PhalanxError) as error:
        for segment in made:
            os.close(segment.descriptor)
        raise NotFound("snapshot", one.step, f"the keeper at {one.host}:{one.port} does not give it: {error}") from error
    return Sealed(made)


def holder_of(rank: int, nodes: Sequence[str], skip: int = 0) -> int | None:
    """The rank whose keeper holds the replicas of this one: of equal place on the next node, so that they spread evenly; on one
    node the next rank. None when it is alone. nodes: of each rank. skip: how many of those that come into question failed it."""
    if len(nodes) < 2:
        return None
    order = list(dict.fromkeys(nodes))
    if len(order) == 1:
        return (rank + 1 + skip % (len(nodes) - 1)) % len(nodes)
    ranks_of = {node: [at for at, other in enumerate(nodes) if other == node] for node in order}
    mine, at = order.index(nodes[rank]), ranks_of[nodes[rank]].index(rank)
    others = [ranks_of[order[(mine + far) % len(order)]] for far in range(1, len(order))]
    by_place = [there[(at + more) % len(there)] for more in range(len(nodes)) for there in others if more < len(there)]
    return by_place[skip % len(by_place)]


def node_of(place: Place) -> str:
    """The same for all places of a node and attempt. Two attempts' folders on one machine are two nodes."""
    return f"{socket.gethostname()}:{place.folder}"


def address_towards(host: str) -> str:
    """This machine's address as `host` sees it."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostbyname(socket.gethostname())


def _kept(item: Item, place: Place, host: str, port: int) -> Kept | None:
    """None for a snapshot that does not say whose it is."""
    note = _note(item.note)
    rank, world_size = note.get(RANK), note.get(WORLD_SIZE)
    if not isinstance(rank, int) or not isinstance(world_size, int):
        return None
    return Kept(
        rank=rank, world_size=world_size, step=item.step, generation=item.generation, owner=item.owner, holder=place.key,
        node=node_of(place), folder=str(place.folder), slot=place.slot, host=host, port=port,
    )  # fmt: skip


def _note(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def slots_of(place: Place) -> list[int]:
    """Slots of the node that have a keeper."""
    found = [path.stem.removeprefix("keeper-") for path in place.folder.glob("keeper-*.sock")]
    return sorted(int(slot) for slot in found if slot.isdecimal())
