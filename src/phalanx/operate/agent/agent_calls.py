"""The agents that speak to a shim: the socket it listens at, lines that come, and word to all of them. Standard library only."""

import functools
import json
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

LINE_BYTES_MAX: Final = 4096


class AgentCalls:
    """Agents come and go; each line of any of them is given to `obey`. All is called by the selector's one thread."""

    def __init__(self, selector: selectors.BaseSelector, obey: Callable[[bytes], None]) -> None:
        self._selector, self._obey = selector, obey
        self._agents: dict[socket.socket, bytes] = {}
        self._hung_up: list[socket.socket] = []

    def listen(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(path))
        server.listen(8)
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, functools.partial(self._accept, server))

    def announce(self, what: str) -> None:
        """Says that files have changed, to whoever listens."""
        for agent in list(self._agents):
            try:
                agent.send(json.dumps({"changed": what}).encode() + b"\n")
            except OSError:
                self._hang_up(agent)  # it reads the files when it comes again

    def serve(self, patience_s: float | None) -> None:
        """Waits for events of the selector, and handles those of agents that are still there."""
        for key, _ in self._selector.select(patience_s):
            if key.fileobj not in self._hung_up:
                key.data()
        self._hung_up.clear()

    def _accept(self, server: socket.socket) -> None:
        try:
            agent = server.accept()[0]
        except OSError:
            return
        agent.setblocking(False)
        self._agents[agent] = b""
        self._selector.register(agent, selectors.EVENT_READ, functools.partial(self._hear, agent))
        self.announce("agents")  # it may have connected, and read the files, long before we came to accept it

    def _hear(self, agent: socket.socket) -> None:
        try:
            got = agent.recv(LINE_BYTES_MAX)
        except OSError:
            got = b""
        *lines, rest = (self._agents[agent] + got).split(b"\n")
        if not got or len(rest) > LINE_BYTES_MAX:
            self._hang_up(agent)
            return
        self._agents[agent] = rest
        for line in lines:
            self._obey(line)

    def _hang_up(self, agent: socket.socket) -> None:
        """An event of it may wait in this very turn."""
        self._selector.unregister(agent)
        del self._agents[agent]
        self._hung_up.append(agent)
        agent.close()
