"""The other nodes of a gang, as the coordinator's shim knows them: their shims dial in over TCP, report their processes and obey.

A node may be cut off for a moment: its shim dials again and both go on where they were. One that is not heard of for `node_ms`
is lost for good: it is refused from then on, and ends its ranks.
"""

import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from phalanx.core.gang_wire import Frame
from phalanx.core.timeouts import Timeouts
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang.node_door import NodeDoor, NodeStream
from phalanx.operate.agent.gang.session import Session

PEERS_MAX: Final = 4096
"""Connections of one node's processes."""


NAMED_MAX: Final = 8
"""Nodes in a sentence."""


@dataclass(slots=True, eq=False)
class FarPeer:
    """A connection of a process to its own node's shim, which passes it on under that number."""

    node: int
    number: int
    member: int
    channel: str


class Heeds(Protocol):
    """Who hears what other nodes say. Their own numbers of processes are checked before."""

    def heard(self, peer: FarPeer, frame: Frame) -> None:
        """Raises ValueError for nonsense."""

    def left(self, peer: FarPeer) -> None: ...

    def died(self, member: int, how: str, replaceable: bool) -> None: ...

    def finished(self, member: int) -> None: ...

    def node_lost(self, node: int, why: str) -> None: ...

    def came(self, node: int) -> None:
        """For the first time."""

    def unmet(self, why: str) -> None:
        """A node never came: the gang cannot begin."""

    def note(self, line: str) -> None: ...


@dataclass(slots=True)
class _Node:
    """heard_ms: None until it first dialled in. done: it has said that its last process has ended."""

    session: Session = field(default_factory=Session)
    stream: NodeStream | None = None
    heard_ms: int | None = None
    beat_ms: int = 0
    peers: dict[int, FarPeer] = field(default_factory=dict)
    done: bool = False
    lost: bool = False


class Nodes:
    """Belongs to the shim's thread: `turn` after every wait, `next_moment` before one. Times are on CLOCK_BOOTTIME."""

    def __init__(
        self, selector: selectors.BaseSelector, token: str, members: Mapping[int, int], timeouts: Timeouts, heeds: Heeds
    ) -> None:
        """members: processes that other nodes start with -> node."""
        self._timeouts = timeouts
        self._heeds = heeds
        self._where = dict(members)
        self._nodes = {node: _Node() for node in set(members.values())}
        self._door = NodeDoor(selector, token, self._hello, self._take, self._cut)
        self._address = ("", 0)
        self._meet_ms = timeouts.unmet_ms  # until then, as long as nobody says that all run
        self._meet_until_ms: int | None = None  # None before `open`, and once one was missed
        self._all_run = False

    def open(self, host: str, port: int) -> None:
        """Raises OSError."""
        self._door.open(host, port)
        self._address = (host, port)
        self._meet_until_ms = boottime.now_ms() + self._meet_ms

    def all_started(self, now_ms: int) -> None:
        """The shims of all nodes run: those that have not come yet have `meet_ms` from the first time that this is heard."""
        if not self._all_run and (awaited := self.awaited()):
            self._all_run, self._meet_ms = True, self._timeouts.meet_ms
            self._meet_until_ms = now_ms + self._meet_ms
            self._heeds.note(f"every node runs now: {_named(awaited)} may take {self._timeouts.meet_ms / 1000:g} s to come here")

    def close(self) -> None:
        self._door.close()

    def members(self) -> list[FarPeer]:
        return [peer for node in self._nodes.values() for peer in node.peers.values() if peer.channel == "member"]

    def say(self, peer: FarPeer, frame: Frame) -> None:
        """To a process there."""
        if self._nodes[peer.node].peers.get(peer.number) is peer:
            self._send(peer.node, Frame({"do": "tell", "peer": peer.number, "head": dict(frame.head)}, frame.parts))

    def start(self, node: int, member: int) -> None:
        self._where[member] = node
        self._send(node, Frame({"do": "start", "member": member}))

    def kill(self, member: int, why: str) -> None:
        self._send(self._where[member], Frame({"do": "kill", "member": member, "why": why}))

    def place(self, member: int, slot: int) -> None:
        """Its own shim adds what it must know to the next word it hears."""
        self._send(self._where[member], Frame({"do": "place", "member": member, "slot": slot}))

    def dismiss(self, members: Sequence[int]) -> None:
        self._send_all(Frame({"do": "dismiss", "members": list(members)}))

    def has(self, member: int) -> bool:
        return member in self._where

    def end(self, why: str, interrupted: bool, grace_ms: int) -> None:
        """Asks all of them to end their ranks."""
        self._send_all(Frame({"do": "end", "why": why, "interrupted": interrupted, "grace_ms": grace_ms}))

    def lose(self, node: int, why: str) -> None:
        """It is out of the gang from now on. Twice is once."""
        if node not in self._nodes or (found := self._nodes[node]).lost or found.done:
            return
        found.lost = True
        self._send(node, Frame({"do": "out", "why": f"this node is out of its gang: it {why}"}))
        self._heeds.node_lost(node, why)
        for peer in list(found.peers.values()):
            self._heeds.left(peer)
        found.peers.clear()

    def busy(self) -> bool:
        """Whether one that takes part has not come to its end."""
        return any(node.heard_ms is not None and not node.done and not node.lost for node in self._nodes.values())

    def turn(self, now_ms: int) -> None:
        self._door.turn(now_ms)
        self._miss(now_ms)
        for number, node in self._nodes.items():
            if node.lost or node.done or node.heard_ms is None:
                continue
            if now_ms >= node.heard_ms + self._timeouts.node_ms:
                self.lose(number, f"was not heard of for {(now_ms - node.heard_ms) / 1000:.1f} s")
            elif node.stream is not None and now_ms >= node.heard_ms + self._timeouts.silent_ms:
                self._door.hang_up(node.stream)
            elif node.stream is not None and now_ms >= node.beat_ms + self._timeouts.beat_ms:
                node.beat_ms = now_ms
                self._door.say(node.stream, node.session.beat())

    def next_moment(self) -> int | None:
        moments = [self._door.next_moment(), self._meet_until_ms if self.awaited() else None]
        for node in self._nodes.values():
            if node.lost or node.done or node.heard_ms is None:
                continue
            moments.append(node.heard_ms + self._timeouts.node_ms)
            if node.stream is not None:
                moments += [node.heard_ms + self._timeouts.silent_ms, node.beat_ms + self._timeouts.beat_ms]
        return min((moment for moment in moments if moment is not None), default=None)

    def awaited(self) -> list[int]:
        """Nodes that never dialled in."""
        return [number for number, node in self._nodes.items() if node.heard_ms is None and not node.lost]

    def _miss(self, now_ms: int) -> None:
        """Once. Nobody is waited for without end before the gang has begun, as devices are held meanwhile: for `meet_ms` once all
        are known to run, else for `unmet_ms` from this shim's start, in which a node may prepare."""
        if self._meet_until_ms is None or now_ms < self._meet_until_ms or not (awaited := self.awaited()):
            return
        self._meet_until_ms = None
        self._heeds.unmet(f"{_named(awaited)} never reached {unreached(*self._address, self._meet_ms)}")

    def _send_all(self, frame: Frame) -> None:
        for node in self._nodes:
            self._send(node, frame)

    def _send(self, number: int, frame: Frame) -> None:
        node = self._nodes[number]
        try:
            numbered = node.session.number(frame)
        except OverflowError as error:
            self.lose(number, f"took nothing any more: {error}")
            return
        if node.stream is not None:
            self._door.say(node.stream, numbered)

    def _hello(self, stream: NodeStream, number: int, got: int) -> None:
        """Raises ValueError for a node that is none of the gang's. The newest connection of a node is the one that counts."""
        if number not in self._nodes:
            raise ValueError(f"node {number} is none of this gang")
        node = self._nodes[number]
        if node.lost:
            self._door.say(stream, Frame({"refused": "this node is out of its gang: it was not heard of for too long"}))
            return
        missed = node.session.resume(got)
        old, node.stream = node.stream, stream
        if old is not None:
            self._door.hang_up(old)
        is_first, node.heard_ms = node.heard_ms is None, boottime.now_ms()
        self._door.say(stream, Frame({"got": node.session.got}))
        for frame in missed:
            self._door.say(stream, frame)
        if is_first:
            self._heeds.came(number)

    def _cut(self, stream: NodeStream) -> None:
        for node in self._nodes.values():
            if node.stream is stream:
                node.stream = None

    def _take(self, stream: NodeStream, frame: Frame) -> None:
        """Raises ValueError for nonsense."""
        number, node = next(((number, node) for number, node in self._nodes.items() if node.stream is stream), (-1, None))
        if node is None or node.lost:
            return
        node.heard_ms = boottime.now_ms()
        said = node.session.take(frame)
        if said is not None:
            _SAYS.get(str(said.head.get("do")), _unknown)(self, number, node, said)

    def _peer_said(self, number: int, node: _Node, said: Frame) -> None:
        peer, head = node.peers.get(_peer_of(said)), said.head.get("head")
        if peer is None or not isinstance(head, dict):
            return  # it was hung up on meanwhile
        try:
            self._heeds.heard(peer, Frame(head, said.parts))
        except ValueError:
            self._send(number, Frame({"do": "hang_up", "peer": peer.number}))

    def _peer_came(self, number: int, node: _Node, said: Frame) -> None:
        match said.head:
            case {"peer": int(peer), "member": int(member), "channel": "member" | "store" as channel}:
                if peer in node.peers or len(node.peers) >= PEERS_MAX:
                    raise ValueError("a connection that there is already, or one too many")
                self._check(number, member)
                node.peers[peer] = FarPeer(number, peer, member, channel)
            case _:
                raise ValueError("no connection")

    def _peer_left(self, number: int, node: _Node, said: Frame) -> None:
        peer = node.peers.pop(_peer_of(said), None)
        if peer is not None:
            self._heeds.left(peer)

    def _member_died(self, number: int, node: _Node, said: Frame) -> None:
        match said.head:
            case {"member": int(member), "how": str(how), "replaceable": bool(replaceable)}:
                self._check(number, member)
                self._heeds.died(member, how, replaceable)
            case _:
                raise ValueError("no death")

    def _member_finished(self, number: int, node: _Node, said: Frame) -> None:
        member = said.head.get("member")
        if type(member) is not int:
            raise ValueError("no end")
        self._check(number, member)
        self._heeds.finished(member)

    def _node_done(self, number: int, node: _Node, said: Frame) -> None:
        node.done = True
        self._heeds.node_lost(number, "has ended its ranks")  # those that did not say how they ended were told to
        if node.stream is not None:
            self._door.say(node.stream, node.session.beat())  # it waits for this

    def _check(self, number: int, member: int) -> None:
        if self._where.get(member) != number:
            raise ValueError(f"process {member} is none of node {number}")


def _named(nodes: Sequence[int]) -> str:
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(str, nodes[:NAMED_MAX]))}{more}"


def unreached(host: str, port: int, after_ms: int) -> str:
    """Where two shims of a gang should have met, for how long they have tried, and what to do."""
    tried = f"the gang's first node at {host}:{port} in {after_ms / 1000:g} s"
    return f"{tried}; open TCP port {port} of that node to the others, and see that {host} is an address at which they reach it"


def _peer_of(said: Frame) -> int:
    number = said.head.get("peer")
    if type(number) is not int:
        raise ValueError("peer is no whole number")
    return number


def _unknown(nodes: Nodes, number: int, node: _Node, said: Frame) -> None:
    """What a newer shim may say."""


_SAYS: Final[Mapping[str, Callable[[Nodes, int, _Node, Frame], Any]]] = {
    "peer": Nodes._peer_came,
    "said": Nodes._peer_said,
    "left": Nodes._peer_left,
    "died": Nodes._member_died,
    "finished": Nodes._member_finished,
    "done": Nodes._node_done,
}
