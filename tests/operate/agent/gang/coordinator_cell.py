"""A coordinator with its socket in a thread of the test, and hands that remember what they were told."""

import selectors
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.core import timeouts
from phalanx.core.gang_wire import Frame
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang.coordinator import Coordinator
from phalanx.operate.agent.gang.doorway import Doorway, Peer

TOKEN = "c" * 64
TURN_S = 0.01


class RememberingHands:
    """Stands for the shim: says yes to everything."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.killed: list[int] = []
        self.dismissed: tuple[int, ...] = ()
        self.ended = ""
        self.without: list[int] = []
        self.notes: list[str] = []

    def start_spare(self, member: int, node: int) -> bool:
        self.started.append(member)
        return True

    def kill(self, member: int, why: str) -> None:
        self.killed.append(member)

    def place(self, member: int, slot: int) -> Mapping[str, Any]:
        return {"env": {"RANK": str(slot)}, "log": ""}

    def dismiss(self, members: Sequence[int]) -> None:
        self.dismissed = tuple(members)

    def end_gang(self, why: str, interrupted: bool, grace_ms: int) -> None:
        self.ended = why

    def gang_stands(self, without: Sequence[int], awaits: Sequence[int]) -> None:
        self.without = list(without)

    def note(self, line: str) -> None:
        self.notes.append(line)


class Cell:
    """`died` and the like are carried out in the coordinator's own thread, as the shim would."""

    def __init__(self, folder: Path, world_size: int, spares: int, hang_ms: int) -> None:
        self.path = folder / "gang.sock"
        self.address = f"unix:{self.path}"
        self.hands = RememberingHands()
        self._selector = selectors.DefaultSelector()
        doorway = Doorway(self._selector, TOKEN, self._heard, self._left)
        order = {
            "grace_ms": 5_000,
            "socket": str(self.path),
            "spares": spares,
            "timeouts": timeouts.as_dict(timeouts.timeouts(hang_ms)),
        }
        self.coordinator = Coordinator(order, world_size, doorway, self.hands, boottime.now_ms())
        self.coordinator.open()
        self._deaths: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def died(self, member: int) -> None:
        self._deaths.append(member)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.coordinator.close()
        self._selector.close()

    def _heard(self, peer: Peer, frame: Frame) -> None:
        self.coordinator.heard(peer, frame)

    def _left(self, peer: Peer) -> None:
        self.coordinator.left(peer)

    def _serve(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(TURN_S):
                key.data()
            while self._deaths:
                self.coordinator.died(self._deaths.pop(), "was killed by signal 9", True, boottime.now_ms())
            self.coordinator.turn(boottime.now_ms())


@contextmanager
def running(folder: Path, world_size: int = 2, spares: int = 1, hang_ms: int = 60_000) -> Iterator[Cell]:
    cell = Cell(folder, world_size, spares, hang_ms)
    try:
        yield cell
    finally:
        cell.close()
