"""Two real shims, one a node: ranks of both are replaced where they fell, a wire that is cut for a moment costs nothing, and a node
that is gone is out of the gang."""

import contextlib
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.gang_wire import Frame, encode, node_hello
from phalanx.operate.agent.ports import cannot_listen
from tests.operate.agent.agent_cell import DEADLINE_S, alive, until
from tests.operate.agent.gang.far_cell import HASTY, NODE_TOKEN, PATIENT, SOON, NodeOrder, Wire, two_nodes
from tests.operate.agent.gang.slow_disk import stalled
from tests.ports import free_port


def in_generation(order: NodeOrder, rank: int, generation: int) -> int | None:
    """The pid that the rank has in it; None before it is in."""
    return dict(order.generations(rank)).get(generation)


@pytest.mark.parametrize("fault", ["sigkill", "sigstop"])
@pytest.mark.parametrize("fell", [0, 1])
def test_a_rank_of_either_node_is_replaced_on_it_and_the_survivor_keeps_its_process(tmp_path: Path, fell: int, fault: str) -> None:
    with two_nodes(tmp_path, SOON if fault == "sigstop" else PATIENT, FAULT=fault, FAULT_RANK=str(fell)) as (first, second, _):
        orders = first, second
        before = [order.pids()[0] for order in orders]
        assert [order.end() for order in orders] == [[0], [0]], first.said() + second.said()
        gone, stays = orders[fell], orders[1 - fell]
        assert [number for number, _ in stays.generations(1 - fell)] == [1, 2]
        assert stays.pids()[0] == before[1 - fell], "the survivor is the same process"
        assert gone.pids()[0] != before[fell]
        assert list(gone.folder.glob("spare-*.log")), "a spare of the same node took the place"
        assert [order.ended["lost"] for order in orders] == ["", ""]
        assert not any(exited["first"] for order in orders for exited in order.exits())


def test_an_exit_code_of_its_own_on_another_node_ends_the_whole_gang(tmp_path: Path) -> None:
    with two_nodes(tmp_path, FAULT="exit", FAULT_RANK="1") as (first, second, _):
        assert second.end() == [3]
        assert first.end() == [-15]
        assert [exited["first"] for order in (first, second) for exited in order.exits()] == [False, True]
        assert (first.ended["interrupted"], second.ended["interrupted"]) == (False, False)


@pytest.mark.parametrize("how", ["cut", "mute"])
def test_a_wire_that_is_cut_for_a_moment_costs_nobody_anything(tmp_path: Path, how: str) -> None:
    with two_nodes(tmp_path) as (first, second, wire):
        before, fell = until(lambda: in_generation(first, 0, 1)), until(lambda: in_generation(second, 1, 1)) and second.pids()[0]
        getattr(wire, how)()
        os.kill(fell, signal.SIGKILL)  # what is said meanwhile is not lost
        until(lambda: not alive(fell))
        wire.heal()
        assert [order.end() for order in (first, second)] == [[0], [0]], first.said() + second.said()
        assert in_generation(first, 0, 2) == before
        assert "rank 1 was killed by SIGKILL" in first.log(0)


def formed(nodes: tuple[NodeOrder, NodeOrder, Wire]) -> tuple[NodeOrder, NodeOrder, Wire]:
    """Once both nodes are in the first generation."""
    first, second, _ = nodes
    until(lambda: in_generation(first, 0, 1) and in_generation(second, 1, 1))
    return nodes


def die(shim: NodeOrder) -> None:
    assert shim.process is not None
    shim.process.kill()
    shim.process.wait()


def test_a_node_that_is_lost_is_out_and_ends_its_ranks_and_the_gang_is_interrupted(tmp_path: Path) -> None:
    """Cut off, by the death of its shim, or by that of the first node's: three gangs at a time, since each waits for `node_ms`."""
    with contextlib.ExitStack() as gangs:
        (first, second, wire), (left, died, _), (head, rest, _) = (
            formed(gangs.enter_context(two_nodes(tmp_path / name, HASTY))) for name in ("cut", "dead", "headless")
        )
        wire.mute()
        die(died)
        die(head)
        assert [order.end() for order in (first, second, left, rest)] == [[-15]] * 4
        assert all(order.ended["interrupted"] is True for order in (first, second, left, rest))
        assert "coordinator was not heard of for" in second.ended["lost"]
        assert "node 1 was not heard of for" in first.ended["lost"]


def test_a_gang_that_may_shrink_goes_on_without_a_lost_node_in_the_same_processes(tmp_path: Path) -> None:
    with contextlib.ExitStack() as gangs:
        for how in ("mute", "shim", "told"):
            times = PATIENT if how == "told" else HASTY
            gangs.enter_context(lost(how, *formed(gangs.enter_context(two_nodes(tmp_path / how, times, sizes=(1, 2))))))


@contextlib.contextmanager
def lost(how: str, first: NodeOrder, second: NodeOrder, wire: Wire) -> Iterator[None]:
    """Loses the second node, and looks at what became of the gang only at the end: others are lost meanwhile."""
    before = first.pids()
    if how == "mute":
        wire.mute()
    elif how == "shim":
        die(second)
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(first.folder / "s"))
        agent.sendall(b'{"lose_node": 1}\n' if how == "told" else b"{}\n")
        yield
        assert first.end() == [0]
    assert [number for number, _ in first.generations(0)] == [1, 2]
    assert first.pids() == before
    assert "generation 2 as rank 0 of 1," in first.log(0)
    assert gang_file(first) == {"without": [1], "awaits": []}
    assert (first.ended["lost"], first.ended["interrupted"]) == ("", False)
    if how != "shim":
        assert second.end() == [-15], "what was cut off ends by itself"
        assert second.ended["interrupted"] is True
        assert not any(exited["first"] for exited in second.exits())


def test_a_word_from_the_control_plane_loses_a_node_at_once_and_it_is_refused_from_then_on(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (first, second, _):
        until(lambda: in_generation(first, 0, 1) and in_generation(second, 1, 1))
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(str(first.folder / "s"))
            agent.sendall(b'{"lose_node": 1}\n')
            assert first.end() == [-15]
        assert "node 1 was given up by the control plane" in first.ended["lost"]
        assert second.end()
        assert "out of its gang" in second.ended["lost"]


def test_a_stop_of_the_first_node_stops_the_others_with_the_same_grace(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (first, second, _):
        until(lambda: in_generation(first, 0, 1) and in_generation(second, 1, 1))
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(str(first.folder / "s"))
            agent.sendall(b'{"stop": 60000}\n')
            assert (first.end(), second.end()) == ([-15], [-15])
        assert not any(exited["first"] for order in (first, second) for exited in order.exits())


def test_a_wrong_token_never_gets_in(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (first, second, _):
        until(lambda: in_generation(first, 0, 1) and in_generation(second, 1, 1))
        port = json.loads((first.folder / "shim.json").read_bytes())["gang"]["port"]
        for hello in (node_hello("x" * 64, 1, 0), node_hello("", 1, 0), node_hello(NODE_TOKEN, 7, 0), node_hello(NODE_TOKEN, 0, 0)):
            assert answered(port, encode(hello) + encode(Frame({"ack": 0, "n": 1, "say": {"do": "died", "member": 0}}))) == b""
        assert answered(port, encode(Frame({"token": "t" * 64, "member": 0, "channel": "member"}))) == b""
        os.kill(first.pids()[0], signal.SIGKILL)  # and the gang is none the worse
        assert [order.end() for order in (first, second)] == [[0], [0]], first.said()


HOSTILE = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\xff" * 65_536,
    struct.pack("!II", 0xFFFFFFFF, 0),
    struct.pack("!II", 2, 64 * 1024 * 1024) + b"{}",
    struct.pack("!II", 2048, 0) + b"[" * 2048,
    struct.pack("!II", 900, 0) + b"[" * 900,
    encode(Frame({"token": 7, "node": 1, "got": 0})),
    encode(Frame({"token": NODE_TOKEN, "node": "1", "got": 0})),
    encode(Frame({"token": NODE_TOKEN, "node": 1, "got": 99})),
    encode(Frame({"token": "\ud800", "node": 1, "got": 0})),
]


@pytest.mark.parametrize("word", HOSTILE)
def test_whoever_says_nonsense_is_hung_up_on_and_the_gang_goes_on(shared: tuple[NodeOrder, NodeOrder, Wire], word: bytes) -> None:
    first, _, _ = shared
    port = json.loads((first.folder / "shim.json").read_bytes())["gang"]["port"]
    assert answered(port, word) == b""
    assert first.process is not None
    assert first.process.poll() is None


def test_who_says_nothing_goes_when_others_come_and_the_real_node_gets_in(shared: tuple[NodeOrder, NodeOrder, Wire]) -> None:
    first, second, wire = shared
    port = json.loads((first.folder / "shim.json").read_bytes())["gang"]["port"]
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    try:
        wire.cut()
        carried = wire.carried
        wire.heal()
        until(lambda: wire.carried > carried + 1_000)
    finally:
        for one in silent:
            one.close()
    assert first.process is not None
    assert first.process.poll() is None
    assert second.process is not None
    assert second.process.poll() is None


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """One gang for all who mean it harm."""
    with two_nodes(tmp_path_factory.mktemp("shared")) as nodes:
        first, second, _ = nodes
        until(lambda: in_generation(first, 0, 1) and in_generation(second, 1, 1))
        yield nodes
        os.kill(first.pids()[0], signal.SIGKILL)
        assert [order.end() for order in (first, second)] == [[0], [0]], first.said()


def answered(port: int, word: bytes) -> bytes:
    """What is said to it before it is hung up on."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as stranger:
        said = b""
        try:
            stranger.sendall(word)
            while got := stranger.recv(4096):
                said += got
        except ConnectionError:
            pass
        return said


def test_an_address_at_which_this_node_cannot_listen_is_found_before_anything_starts() -> None:
    assert cannot_listen("127.0.0.1", free_port()) == ""
    assert "assign" in cannot_listen("192.0.2.1", free_port())  # of RFC 5737, nobody's
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "in use" in cannot_listen("127.0.0.1", taken.getsockname()[1])


def test_a_gang_whose_shims_do_not_meet_though_all_run_is_interrupted_and_says_what_to_open(tmp_path: Path) -> None:
    port = free_port()
    order = NodeOrder(tmp_path / "a", 0, port, replace(PATIENT, meet_ms=500), ())
    with ended(order):
        order.start()
        until(lambda: gang_file(order) == {"without": [], "awaits": [1]})
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(str(order.folder / "s"))
            agent.sendall(b'{"gang_started": true}\n' * 2)
            assert order.end() == [-15]
    assert f"node 1 never reached the gang's first node at 127.0.0.1:{port} in 0.5 s; open TCP port {port}" in order.ended["lost"]
    assert order.ended["interrupted"] is True
    assert "does not recover" in order.log(0)


@pytest.mark.parametrize("node", [0, 1])
def test_a_shim_that_meets_nobody_does_not_wait_for_ever_though_nobody_says_that_all_run(tmp_path: Path, node: int) -> None:
    port = free_port()
    order = NodeOrder(tmp_path / "a", node, port, replace(PATIENT, meet_ms=500, unmet_ms=700), ())
    with ended(order):
        order.start()
        assert order.end() == [-15]
    assert f"never reached the gang's first node at 127.0.0.1:{port} in 0.7 s" in order.ended["lost"]
    assert f"open TCP port {port} of that node" in order.ended["lost"]
    assert order.ended["interrupted"] is True


@pytest.mark.parametrize("late", [0, 1])
def test_a_node_that_takes_long_to_prepare_ends_no_gang(tmp_path: Path, late: int) -> None:
    """Its shim starts long after the other one's: later than nodes that all run may take to meet."""
    times, port = replace(PATIENT, meet_ms=600), free_port()
    orders = [NodeOrder(tmp_path / "ab"[node], node, port, times, (), LAST="1") for node in (0, 1)]
    early, other = orders[1 - late], orders[late]
    with ended(early), ended(other):
        early.start()
        began = time.monotonic()
        until(early.pids)
        until(lambda: time.monotonic() > began + 1.5)
        assert early.process is not None
        assert early.process.poll() is None
        other.start()
        assert [order.end() for order in orders] == [[0], [0]], early.said() + other.said()
    assert gang_file(orders[0]) == {"without": [], "awaits": []}


def test_a_disk_that_stalls_for_longer_than_a_node_may_be_silent_costs_nobody_its_place(tmp_path: Path) -> None:
    """The shim has to write who is the slow node's rank now, while the gang goes on: the two must hear of each other meanwhile. A
    gang whose first node is slow, and one whose second is, at a time."""
    with contextlib.ExitStack() as gangs:
        for slow in (0, 1):
            nodes = formed(gangs.enter_context(two_nodes(tmp_path / str(slow), HASTY, LAST="3")))
            gangs.enter_context(slow_to_write(slow, *nodes))
        began = time.monotonic()
        until(lambda: time.monotonic() > began + HASTY.node_ms / 1000 + 1)


@contextlib.contextmanager
def slow_to_write(slow: int, first: NodeOrder, second: NodeOrder, wire: Wire) -> Iterator[None]:
    orders = first, second
    before = orders[slow].pids()
    with stalled(orders[slow], "ranks.json"):
        os.kill(before[0], signal.SIGKILL)
        until(lambda: in_generation(orders[slow], slow, 2))
        carried = wire.carried
        yield
        assert orders[slow].pids() == before, "the disk has not taken it yet"
        assert wire.carried > carried
    until(lambda: orders[slow].pids() != before)
    until(lambda: in_generation(orders[1 - slow], 1 - slow, 2))
    os.kill(orders[1 - slow].pids()[0], signal.SIGKILL)
    assert [order.end() for order in orders] == [[0], [0]], first.said() + second.said()


def gang_file(order: NodeOrder) -> dict[str, list[int]] | None:
    path = order.folder / "gang.json"
    known: dict[str, list[int]] | None = json.loads(path.read_bytes()) if path.exists() else None
    return known


@contextlib.contextmanager
def ended(order: NodeOrder) -> Iterator[None]:
    """Whatever becomes of the test."""
    try:
        yield
    finally:
        if order.process is not None and order.process.poll() is None:
            order.process.kill()
            order.process.wait()
