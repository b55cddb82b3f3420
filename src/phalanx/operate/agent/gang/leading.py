"""The gang's coordinator in the shim of node 0, joined to the processes of this node and of all others.

What the coordinator wants done it wants of the node whose process it is; what is heard of any process it hears alike.
"""

import selectors
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from phalanx.core.gang_wire import Frame
from phalanx.core.timeouts import Timeouts
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang.coordinator import Coordinator
from phalanx.operate.agent.gang.doorway import Doorway, Peer
from phalanx.operate.agent.gang.lead import Hands
from phalanx.operate.agent.gang.nodes import FarPeer, Nodes

HERE: Final = 0
"""The node of the coordinator."""


class Leading:
    """Leads the whole gang. Belongs to the shim's thread. Once this node's ranks are being ended no generation follows."""

    def __init__(self, selector: selectors.BaseSelector, order: Mapping[str, Any], timeouts: Timeouts, hands: Hands) -> None:
        self._order = order
        self._own = hands
        self._told = False
        nodes: Sequence[int] = order["nodes"]
        far = {rank: node for rank, node in enumerate(nodes) if node != HERE}
        self._doorway = Doorway(selector, order["token"], self.heard, self.left, order.get("uid"))
        self._nodes = Nodes(selector, order.get("node_token", ""), far, timeouts, self)
        self._is_alone = not far
        self._coordinator = Coordinator(order, len(nodes), self, self, boottime.now_ms())

    # As whoever leads

    def start(self) -> None:
        """Raises OSError."""
        self._coordinator.open()

    def stop(self) -> None:
        self._coordinator.close()

    def hold(self, member: int) -> None:
        self._doorway.hold(member)

    def release(self, member: int) -> None:
        self._doorway.release(member)

    def told(self, grace_ms: int) -> None:
        if not self._told:
            self._told = True
            self._nodes.end("its first node's ranks were told to end", False, grace_ms)

    def lose(self, node: int) -> None:
        self._nodes.lose(node, "was given up by the control plane")

    def all_started(self) -> None:
        if not self._told:
            self._nodes.all_started(boottime.now_ms())

    def alone(self) -> None:
        """No process of this node is left."""

    def busy(self) -> bool:
        return self._nodes.busy()

    def turn(self, now_ms: int) -> None:
        self._nodes.turn(now_ms)
        if not self._told:
            self._coordinator.turn(now_ms)

    def next_moment(self) -> int | None:
        moments = [self._nodes.next_moment(), None if self._told else self._coordinator.next_moment()]
        return min((moment for moment in moments if moment is not None), default=None)

    # As who is told of processes, of this node by its shim and of others by theirs

    def heard(self, peer: Peer | FarPeer, frame: Frame) -> None:
        if not self._told or peer.channel == "store":
            self._coordinator.heard(peer, frame)

    def left(self, peer: Peer | FarPeer) -> None:
        self._coordinator.left(peer)

    def died(self, member: int, how: str, replaceable: bool) -> None:
        if not self._told:
            self._coordinator.died(member, how, replaceable, boottime.now_ms())

    def finished(self, member: int) -> None:
        if not self._told:
            self._coordinator.finished(member)

    def node_lost(self, node: int, why: str) -> None:
        self.note(f"node {node} {why}")
        if not self._told:
            self._coordinator.node_lost(node, why, boottime.now_ms())
            self._tell()

    def came(self, node: int) -> None:
        self._tell()

    def unmet(self, why: str) -> None:
        if not self._told:
            self.note(why)
            self.end_gang(why, True, self._order["grace_ms"])

    def _tell(self) -> None:
        if (without := self._coordinator.without()) is not None:
            self._own.gang_stands(without, self._nodes.awaited())

    # As `Peers`

    def open(self, path: Path) -> None:
        self._doorway.open(path)
        if not self._is_alone:
            self._nodes.open(self._order["host"], self._order["port"])
            self._tell()

    def close(self) -> None:
        self._doorway.close()
        self._nodes.close()

    def members(self) -> list[Peer | FarPeer]:
        return [*self._doorway.members(), *self._nodes.members()]

    def say(self, peer: Peer | FarPeer, frame: Frame) -> None:
        if isinstance(peer, FarPeer):
            self._nodes.say(peer, frame)
        else:
            self._doorway.say(peer, frame)

    # As `Hands`

    def start_spare(self, member: int, node: int) -> bool:
        if node == HERE:
            return self._own.start_spare(member, node)
        self._nodes.start(node, member)
        return True

    def kill(self, member: int, why: str) -> None:
        if self._nodes.has(member):
            self._nodes.kill(member, why)
        else:
            self._own.kill(member, why)

    def place(self, member: int, slot: int) -> Mapping[str, Any]:
        if not self._nodes.has(member):
            return self._own.place(member, slot)
        self._nodes.place(member, slot)
        return {}

    def dismiss(self, members: Sequence[int]) -> None:
        self._nodes.dismiss(members)
        self._own.dismiss(members)

    def end_gang(self, why: str, interrupted: bool, grace_ms: int) -> None:
        self._told = True
        self._nodes.end(why, interrupted, grace_ms)
        self._own.end_gang(why, interrupted, grace_ms)

    def gang_stands(self, without: Sequence[int], awaits: Sequence[int]) -> None:
        self._own.gang_stands(without, awaits)

    def note(self, line: str) -> None:
        self._own.note(line)
