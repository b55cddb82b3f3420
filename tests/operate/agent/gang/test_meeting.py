"""What the coordinator's shim makes of the shims of other nodes at its door: those that never come, and those that say nonsense."""

import contextlib
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from phalanx.core.gang_wire import Frame, encode, node_hello
from phalanx.core.timeouts import Timeouts
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang import streams
from phalanx.operate.agent.gang.nodes import FarPeer, Nodes
from tests.operate.agent.gang.far_cell import NODE_TOKEN
from tests.ports import free_port

TIMES = Timeouts(meet_ms=1_000)


@dataclass
class Heard:
    """Notes what it is told."""

    unmets: list[str] = field(default_factory=list)
    who_came: list[int] = field(default_factory=list)

    def heard(self, peer: FarPeer, frame: Frame) -> None: ...

    def left(self, peer: FarPeer) -> None: ...

    def died(self, member: int, how: str, replaceable: bool) -> None: ...

    def finished(self, member: int) -> None: ...

    def node_lost(self, node: int, why: str) -> None: ...

    def came(self, node: int) -> None:
        self.who_came.append(node)

    def note(self, line: str) -> None: ...

    def unmet(self, why: str) -> None:
        self.unmets.append(why)


def test_a_node_that_does_not_come_once_all_run_is_missed_once_and_one_that_came_is_not() -> None:
    with selectors.DefaultSelector() as selector:
        heard, port = Heard(), free_port()
        nodes = Nodes(selector, NODE_TOKEN, {1: 1, 2: 2}, TIMES, heard)
        nodes.open("127.0.0.1", port)
        began = boottime.now_ms()
        nodes.turn(began + TIMES.unmet_ms - 1)
        assert not heard.unmets, "it may have an environment to build, or an image to fetch"
        with socket.create_connection(("127.0.0.1", port)) as shim:
            shim.sendall(encode(node_hello(NODE_TOKEN, 2, 0)))
            serve(selector, nodes, until=lambda: bool(heard.who_came))
            assert (heard.who_came, nodes.awaited()) == ([2], [1])
            nodes.all_started(began)
            nodes.all_started(began + 800)  # it is said again and again
            nodes.turn(began + 900)
            assert not heard.unmets
            for _ in range(2):
                nodes.turn(began + 1_200)
        nodes.close()
    (why,) = heard.unmets
    assert why.startswith(f"node 1 never reached the gang's first node at 127.0.0.1:{port} in 1 s; open TCP port {port}")


def test_where_nobody_says_that_all_run_a_node_is_missed_all_the_same_though_much_later() -> None:
    """The control plane may be away, or be of a version that cannot say it; devices are held meanwhile."""
    with selectors.DefaultSelector() as selector:
        heard, port = Heard(), free_port()
        nodes = Nodes(selector, NODE_TOKEN, {1: 1}, TIMES, heard)
        nodes.open("127.0.0.1", port)
        opened = boottime.now_ms()
        due = nodes.next_moment()
        assert due is not None
        assert due <= opened + TIMES.unmet_ms
        for _ in range(2):
            nodes.turn(opened + TIMES.unmet_ms)
        nodes.close()
    (why,) = heard.unmets
    assert why.startswith(f"node 1 never reached the gang's first node at 127.0.0.1:{port} in 1800 s")


@pytest.mark.parametrize("do", ["said", "left"])
@pytest.mark.parametrize("peer", [[1], {}, None, "1"])
def test_a_number_that_is_none_hangs_up_that_connection_and_harms_nobody_else(do: str, peer: object) -> None:
    with selectors.DefaultSelector() as selector:
        port = free_port()
        nodes = Nodes(selector, NODE_TOKEN, {1: 1}, TIMES, Heard())
        nodes.open("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)) as shim:
            nonsense = Frame({"n": 1, "ack": 0, "say": {"do": do, "peer": peer, "head": {}}})
            shim.sendall(encode(node_hello(NODE_TOKEN, 1, 0)) + encode(nonsense))
            serve(selector, nodes, until=lambda: is_hung_up(shim))
        nodes.close()


def test_all_that_waited_for_a_node_is_said_again_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "UNSENT_BYTES_MAX", 1024 * 1024)  # of other connections
    with selectors.DefaultSelector() as selector:
        port = free_port()
        nodes = Nodes(selector, NODE_TOKEN, {1: 1}, TIMES, Heard())
        nodes.open("127.0.0.1", port)
        for _ in range(200):
            nodes.kill(1, "x" * 60_000)
        with socket.create_connection(("127.0.0.1", port)) as shim:
            shim.sendall(encode(node_hello(NODE_TOKEN, 1, 0)))
            shim.setblocking(False)
            got = bytearray()
            serve(selector, nodes, until=lambda: took(shim, got) > 200 * 60_000)
        nodes.close()


def took(opened: socket.socket, got: bytearray) -> int:
    with contextlib.suppress(BlockingIOError):
        while more := opened.recv(1024 * 1024):
            got += more
    return len(got)


def serve(selector: selectors.BaseSelector, nodes: Nodes, until: Callable[[], bool]) -> None:
    for _ in range(200):
        for key, _ in selector.select(0.02):
            key.data()
        nodes.turn(boottime.now_ms())
        if until():
            return
    pytest.fail("it did not come to that")


def is_hung_up(opened: socket.socket) -> bool:
    opened.setblocking(False)
    try:
        return not opened.recv(65_536)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
