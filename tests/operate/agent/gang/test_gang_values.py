"""The gang's key-value store: torch's promises, over its socket, and what it refuses."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang_wire import BODY_BYTES_MAX, Decoder, Frame, encode, hello
from phalanx.job.sdk.gang_link import GangGone, StoreLink
from phalanx.operate.agent.gang.values import Values
from tests.operate.agent.gang.coordinator_cell import TOKEN, Cell, running


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    with running(tmp_path) as cell:
        yield cell


@pytest.fixture
def store(cell: Cell) -> Iterator[StoreLink]:
    link = StoreLink(cell.address, TOKEN, 0)
    yield link
    link.close()


def ask(store: StoreLink, do: str, *keys: str, parts: tuple[bytes, ...] = (), **more: int) -> Frame:
    return store.ask({"do": do, "keys": list(keys), **more}, parts)


def test_values_come_back_as_they_were_set(store: StoreLink) -> None:
    ask(store, "set", "a", "b", parts=(b"\x00\xff", b""))
    assert ask(store, "get", "b", "a").parts == [b"", b"\x00\xff"]
    assert ask(store, "check", "a", "b").head["is"] is True
    assert ask(store, "check", "a", "c").head["is"] is False
    assert ask(store, "delete", "a").head["is"] is True
    assert ask(store, "delete", "a").head["is"] is False
    assert ask(store, "num_keys").head["is"] == 1


def test_numbers_are_added_and_read_back_as_text(store: StoreLink) -> None:
    assert ask(store, "add", "n", amount=3).head["is"] == 3
    assert ask(store, "add", "n", amount=-5).head["is"] == -2
    assert ask(store, "get", "n").parts == [b"-2"]
    ask(store, "set", "t", parts=(b"text",))
    with pytest.raises(ValueError, match="whole number"):
        ask(store, "add", "t", amount=1)


def test_compare_set_is_tcp_stores(store: StoreLink) -> None:
    assert ask(store, "compare_set", "k", parts=(b"old", b"new")).parts == [b"old"], "absent, and something was expected"
    assert ask(store, "check", "k").head["is"] is False
    assert ask(store, "compare_set", "k", parts=(b"", b"one")).parts == [b"one"]
    assert ask(store, "compare_set", "k", parts=(b"two", b"three")).parts == [b"one"]
    assert ask(store, "compare_set", "k", parts=(b"one", b"two")).parts == [b"two"]


def test_a_waiting_request_is_answered_when_its_last_key_comes(store: StoreLink) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, store, "get", "x", "y", timeout_ms=60_000)
        ask(store, "set", "x", parts=(b"1",))
        assert not waiting.done()
        ask(store, "set", "y", parts=(b"2",))
        assert waiting.result(60).parts == [b"1", b"2"]


def test_a_request_whose_time_is_over_names_what_did_not_come(store: StoreLink) -> None:
    ask(store, "set", "there", parts=(b"",))
    with pytest.raises(TimeoutError, match="waited for absent in vain"):
        ask(store, "wait", "there", "absent", timeout_ms=30)


def test_a_closed_store_wakes_who_waits_and_lets_nobody_begin(store: StoreLink) -> None:
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        ask(store, "wait", "never")

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait)
        begun.wait(60)
        store.close()
        with pytest.raises(GangGone):
            waiting.result(60)
    with pytest.raises(GangGone, match="over"):
        ask(store, "check", "a")


@pytest.mark.parametrize(
    "head",
    [{"do": "explode"}, {"do": 7}, {}, {"do": "get", "keys": "a"}, {"do": "get", "keys": [1]},
     {"do": "wait", "keys": [], "timeout_ms": -1}, {"do": "add", "keys": ["n"]}, {"do": "add", "keys": [], "amount": 1},
     {"do": "set", "keys": ["a"]}, {"do": "compare_set", "keys": ["a"]}],
)  # fmt: skip
def test_nonsense_is_answered_with_an_error_and_the_connection_lives(store: StoreLink, head: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must|needs|no operation|belong"):
        store.ask(head)
    assert ask(store, "num_keys").head["is"] == 0


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", encode(hello("d" * 64, 0, "store")), encode(Frame({"do": "num_keys"})),
     encode(hello(TOKEN, -1, "store")),
     encode(hello(TOKEN, 0, "else")), b"\x00\x00\x00\x02\x00\x00\x00\x00[]"],
)  # fmt: skip
def test_whoever_does_not_begin_with_the_token_is_hung_up_on(cell: Cell, store: StoreLink, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(cell.path))
        stranger.settimeout(60)
        stranger.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert ask(store, "num_keys").head["is"] == 0


def test_many_clients_count_to_their_sum(cell: Cell) -> None:
    def count(member: int) -> None:
        link = StoreLink(cell.address, TOKEN, member)
        for _ in range(50):
            ask(link, "add", "sum", amount=1)
        link.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
        link = StoreLink(cell.address, TOKEN, 0)
        assert ask(link, "get", "sum").parts == [b"400"]
        link.close()


def test_a_large_value_goes_through_whole(store: StoreLink) -> None:
    value = bytes(range(256)) * 40_000
    ask(store, "set", "big", parts=(value,))
    assert ask(store, "get", "big").parts == [value]
    with pytest.raises(ValueError, match="go through"):
        encode(Frame({}, [bytes(BODY_BYTES_MAX + 1)]))


def test_a_full_store_says_so_and_keeps_what_it_has() -> None:
    values = Values(bytes_max=10)
    assert values.ask(1, Frame({"do": "set", "keys": ["a"]}, [b"123456789"]), 0) == Frame({})
    answer = values.ask(1, Frame({"do": "append", "keys": ["a"]}, [b"1"]), 0)
    assert answer is not None
    assert "full" in answer.head["error"]
    values.drop("a")
    assert values.ask(1, Frame({"do": "set", "keys": ["b"]}, [b"123456789"]), 0) == Frame({})


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.lists(st.binary(max_size=50), max_size=4)), max_size=5),
    st.data(),
)
def test_frames_come_out_as_they_went_in_however_they_were_cut(
    frames: list[tuple[dict[str, int], list[bytes]]], data: st.DataObject
) -> None:
    wanted = [Frame({key: value for key, value in head.items() if key != "sizes"}, parts) for head, parts in frames]
    stream = b"".join(encode(frame) for frame in wanted)
    decoder, got = Decoder(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        got += list(decoder.feed(stream[:cut]))
        stream = stream[cut:]
    assert got == wanted
