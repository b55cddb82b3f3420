"""Connections of a group are ended from another thread; what was there before, and what only listens, is left alone."""

import socket
import threading
from collections.abc import Iterator

import pytest

from phalanx.job.train.connections import Connections


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def pair(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    near = socket.create_connection(listener.getsockname())
    return near, listener.accept()[0]


def test_who_waits_is_freed_on_both_sides_and_older_connections_live_on(listener: socket.socket) -> None:
    older_near, older_far = pair(listener)
    with older_near, older_far:
        connections = Connections()
        with socket.create_server(("127.0.0.1", 0)) as own:
            near, far = pair(own)
            connections.made()
            later_near, later_far = pair(listener)
            freed: list[bytes] = []
            waiting = [threading.Thread(target=lambda end=end: freed.append(end.recv(1))) for end in (near, far)]
            for thread in waiting:
                thread.start()
            assert connections.shut_down() == 2, "both ends are this process's here"
            for thread in waiting:
                thread.join(60)
            assert freed == [b"", b""]
            again, accepted = pair(own)  # it still listens
            for one in (near, far, again, accepted):
                one.close()
        later_near.sendall(b"x")
        assert later_far.recv(1) == b"x", "what came after the group is not the group's"
        older_near.sendall(b"y")
        assert older_far.recv(1) == b"y"
        for one in (later_near, later_far):
            one.close()


def test_a_number_that_was_used_again_is_left_alone(listener: socket.socket) -> None:
    connections = Connections()
    near, far = pair(listener)
    connections.made()
    number = near.fileno()
    near.close()
    far.close()
    other_near, other_far = pair(listener)
    assert number in (other_near.fileno(), other_far.fileno())
    assert connections.shut_down() == 0
    other_near.sendall(b"x")
    assert other_far.recv(1) == b"x"
    other_near.close()
    other_far.close()
