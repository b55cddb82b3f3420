"""A process's part in a gang that recovers: its place in each generation, the word that one is over, and signs of life.

Torch-free. `attach` gives None where the job has no coordinator: then a rank's death ends the gang, as ever. One thread listens and
one gives signs of life, so both go on while the main thread is in a collective that will never end.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from phalanx.core import gang_wire
from phalanx.core.errors import UserError
from phalanx.core.gang_wire import Frame
from phalanx.core.timeouts import Timeouts, from_dict
from phalanx.job.sdk.gang_link import GangGone, Link, StoreLink

LOST_PATIENCE_S: Final = 10.0
"""From a broken collective to the word that its generation is over: the shim hears of a death in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process in one generation. slots: by rank, the place of each in the whole gang, which has num_slots; they stay when
    ranks are counted anew. prefix: of the generation's keys in the store. why, since_ms: the fault before it and when it was
    noticed, on CLOCK_BOOTTIME; '' and 0 in the first. planned: it was none, the gang grows. pid: as `ps` shows it, of a process
    that was a spare; else 0."""

    generation: int
    rank: int
    world_size: int
    prefix: str
    slots: tuple[int, ...]
    num_slots: int
    why: str = ""
    since_ms: int = 0
    pid: int = 0
    planned: bool = False


class Gang:
    """Used by the main thread; see `attach`."""

    def __init__(self, address: str, token: str, member: int, timeouts: Timeouts) -> None:
        """Raises GangGone when the coordinator is not there."""
        self.timeouts = timeouts
        self.member = member
        self._reach = (address, token, member)
        self._link = Link(address, token, member, "member")
        self._places: queue.SimpleQueue[Place | None] = queue.SimpleQueue()
        self._generation = 0
        self._position = (0, 0)
        self._over = threading.Event()
        self._rest = threading.Event()
        self._leave: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        for name, work in (("gang-ear", self._listen), ("gang-pulse", self._pulse)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def take_part(self) -> Place:
        """Waits for this process's place in the next generation; a spare may wait for days. Raises GangGone."""
        with self._lock:
            self._leave = None
        self._link.send(Frame({"do": "here", "after": self._generation}))
        place = self._places.get()
        if place is None:
            raise GangGone("the gang's coordinator is gone")
        self._generation = place.generation
        return place

    def settled(self) -> None:
        """This process can train in its generation."""
        self._link.send(Frame({"do": "settled", "generation": self._generation}))

    def moved(self, step: int, mark: int) -> None:
        """Where the main thread is: in which step, and how far in it. Costs nothing; told with the next sign of life."""
        self._position = (step, mark)

    def when_over(self, leave: Callable[[], None]) -> None:
        """`leave` is called, in another thread, once the present generation is over; at once where it is already."""
        with self._lock:
            self._leave = leave
            if not self._over.is_set():
                return
        leave()

    def is_over(self, patience_s: float = LOST_PATIENCE_S) -> bool:
        """Whether the present generation is over; waits so long for the word."""
        return self._over.wait(patience_s)

    def is_asked_to_rest(self) -> bool:
        """Whether the coordinator wants this generation to come out after a step, as it has places for more ranks."""
        return self._rest.is_set()

    def store(self) -> StoreLink:
        """A way to the gang's store."""
        return StoreLink(*self._reach)

    def close(self) -> None:
        self._closed.set()
        self._link.close()

    def _listen(self) -> None:
        try:
            while True:
                self._take(self._link.receive())
        except GangGone:
            self._places.put(None)

    def _take(self, frame: Frame) -> None:
        match frame.head:
            case {"say": "go", "generation": int(generation), "rank": int(rank), "world_size": int(world_size)} as told:
                moved_in = told.get("place")
                if moved_in is not None:
                    _move_in(moved_in)
                self._over.clear()
                self._rest.clear()
                prefix, why = str(told.get("prefix", generation)), str(told.get("why", ""))
                slots = tuple(int(slot) for slot in told.get("slots", range(world_size)))
                self._places.put(Place(
                    generation=generation, rank=rank, world_size=world_size, prefix=prefix, why=why,
                    slots=slots, num_slots=int(told.get("num_slots", world_size)),
                    since_ms=int(told.get("since_ms", 0)), pid=int((moved_in or {}).get("pid", 0)),
                    planned=bool(told.get("planned", False)),
                ))  # fmt: skip
            case {"say": "rest"}:
                self._rest.set()
            case {"say": "over"}:
                with self._lock:
                    self._over.set()
                    leave = self._leave
                if leave is not None:
                    leave()

    def _pulse(self) -> None:
        try:
            while not self._closed.wait(self.timeouts.beat_ms / 1000):
                step, mark = self._position
                self._link.send(Frame({"do": "beat", "step": step, "mark": mark}))
        except GangGone:
            return


def attach(environ: Mapping[str, str] | None = None) -> Gang | None:
    """This process's gang by the environment (`os.environ` when None). Raises UserError for a variable that makes no sense, and
    GangGone when the coordinator is not there."""
    env = os.environ if environ is None else environ
    address = env.get(gang_wire.ADDRESS, "")
    if not address:
        return None
    member = env.get(gang_wire.MEMBER, "")
    if not member.isdecimal():
        raise UserError(gang_wire.MEMBER, member, "write a whole number, 0 or more")
    try:
        timeouts = from_dict(json.loads(env.get(gang_wire.TIMEOUTS, "") or "{}"))
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(gang_wire.TIMEOUTS, env.get(gang_wire.TIMEOUTS), "write a JSON object of milliseconds") from error
    return Gang(address, env.get(gang_wire.TOKEN, ""), int(member), timeouts)


def _move_in(place: Mapping[str, Any]) -> None:
    """A spare becomes a rank: its environment and its log from now on."""
    os.environ.update({str(name): str(value) for name, value in place.get("env", {}).items()})
    if log := place.get("log"):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        os.close(opened)
