"""The network between one node and the control plane: directions that fail, and connections over them."""

from collections.abc import Callable
from random import Random
from typing import Final, Literal

from phalanx.core import wire
from phalanx.core.messages import FromAgent, Hello, Report, ToAgent
from phalanx.operate.sim.faults import Faults
from phalanx.operate.sim.timeline import Timeline

KEEPALIVE_MS: Final = (20_000, 40_000)
"""A connection over which nothing comes for so long is closed by whoever waits: a ping every 20 s is waited for as long."""

LOST_BREAKS_MS: Final = 40_000
"""What is lost breaks its connection within this time: nothing is ever missing from a connection that goes on for ever."""

DELAY_MS_MAX: Final = 20_000
Direction = Literal["up", "down"]
"""up: from the agent to the control plane."""


class Network:
    """One node's."""

    def __init__(self, timeline: Timeline, faults: Faults, slow_ms: int) -> None:
        self.timeline = timeline
        self.faults = faults
        self.slow_ms = slow_ms
        self.cut: set[Direction] = set()
        self.cuts = 0
        self.opened = 0
        self.lines: list[Line] = []

    @property
    def random(self) -> Random:
        return self.faults.random

    @property
    def whole(self) -> bool:
        return not self.cut

    def cut_off(self, directions: set[Direction]) -> None:
        """From now on nothing arrives that goes that way; what is sent waits, as in TCP, as long as the connection stands."""
        self.cut = self.cut | directions
        self.cuts += 1
        cuts = self.cuts
        for line in self.lines:
            self._notice(line, cuts)

    def mend(self) -> None:
        """What waited comes through now."""
        self.cut = set()
        self.cuts += 1
        for line in list(self.lines):
            line.flush()

    def open(self, at_agent: "LineEnd", at_server: "LineEnd") -> "Line":
        self.opened += 1
        line = Line(self.opened, self, at_agent, at_server)
        self.lines = [known for known in self.lines if known.open] + [line]
        return line

    def delay_ms(self) -> int:
        ms = self.random.randint(1, 8)
        if self.slow_ms:
            ms += self.random.randint(self.slow_ms // 2, self.slow_ms)
        if self.faults.happens("delayed"):
            ms += self.random.randint(200, DELAY_MS_MAX)
        return ms

    def _notice(self, line: "Line", cuts: int) -> None:
        """Each end notices by itself, at its own time."""

        def at_agent() -> None:
            if self.cuts == cuts:
                line.close_at_agent("no ping was answered")

        def at_server() -> None:
            if self.cuts == cuts:
                line.close_at_server("no ping was answered")

        self.timeline.after(self.random.randint(*KEEPALIVE_MS), at_agent)
        self.timeline.after(self.random.randint(*KEEPALIVE_MS), at_server)


class LineEnd:
    """Who is at one end of a connection."""

    def __init__(self, hear: Callable[["Line", object], None], closed: Callable[["Line", str], None]) -> None:
        self.hear = hear
        self.closed = closed


class Line:
    """One connection. In each direction messages come in the order in which they were sent, but for reports: those are levels,
    and what a level must bear is tried. Each end closes by itself, and the other learns of it later. `number`: in the order in
    which its network's were accepted."""

    def __init__(self, number: int, network: Network, at_agent: LineEnd, at_server: LineEnd) -> None:
        self.number = number
        self.open_at_agent = True
        self.open_at_server = True
        self._network = network
        self._agent, self._server = at_agent, at_server
        self._last_ms: dict[Direction, int] = {"up": 0, "down": 0}
        self._held: list[tuple[Direction, str]] = []

    @property
    def open(self) -> bool:
        return self.open_at_agent or self.open_at_server

    def up(self, message: object) -> None:
        """The agent sends."""
        if self.open_at_agent:
            self._send("up", wire.dumps(FromAgent, message), isinstance(message, Report), isinstance(message, Hello))

    def down(self, message: object) -> None:
        """The control plane sends."""
        if self.open_at_server:
            self._send("down", wire.dumps(ToAgent, message), levels=False)

    def close_at_agent(self, why: str) -> None:
        if self.open_at_agent:
            self.open_at_agent = False
            self._agent.closed(self, why)
            self._tell("up", self._close_server_too)

    def close_at_server(self, why: str) -> None:
        if self.open_at_server:
            self.open_at_server = False
            self._server.closed(self, why)
            self._tell("down", self._close_agent_too)

    def breaks(self) -> None:
        """Both ends notice at once that it is over, as by a reset."""
        self.close_at_agent("the connection broke")
        self.close_at_server("the connection broke")

    def flush(self) -> None:
        """What was held back by a cut arrives now, before all that is still on its way."""
        held, self._held = self._held, []
        for direction, text in held:
            self._arrive(direction, text)

    def _tell(self, direction: Direction, close: Callable[[], None]) -> None:
        """The goodbye comes behind all that was sent before it, however long that takes. Where the network is cut the other end
        hears nothing, and notices by its own patience."""
        if self._network.whole:
            now_ms = self._network.timeline.now_ms
            self._network.timeline.after(max(self._network.delay_ms(), self._last_ms[direction] - now_ms), close)
        else:
            self._network.timeline.after(self._network.random.randint(*KEEPALIVE_MS), close)

    def _close_server_too(self) -> None:
        self.close_at_server("the other end hung up")

    def _close_agent_too(self) -> None:
        self.close_at_agent("the other end hung up")

    def _send(self, direction: Direction, text: str, levels: bool, first: bool = False) -> None:
        faults = self._network.faults
        if not first and faults.happens("lost"):
            self._network.timeline.after(self._network.random.randint(100, LOST_BREAKS_MS), self.breaks)
            return
        if not first and faults.happens("doubled"):
            self._deliver_later(direction, text, in_order=not levels)
        self._deliver_later(direction, text, in_order=not (levels and faults.happens("reordered")))

    def _deliver_later(self, direction: Direction, text: str, in_order: bool) -> None:
        now_ms = self._network.timeline.now_ms
        due_ms = now_ms + self._network.delay_ms()
        if in_order:
            due_ms = self._last_ms[direction] = max(due_ms, self._last_ms[direction])
        else:
            due_ms += self._network.random.randint(0, 2_000)
        self._network.timeline.after(due_ms - now_ms, lambda: self._arrive(direction, text))

    def _arrive(self, direction: Direction, text: str) -> None:
        if direction in self._network.cut or any(held == direction for held, _ in self._held):
            self._held.append((direction, text))
        elif direction == "up" and self.open_at_server:
            self._server.hear(self, wire.loads(FromAgent, text))
        elif direction == "down" and self.open_at_agent:
            self._agent.hear(self, wire.loads(ToAgent, text))
