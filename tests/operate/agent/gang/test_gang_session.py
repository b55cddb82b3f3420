"""What two shims say to each other comes once and in order, wherever their connection breaks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.gang_wire import Frame
from phalanx.operate.agent.gang import session
from phalanx.operate.agent.gang.session import Session

steps = st.lists(st.tuples(st.sampled_from(["says", "hears", "breaks"]), st.sampled_from(["left", "right"]), st.integers(1, 3)))


OTHER = {"left": "right", "right": "left"}


class Pair:
    """Two ends and what is under way to each."""

    def __init__(self) -> None:
        self.ends = {who: Session() for who in OTHER}
        self.wires: dict[str, list[Frame]] = {who: [] for who in OTHER}
        self.said: dict[str, list[int]] = {who: [] for who in OTHER}
        self.heard: dict[str, list[int]] = {who: [] for who in OTHER}

    def says(self, who: str) -> None:
        word = len(self.said[who])
        self.said[who].append(word)
        self.wires[OTHER[who]] += [self.ends[who].number(Frame({"word": word})), self.ends[who].beat()]

    def hears(self, who: str) -> None:
        if self.wires[who]:
            taken = self.ends[who].take(self.wires[who].pop(0))
            self.heard[who] += [taken.head["word"]] if taken is not None else []

    def breaks(self, _: str = "") -> None:
        """What was under way is gone; each says in its hello how far it has heard."""
        got = {who: end.got for who, end in self.ends.items()}
        for who, end in self.ends.items():
            self.wires[OTHER[who]] = list(end.resume(got[OTHER[who]]))


@given(steps)
def test_each_frame_comes_once_and_in_order_over_any_number_of_connections(planned: list[tuple[str, str, int]]) -> None:
    pair = Pair()
    for verb, who, times in planned:
        for _ in range(times):
            getattr(pair, verb)(who)
    pair.breaks()
    for who in OTHER:
        while pair.wires[who]:
            pair.hears(who)
    assert pair.heard == {who: pair.said[other] for who, other in OTHER.items()}
    pair.breaks()
    assert all(end.is_heard for end in pair.ends.values())


@pytest.mark.parametrize(
    "head",
    [{}, {"n": 2, "ack": 0, "say": {}}, {"ack": 9}, {"ack": -1}, {"n": 1, "ack": 0}, {"n": 1, "ack": 5, "say": {}}, {"ack": "0"}],
)
def test_nonsense_is_refused(head: dict[str, object]) -> None:
    made = Session()
    if head == {"n": 1, "ack": 0}:
        assert made.take(Frame(head)) is None  # a sign of life of a newer shim
        return
    with pytest.raises(ValueError, match=r"frame|session"):
        made.take(Frame(head))


def test_a_side_that_acknowledges_nothing_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "UNACKED_BYTES_MAX", 10_000)
    made = Session()
    with pytest.raises(OverflowError):
        for _ in range(100):
            made.number(Frame({}, [b"x" * 1_000]))
