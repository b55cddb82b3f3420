"""Events out of bytes: whatever pieces they come in, as the server writes them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.client import heard
from phalanx.client.heard import Heard, Reader
from phalanx.core import wire
from phalanx.operate.control.api.sending import Sent
from tests.drawn import examples

EVENTS = st.lists(
    st.tuples(st.sampled_from(["log", "gap", "end"]), st.text(max_size=20), st.sampled_from(["", "a-1.1@7"])), max_size=5
)


@settings(max_examples=examples(60), deadline=None)
@given(EVENTS, st.integers(1, 40))
def test_what_the_server_writes_is_heard_in_any_pieces(events: list[tuple[str, str, str]], size: int) -> None:
    sent = [Sent(kind, wire.dumps(str, text), at) for kind, text, at in events]
    data = b": ping\n\n" + b": ping\n\n".join(one.encoded() for one in sent)
    reader, found = Reader(), list[Heard]()
    for begin in range(0, len(data), size):
        found += reader.feed(data[begin : begin + size])
    assert found == [Heard(one.kind, one.data.encode(), one.at) for one in sent]


def test_what_unicode_takes_for_the_end_of_a_line_ends_none() -> None:
    text = "a\u2028b\u0085c\u000bd\r\n"
    (one,) = Reader().feed(Sent("log", wire.dumps(str, text)).encoded())
    assert wire.loads(str, one.data) == text


def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "HELD_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        list(Reader().feed(b"data: " + b"x" * 100))
