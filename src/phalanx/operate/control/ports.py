"""What the controller needs from outside to run: a clock, links to nodes, a decider."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from phalanx.core.ids import NodeId
from phalanx.core.messages import Command
from phalanx.decide.scheduler.plan import Plan
from phalanx.decide.scheduler.snapshot import Snapshot


class Clock(Protocol):
    """Time, as an argument: the real one, a test's, or the simulator's."""

    def now_ms(self) -> int:
        """Unix milliseconds; may jump. For what people read."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some start; never goes back. For leases and deadlines."""


class NodeLink(Protocol):
    """One node's agent, as the control plane sees it: a real WebSocket, or the simulator's.

    Commands are idempotent by (attempt, epoch), so they may be sent again after any crash. Only a broken link raises.
    """

    @property
    def node(self) -> NodeId:
        """The node at the other end."""

    def send(self, commands: Sequence[Command]) -> None:
        """Hands the commands over in this order, without waiting for them to be carried out. Raises LinkDown."""


Links = Mapping[NodeId, NodeLink]
"""The open connections; owned and changed by whoever accepts them."""

Decide = Callable[[Snapshot], Plan]
"""The scheduler, in this process or another. May raise WorldError; then this tick starts nothing."""
