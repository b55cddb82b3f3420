"""A snapshot in another keeper's memory: counted when both sides say so, given back to whoever takes the rank's place."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from phalanx.core.errors import NotFound, SetupError, StoreUnavailable, Unauthorized
from phalanx.job.checkpoint.keeper import channel, replicas
from phalanx.job.checkpoint.keeper.link import reach
from phalanx.job.checkpoint.keeper.messages import Fetch, News, NotReplicated, Peer, Persist, Replicated
from phalanx.job.checkpoint.keeper.process import Keeper
from phalanx.job.checkpoint.keeper.replicas import Held, fetch, send
from phalanx.job.checkpoint.keeper.segments import make_segments
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.replicas import of_place
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.segment import Layout, Seal, Segment, layout_of
from phalanx.job.checkpoint.shard_file import SaveKey
from tests.job.checkpoint.keeper_places import end_keepers, ends, eventually, place_at, snapshot
from tests.job.checkpoint.snapshot_parts import PARTS, filled

SECRET = "of the gang"
HOST = "127.0.0.1"


class Node:
    """Two nodes on one machine: rank 0's keeper gives its replicas to rank 1's."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / "node-0", folder / "node-1"]
        self.mine, self.other = (Memory.attach(place_at(one), PARTS, buffers=2) for one in self.folders)
        self.peer = Peer(host=HOST, port=self.other.listen(HOST, SECRET), secret=SECRET, owner="r0")

    def replicate(self, step: int) -> News:
        snapshot(self.mine, step, generation=1)
        self.mine.replicate(step, self.peer)
        return self.heard()

    def heard(self) -> News:
        for _ in range(1000):
            for one in self.mine.news(0.02):
                return one
        raise AssertionError("no news")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Node]:
    nodes = Node(tmp_path)
    yield nodes
    for memory in (nodes.mine, nodes.other):
        memory.leave()
    for folder in nodes.folders:
        if folder.exists():
            end_keepers(folder)


def test_a_lost_node_s_snapshot_comes_back_from_its_peer(nodes: Node) -> None:
    first = nodes.replicate(1)
    assert isinstance(first, Replicated) and (first.segment, first.step, first.generation) == (0, 1, 1)
    assert isinstance(nodes.replicate(2), Replicated)
    os.kill(nodes.mine.keeper_pid, signal.SIGKILL)  # rank, keeper and memory are gone
    ends(nodes.mine.keeper_pid)
    for step, wanted in ((2, None), (1, 1)):
        after = Memory.fetch(place_at(nodes.folders[0], slot=1), nodes.peer, wanted, buffers=2)
        assert step in after.sealed() and after.seal_of(step).generation == 1
        assert {key: bytes(data) for key, data in after.read(step).items()} == {p.key: bytes(filled(p, step)) for p in PARTS}
        after.leave()
    after.close()


def test_a_segment_on_its_way_is_not_overwritten(nodes: Node) -> None:
    snapshot(nodes.mine, 1)
    os.kill(nodes.other.keeper_pid, signal.SIGSTOP)
    try:
        nodes.mine.replicate(1, nodes.peer)
        snapshot(nodes.mine, 2)
        assert nodes.mine._busy() == {0} and nodes.mine.begin(3) is None  # nor the newest
    finally:
        os.kill(nodes.other.keeper_pid, signal.SIGCONT)
    assert isinstance(nodes.heard(), Replicated)
    assert nodes.mine._busy() == set()


def test_a_peer_that_is_gone_costs_the_replica_and_nothing_else(nodes: Node) -> None:
    os.kill(nodes.other.keeper_pid, signal.SIGKILL)
    ends(nodes.other.keeper_pid)
    told = nodes.replicate(1)
    assert isinstance(told, NotReplicated) and told.step == 1 and told.reason
    assert nodes.mine.sealed() == (1,) and nodes.mine.begin(2) is not None


def test_who_dies_while_its_replica_is_fetched_keeps_no_keeper_busy(nodes: Node) -> None:
    """Its place is another process's by then, whose keeper is the same."""
    assert isinstance(nodes.replicate(1), Replicated)
    place = place_at(nodes.folders[0], slot=1)
    os.kill(nodes.other.keeper_pid, signal.SIGSTOP)  # a fetch that lasts
    try:
        link, _, _ = reach(place)
        link.say(Fetch(peer=nodes.peer, step=None, buffers=2))
        link.close()
        started_s = time.monotonic()
        after = Memory.attach(place, PARTS, buffers=2)
        assert time.monotonic() - started_s < replicas.TIMEOUT_S / 2
        assert after.sealed() == ()
        after.leave()
    finally:
        os.kill(nodes.other.keeper_pid, signal.SIGCONT)
    after = Memory.fetch(place, nodes.peer, buffers=2)
    assert after.sealed() == (1,)
    after.close()


def test_what_the_process_before_sent_is_not_taken_for_what_this_one_sends(nodes: Node) -> None:
    third = Memory.attach(place_at(nodes.folders[1], slot=1), PARTS, buffers=2)
    peer = replace(nodes.peer, port=third.listen(HOST, SECRET))
    draft = nodes.mine.begin(1)
    assert draft is not None
    draft.seal('{"rank": 0, "world_size": 2}')
    os.kill(nodes.other.keeper_pid, signal.SIGSTOP)
    os.kill(third.keeper_pid, signal.SIGSTOP)
    try:
        nodes.mine.replicate(1, nodes.peer)
        nodes.mine.leave()
        nodes.mine = Memory.attach(place_at(nodes.folders[0]), PARTS, buffers=2)
        nodes.mine.replicate(1, peer, keeps=True)
        os.kill(nodes.other.keeper_pid, signal.SIGCONT)
        eventually(lambda: any(one.is_replica for one in of_place(nodes.other.place)))
        for _ in range(5):
            assert nodes.mine.news(0.1) == [] and nodes.mine.is_replicating
    finally:
        for pid in (nodes.other.keeper_pid, third.keeper_pid):
            os.kill(pid, signal.SIGCONT)
    assert isinstance(nodes.heard(), Replicated) and not nodes.mine.is_replicating
    assert [one.step for one in of_place(third.place) if one.is_replica] == [1]
    third.close()


def test_who_does_not_have_the_secret_gets_and_leaves_nothing(nodes: Node) -> None:
    snapshot(nodes.mine, 1)
    nodes.mine.replicate(1, replace(nodes.peer, secret="guessed"))
    assert isinstance(nodes.heard(), NotReplicated)
    assert isinstance(nodes.replicate(2), Replicated)
    with pytest.raises(NotFound, match="of r0"):
        Memory.fetch(place_at(nodes.folders[0], slot=1), replace(nodes.peer, secret="guessed"), buffers=2)
    with pytest.raises(NotFound, match=r"no counted replica of r0; there are \[\('r0', 2\)\]"):
        Memory.fetch(place_at(nodes.folders[0], slot=1), nodes.peer, step=1, buffers=2)


def test_an_address_that_is_not_this_node_s_is_one_error(nodes: Node) -> None:
    with pytest.raises(SetupError, match="give an address of this node"):
        nodes.mine.listen("192.0.2.1", SECRET)


class Local:
    """A holder in this process, and a segment to give."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = Held(place_at(folder), HOST, SECRET)
        self.address = (HOST, self.held.port)
        self.layout = layout_of(PARTS)
        self.segment = self.new()

    def new(self) -> Segment:
        return Segment(make_segments(self.folder, self.layout, 1)[0], self.layout)

    def fill(self, step: int) -> Seal:
        for index, part in enumerate(PARTS):
            self.segment.part(index)[:] = filled(part, step)
        self.segment.write_seal(Seal(step))
        return Seal(step)

    def fetched(self, step: int | None = None, generation: int | None = None) -> Segment:
        into = self.new()

        def room(layout: Layout, *_: int) -> Segment:
            assert layout == self.layout
            return into

        fetch(self.address, SECRET, "r0", step, room, generation)
        return into


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    yield local
    local.held.close()


def test_a_sender_that_dies_half_way_leaves_the_older_replicas(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        send(local.address, SECRET, "r0", local.segment, local.fill(step))
    assert local.held.counted() == [("r0", 1), ("r0", 2)]

    def half(self: channel.Channel, data: memoryview) -> None:
        self._connection.sendall(data[: len(data) // 2])
        raise ConnectionError("killed")

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(channel.Channel, "pour", half)
        send(local.address, SECRET, "r0", local.segment, local.fill(3))
    eventually(lambda: local.held.counted() == [("r0", 2)])
    assert local.fetched().seal() == Seal(2)
    eventually(lambda: not local.held._in_use)
    send(local.address, SECRET, "r0", local.segment, local.fill(4))
    assert local.held.counted() == [("r0", 2), ("r0", 4)]


def test_the_replica_that_its_gang_would_go_back_to_stays_until_a_newer_one_is(local: Local) -> None:
    for step in (1, 2, 3, 4):
        send(local.address, SECRET, "r0", local.segment, local.fill(step), besides=(0, 1))
    assert local.held.counted() == [("r0", 1), ("r0", 4)]
    send(local.address, SECRET, "r0", local.segment, local.fill(5), besides=(0, 4))
    assert local.held.counted() == [("r0", 4), ("r0", 5)]


def test_replicas_of_other_parts_stay_until_they_are_dropped(local: Local) -> None:
    """A gang of another size: until all of its own have arrived, the former one's state may be the only whole one."""
    send(local.address, SECRET, "r0", local.segment, local.fill(1))
    layout = layout_of(PARTS[:2])
    smaller = Segment(make_segments(local.folder, layout, 1)[0], layout)
    smaller.write_seal(Seal(2, 2))
    send(local.address, SECRET, "r0", smaller, Seal(2, 2))
    assert local.held.counted() == [("r0", 1), ("r0", 2)]
    assert local.fetched(1).seal() == Seal(1)
    eventually(lambda: not local.held._in_use)
    local.held.drop_others(["r0"])
    assert local.held.counted() == [("r0", 2)]
    local.held.drop_others([])
    assert local.held.counted() == [] and local.held._segments == {}


def test_replicas_of_other_parts_make_way_where_there_is_no_room_for_both(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    send(local.address, SECRET, "r0", local.segment, local.fill(1))
    layout = layout_of(PARTS[:2])
    smaller = Segment(make_segments(local.folder, layout, 1)[0], layout)
    smaller.write_seal(Seal(2, 2))

    def free() -> int:
        return 0 if local.held._segments else 2**30

    monkeypatch.setattr(replicas, "make_segments", partial(make_segments, free=free))
    send(local.address, SECRET, "r0", smaller, Seal(2, 2))
    assert local.held.counted() == [("r0", 2)]


def test_of_two_generations_that_one_is_given_that_was_asked_for(local: Local) -> None:
    for generation in (1, 2):
        local.fill(7)
        local.segment.write_seal(Seal(7, generation))
        send(local.address, SECRET, "r0", local.segment, Seal(7, generation))
    assert local.fetched(7).seal() == Seal(7, 2)
    assert local.fetched(7, generation=1).seal() == Seal(7, 1)
    with pytest.raises(NotFound):
        local.fetched(7, generation=3)


def test_what_only_the_holder_is_sure_of_does_not_count(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    send(local.address, SECRET, "r0", local.segment, local.fill(1))
    heard, said = replicas._heard, []

    def once_less(answer: channel.Channel) -> None:
        heard(answer)
        said.append(1)
        if len(said) == 2:
            raise ConnectionError("killed before it said that it knows")

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(replicas, "_heard", once_less)
        send(local.address, SECRET, "r0", local.segment, local.fill(2))
    assert local.held.counted() == [("r0", 1)]
    assert local.fetched().seal() == Seal(1)


def test_one_flipped_bit_on_the_way_is_no_replica(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    send(local.address, SECRET, "r0", local.segment, local.fill(1))

    def flipping(self: channel.Channel, data: memoryview) -> None:
        proof = self._begun(True).update(data)
        changed = bytearray(data)
        changed[100] ^= 1
        self._connection.sendall(bytes(changed) + proof.digest())

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(channel.Channel, "pour", flipping)
        send(local.address, SECRET, "r0", local.segment, local.fill(2))
    assert local.held.counted() == [("r0", 1)]
    with monkeypatch.context() as patch, pytest.raises(Unauthorized, match="changed on its way"):
        patch.setattr(channel.Channel, "pour", flipping)
        local.fetched()


def test_a_snapshot_that_is_taken_while_it_is_sent_is_no_replica(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor of a rank does not know what its keeper is sending."""
    send(local.address, SECRET, "r0", local.segment, local.fill(1))
    pour, seal = channel.Channel.pour, local.fill(2)

    def overtaken(self: channel.Channel, data: memoryview) -> None:
        pour(self, data)
        local.segment.write_seal(Seal(2, generation=2))

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable, match="overwritten"):
        patch.setattr(channel.Channel, "pour", overtaken)
        send(local.address, SECRET, "r0", local.segment, seal)
    eventually(lambda: not local.held._in_use)
    assert local.held.counted() == [("r0", 1)]


def test_what_is_fetched_goes_where_nothing_is_saved_or_sent(local: Local) -> None:
    keeper, seal = Keeper(place_at(local.folder)), local.fill(1)
    keeper._memory.segments = [local.segment, local.new()]
    asked = Fetch(peer=Peer(host=HOST, port=1, secret=SECRET, owner="r0"), step=None, buffers=2)
    keeper._memory.segments[1].write_seal(Seal(2))
    assert keeper._place_for(asked, local.layout, 3, 1).seal() == seal
    keeper._sending = [local.segment]
    assert keeper._place_for(asked, local.layout, 3, 1) is keeper._memory.segments[1]
    key = SaveKey(step=2, save="s")
    keeper._saves._running["s"] = Persist(
        root="", key=key, rank=0, segment=1, content=None, keep=Keep(), patience_s=0,
    )  # fmt: skip
    with pytest.raises(StoreUnavailable, match="saved or sent"):
        keeper._place_for(asked, local.layout, 3, 1)
    for one in (keeper._heard, keeper._ring, keeper._selector):
        one.close()


def test_a_caller_that_meets_a_fault_of_ours_takes_no_other_s_turn(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> channel.Channel:
        raise RuntimeError("a fault")

    free = local.held._callers._value
    assert local.held._callers.acquire(blocking=False)
    monkeypatch.setattr(replicas, "agree", fails)
    mine, theirs = socket.socketpair()
    with theirs, pytest.raises(RuntimeError):
        local.held._served(mine)
    assert local.held._callers._value == free


@pytest.mark.parametrize("garbage", [b"", b"x" * 31, b"x" * 200, b"\0" * 32 + b"\xff" * 8])
def test_strangers_cost_nobody_anything(local: Local, garbage: bytes) -> None:
    with socket.create_connection(local.address) as stranger:
        stranger.settimeout(60)
        with contextlib.suppress(OSError):  # it may have been hung up on
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    send(local.address, SECRET, "r0", local.segment, local.fill(1))
    assert local.held.counted() == [("r0", 1)]


def test_a_recording_of_another_connection_proves_nothing(local: Local) -> None:
    """A stranger that repeats what a keeper once said has not the nonces of this connection."""
    one, other = socket.socketpair()
    with one, other, socket.create_connection(local.address) as stranger:
        one.sendall(bytes(32))  # what the holder's nonce was then
        with pytest.raises((Unauthorized, OSError)):
            one.shutdown(socket.SHUT_WR)
            channel.agree(other, SECRET, called=False)
        recorded = one.recv(4096)
        stranger.sendall(recorded)
        stranger.settimeout(60)
        with pytest.raises((Unauthorized, OSError)):
            channel.agree(stranger, "", called=False)
    assert local.held.counted() == []
