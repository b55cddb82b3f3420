"""Replicas of snapshots in another keeper's memory: sent, held, counted once both sides have said so, and given back.

Of each owner two are held, so that the older one is whole while the newer comes. What is counted is what the owner's keeper knows
to be held here and has said so; a replica that only one side is sure of is none (ADR 20).
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.core.errors import NotFound, PhalanxError, StoreUnavailable
from phalanx.job.checkpoint.keeper.channel import Channel, agree
from phalanx.job.checkpoint.keeper.messages import Item
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.keeper.segments import make_segments
from phalanx.job.checkpoint.segment import HEADER_BYTES, Layout, Seal, Segment, layout_of
from phalanx.job.checkpoint.shard_file import Part

TIMEOUT_S: Final = 30.0
_HELD_OF_EACH: Final = 2
_CALLERS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The bytes of this snapshot follow. owner: Place.key of the place that it is of."""

    owner: str
    step: int
    generation: int
    note: str
    parts: tuple[Part, ...]
    kind: Literal["offer"] = "offer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Give the newest counted replica of this owner, or its own snapshot where this is the owner's keeper; of `step` where that is
    not None."""

    owner: str
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
    """What this keeper holds for others, and the socket where it takes and gives it. own: the place's own snapshots, which it gives
    too: where nobody took a dead rank's place, others make another gang of them. host, port: where it listens, at this port if that
    is free."""

    def __init__(
        self, place: Place, host: str, secret: str, own: Callable[[], list[tuple[Segment, Seal]]] = list, port: int = 0
    ) -> None:
        self.secret = secret
        self._place = place
        self._own = own
        self._lock = threading.Lock()
        self._segments: dict[str, list[Segment]] = {}
        self._counted: set[tuple[str, int, int]] = set()  # (owner, step, generation)
        self._in_use: list[Segment] = []  # being filled or given
        self._expected: tuple[str, ...] | None = None  # others go with the next that counts
        try:
            self._server = socket.create_server((host, port), backlog=16)
        except OSError:
            self._server = socket.create_server((host, 0), backlog=16)
        self.host, self.port = str(self._server.getsockname()[0]), int(self._server.getsockname()[1])
        self._callers = threading.Semaphore(_CALLERS_MAX)
        threading.Thread(target=self._serve, name="replicas", daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def counted(self) -> list[tuple[str, int]]:
        """(owner, step) of every replica that counts."""
        with self._lock:
            return sorted((owner, step) for owner, step, _ in self._counted)

    def items(self) -> tuple[Item, ...]:
        """Every replica that counts."""
        with self._lock:
            sealed = [
                (owner, seal)
                for owner, held in self._segments.items()
                for segment in held
                if (seal := segment.seal()) is not None and (owner, seal.step, seal.generation) in self._counted
            ]
        return tuple(item_of(owner, seal) for owner, seal in sealed)

    def expect(self, owners: Sequence[str], after: int | None) -> None:
        """See the message."""
        with self._lock:
            self._expected = tuple(owners)
            if after is not None:
                self._counted = {one for one in self._counted if one[1] <= after}

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
        try:
            with connection, contextlib.suppress(OSError, PhalanxError):
                connection.settimeout(TIMEOUT_S)
                channel = agree(connection, self.secret, called=True)
                match channel.hear(_Opening):
                    case Offer() as offer:
                        self._take(channel, offer)
                    case Want() as want:
                        self._give(channel, want)
        finally:
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
            if self._expected is not None and offer.owner in self._expected:
                self._drop_others(self._expected)
                self._expected = None
        channel.say(_Answer, Sure())

    def _drop_others(self, owners: Sequence[str]) -> None:
        """Of owners that somebody else holds replicas for by now."""
        for owner in [one for one in self._segments if one not in owners]:
            if not any(segment in self._in_use for segment in self._segments[owner]):
                for segment in self._segments.pop(owner):
                    os.close(segment.descriptor)
                self._counted = {one for one in self._counted if one[0] != owner}

    @contextlib.contextmanager
    def _used(self, segment: Segment) -> Iterator[None]:
        """Of one that is in use already."""
        try:
            yield
        finally:
            with self._lock:
                self._in_use.remove(segment)

    def _room(self, owner: str, layout: Layout) -> Segment:
        """Where the next replica of this owner goes, in use from now on: an empty or uncounted one, else the older.

        Raises SetupError where there is too little memory, StoreUnavailable when all are in use.
        """
        with self._lock:
            held = self._segments.get(owner, [])
            if not held or held[0].layout.digest != layout.digest:
                made = [Segment(one, layout) for one in make_segments(self._place.folder, layout, _HELD_OF_EACH)]
                for segment in held:
                    os.close(segment.descriptor)
                self._counted = {one for one in self._counted if one[0] != owner}
                held = self._segments[owner] = made
            free = [one for one in held if one not in self._in_use]
            if not free:
                raise StoreUnavailable(f"the replicas of {owner} are in use")
            segment = min(free, key=lambda one: self._worth(owner, one.seal()))
            self._in_use.append(segment)
            seal = segment.seal()
            if seal is not None:
                self._counted.discard((owner, seal.step, seal.generation))
            segment.break_seal()
            return segment

    def _worth(self, owner: str, seal: Seal | None) -> tuple[int, int]:
        if seal is None or (owner, seal.step, seal.generation) not in self._counted:
            return -1, -1
        return seal.generation, seal.step

    def _give(self, channel: Channel, want: Want) -> None:
        found = self._found(want)
        if found is None:
            channel.say(_Given, Sorry(reason=f"no counted replica of {want.owner}; there are {self.counted()}"))
            return
        segment, seal = found
        with self._used(segment):
            channel.say(_Given, _offer(want.owner, seal, segment.layout))
            channel.pour(segment.memory[HEADER_BYTES:])
            torn = segment.seal() != seal  # one's own, which a rank that trains may take again
            channel.say(_Answer, Sorry(reason="it was overwritten meanwhile") if torn else Sure())

    def _found(self, want: Want) -> tuple[Segment, Seal] | None:
        """In use from now on."""
        with self._lock:
            held = [(segment, seal) for segment in self._segments.get(want.owner, []) if (seal := segment.seal()) is not None]
            held = [pair for pair in held if (want.owner, pair[1].step, pair[1].generation) in self._counted]
            if want.owner == self._place.key:
                held = self._own()
            fits = [(segment, seal) for segment, seal in held if want.step in (None, seal.step)]
            newest = max(fits, key=lambda pair: (pair[1].generation, pair[1].step), default=None)
            if newest is not None:
                self._in_use.append(newest[0])
            return newest


def send(address: tuple[str, int], secret: str, owner: str, segment: Segment, seal: Seal) -> None:
    """Gives the keeper at `address` a replica, which then counts on both sides.

    Raises OSError when that keeper is gone, Unauthorized when it is of another gang, NotFound when it has no room, StoreUnavailable
    when the segment was taken meanwhile, as by a successor of its rank, who does not know of this.
    """
    with _called(address, secret) as channel:
        channel.say(_Opening, _offer(owner, seal, segment.layout))
        _heard(channel)
        channel.pour(segment.memory[HEADER_BYTES:])
        _heard(channel)
        if segment.seal() != seal:
            raise StoreUnavailable("the snapshot was overwritten while it was sent")
        channel.say(_Answer, Sure())
        _heard(channel)


def fetch(address: tuple[str, int], secret: str, owner: str, step: int | None, room: Callable[[Layout, int, int], Segment]) -> Seal:
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
        _heard(channel)
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


def item_of(owner: str, seal: Seal) -> Item:
    return Item(owner=owner, step=seal.step, generation=seal.generation, note=seal.note)


def _offer(owner: str, seal: Seal, layout: Layout) -> Offer:
    return Offer(owner=owner, step=seal.step, generation=seal.generation, note=seal.note, parts=layout.parts)
