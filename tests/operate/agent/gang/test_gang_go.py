"""What ranks are told of their places: the slots only where they are not the ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.core.gang_wire import Frame
from phalanx.core.timeouts import as_dict, timeouts
from phalanx.operate.agent.gang.coordinator import Coordinator

TIMES = timeouts(600_000)


@dataclass(frozen=True)
class Connection:
    member: int
    channel: str = "member"


@dataclass
class Shim:
    """The three connections of a gang, and hands that nobody needs."""

    all: list[Connection] = field(default_factory=lambda: [Connection(member) for member in range(3)])
    said: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def open(self, path: Path) -> None: ...
    def close(self) -> None: ...
    def members(self) -> Sequence[Connection]:
        return self.all

    def say(self, peer: Connection, frame: Frame) -> None:
        self.said[peer.member] = frame.head

    def start_spare(self, member: int, node: int) -> bool:
        return True

    def kill(self, member: int, why: str) -> None: ...
    def place(self, member: int, slot: int) -> Mapping[str, Any]:
        return {}

    def dismiss(self, members: Sequence[int]) -> None: ...
    def end_gang(self, why: str, interrupted: bool, grace_ms: int) -> None: ...
    def gang_stands(self, without: Sequence[int], awaits: Sequence[int]) -> None: ...
    def note(self, line: str) -> None: ...


def test_a_whole_gangs_slots_are_its_ranks_and_those_of_a_smaller_one_are_told() -> None:
    shim = Shim()
    order = {"spares": 0, "timeouts": as_dict(TIMES), "sizes": [2], "socket": "/none", "grace_ms": 1}
    gang = Coordinator(order, 3, shim, shim, 0)
    for peer in shim.all:
        gang.heard(peer, Frame({"do": "here", "after": 0}))
    whole = [shim.said[member] for member in range(3)]
    assert [head["rank"] for head in whole] == [0, 1, 2] and all(head["num_slots"] == 3 for head in whole)
    assert not any("slots" in head for head in whole)
    for peer in shim.all:
        gang.heard(peer, Frame({"do": "settled", "generation": 1}))
    gang.died(0, "fell", True, 10)
    for peer in shim.all[1:]:
        gang.heard(peer, Frame({"do": "here", "after": 1}))
    gang.turn(20 + TIMES.shrink_ms)
    fewer = [shim.said[member] for member in (1, 2)]
    assert [(head["say"], head["rank"], head["slots"]) for head in fewer] == [("go", 0, [1, 2]), ("go", 1, [1, 2])]
