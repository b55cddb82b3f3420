"""Replicas of snapshots in another keeper's memory: sent, held, counted once both sides have said so, and given back.

Of each owner two are held, so that the older one is whole while the newer comes. What is counted is what the owner's keeper knows
to be held here and has said so; a replica that only one side is sure of is none (ADR 20).
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.core.errors import NotFound, PhalanxError, StoreUnavailable
from phalanx.job.checkpoint.keeper.channel import Channel, agree
from phalanx.job.checkpoint.keeper.segments import make_segments
from phalanx.job.checkpoint.segment import HEADER_BYTES, Layout, Seal, Segment, layout_of
from phalanx.job.checkpoint.shard_file import Part

TIMEOUT_S: Final = 30.0
_HELD_OF_EACH: Final = 2
_CALLERS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The bytes of this snapshot follow. owner: the rank that it is of."""

    owner: int
    step: int
    generation: int
    note: str
    parts: tuple[Part, ...]
    kind: Literal["offer"] = "offer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Give back the newest counted replica of this owner; of `step` where that is not None."""

    owner: int
    step: int | None
    kind: Literal["want"] = "want"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorry:
    """Not done."""

    reason: str
    kind: Literal["sorry"] = "sorry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sure:
    """The side that says this has waited for its copy, and it is whole."""

    kind: Literal["sure"] = "sure"


_Opening = Annotated[Offer | Want, Field(discriminator="kind")]
_Answer = Annotated[Sure | Sorry, Field(discriminator="kind")]
_Given = Annotated[Offer | Sorry, Field(discriminator="kind")]


class Held:
    """What this keeper holds for others, and the socket where it takes and gives it. folder: of the node's keepers."""

    def __init__(self, folder: Path, host: str, secret: str) -> None:
        self._folder = folder
        self._secret = secret
        self._lock = threading.Lock()
        self._segments: dict[int, list[Segment]] = {}
        self._counted: set[tuple[int, int, int]] = set()  # (owner, step, generation)
        self._in_use: list[Segment] = []  # being filled or given
        self._server = socket.create_server((host, 0), backlog=16)
        self.port = int(self._server.getsockname()[1])
        self._callers = threading.Semaphore(_CALLERS_MAX)
        threading.Thread(target=self._serve, name="replicas", daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def counted(self) -> list[tuple[int, int]]:
        """(owner, step) of every replica that counts."""
        with self._lock:
            return sorted((owner, step) for owner, step, _ in self._counted)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._server.accept()
                if self._callers.acquire(blocking=False):
                    threading.Thread(target=self._served, args=(connection,), daemon=True).start()
                else:
                    connection.close()

    def _served(self, connection: socket.socket) -> None:
        """A caller that is gone, silent or a stranger costs nobody else anything."""
        with connection, contextlib.suppress(OSError, PhalanxError):
            connection.settimeout(TIMEOUT_S)
            channel = agree(connection, self._secret, called=True)
            match channel.hear(_Opening):
                case Offer() as offer:
                    self._take(channel, offer)
                case Want() as want:
                    self._give(channel, want)
        self._callers.release()

    def _take(self, channel: Channel, offer: Offer) -> None:
        try:
            segment = self._room(offer.owner, layout_of(offer.parts))
        except PhalanxError as error:
            channel.say(_Answer, Sorry(reason=error.sentence()))
            return
        with self._used(segment):
            channel.say(_Answer, Sure())  # there is room
            channel.fill(segment.memory[HEADER_BYTES:])
            segment.write_seal(Seal(offer.step, offer.generation, offer.note))
        channel.say(_Answer, Sure())
        channel.hear(_Answer)  # the owner's keeper knows
        with self._lock:
            self._counted.add((offer.owner, offer.step, offer.generation))
        channel.say(_Answer, Sure())

    @contextlib.contextmanager
    def _used(self, segment: Segment) -> Iterator[None]:
        """Of one that is in use already."""
        try:
            yield
        finally:
            with self._lock:
                self._in_use.remove(segment)

    def _room(self, owner: int, layout: Layout) -> Segment:
        """Where the next replica of this owner goes, in use from now on: an empty or uncounted one, else the older.

        Raises SetupError where there is too little memory, StoreUnavailable when all are in use.
        """
        with self._lock:
            held = self._segments.get(owner, [])
            if not held or held[0].layout.digest != layout.digest:
                made = [Segment(one, layout) for one in make_segments(self._folder, layout, _HELD_OF_EACH)]
                for segment in held:
                    os.close(segment.descriptor)
                self._counted = {one for one in self._counted if one[0] != owner}
                held = self._segments[owner] = made
            free = [one for one in held if one not in self._in_use]
            if not free:
                raise StoreUnavailable(f"the replicas of rank {owner} are in use")
            segment = min(free, key=lambda one: self._worth(owner, one.seal()))
            self._in_use.append(segment)
            seal = segment.seal()
            if seal is not None:
                self._counted.discard((owner, seal.step, seal.generation))
            segment.break_seal()
            return segment

    def _worth(self, owner: int, seal: Seal | None) -> tuple[int, int]:
        if seal is None or (owner, seal.step, seal.generation) not in self._counted:
            return -1, -1
        return seal.generation, seal.step

    def _give(self, channel: Channel, want: Want) -> None:
        found = self._found(want)
        if found is None:
            channel.say(_Given, Sorry(reason=f"no counted replica of rank {want.owner}; there are {self.counted()}"))
            return
        segment, seal = found
        with self._used(segment):
            channel.say(_Given, _offer(want.owner, seal, segment.layout))
            channel.pour(segment.memory[HEADER_BYTES:])

    def _found(self, want: Want) -> tuple[Segment, Seal] | None:
        """In use from now on."""
        with self._lock:
            held = [(segment, seal) for segment in self._segments.get(want.owner, []) if (seal := segment.seal()) is not None]
            fits = [
                (segment, seal)
                for segment, seal in held
                if (want.owner, seal.step, seal.generation) in self._counted and want.step in (None, seal.step)
            ]
            newest = max(fits, key=lambda pair: (pair[1].generation, pair[1].step), default=None)
            if newest is not None:
                self._in_use.append(newest[0])
            return newest


def send(address: tuple[str, int], secret: str, owner: int, segment: Segment, seal: Seal) -> None:
    """Gives the keeper at `address` a replica, which then counts on both sides. The segment is not changed meanwhile.

    Raises OSError when that keeper is gone, Unauthorized when it is of another gang, NotFound when it has no room.
    """
    with _called(address, secret) as channel:
        channel.say(_Opening, _offer(owner, seal, segment.layout))
        _heard(channel)
        channel.pour(segment.memory[HEADER_BYTES:])
        _heard(channel)
        channel.say(_Answer, Sure())
        _heard(channel)


def fetch(address: tuple[str, int], secret: str, owner: int, step: int | None, room: Callable[[Layout, int, int], Segment]) -> Seal:
    """Gets a replica back. room: given its layout, step and generation, where it goes; sealed here once it is whole.

    Raises NotFound when that keeper has none, OSError and Unauthorized as `send`.
    """
    with _called(address, secret) as channel:
        channel.say(_Opening, Want(owner=owner, step=step))
        given = channel.hear(_Given)
        if isinstance(given, Sorry):
            raise NotFound("replica", owner, given.reason)
        seal = Seal(given.step, given.generation, given.note)
        segment = room(layout_of(given.parts), seal.step, seal.generation)
        segment.break_seal()
        channel.fill(segment.memory[HEADER_BYTES:])
        segment.write_seal(seal)
        return seal


@contextlib.contextmanager
def _called(address: tuple[str, int], secret: str) -> Iterator[Channel]:
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        yield agree(connection, secret, called=False)


def _heard(channel: Channel) -> None:
    answer = channel.hear(_Answer)
    if isinstance(answer, Sorry):
        raise NotFound("replica", None, answer.reason)


def _offer(owner: int, seal: Seal, layout: Layout) -> Offer:
    return Offer(owner=owner, step=seal.step, generation=seal.generation, note=seal.note, parts=layout.parts)
