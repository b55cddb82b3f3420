"""Replicas of snapshots in another keeper's memory: sent, held, counted once both sides have said so, and given back.

Of each owner two are held, so that the older one is whole while the newer comes: the one that its gang would go back to, which the
owner names. What is counted is what the owner's keeper knows to be held here and has said so; a replica that only one side is sure
of is none (ADR 20).
"""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.core.errors import NotFound, PhalanxError, SetupError, StoreUnavailable
from phalanx.job.checkpoint.keeper.channel import Channel, agree
from phalanx.job.checkpoint.keeper.messages import Item
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.keeper.segments import make_segments
from phalanx.job.checkpoint.segment import HEADER_BYTES, Layout, Seal, Segment, layout_of
from phalanx.job.checkpoint.shard_file import Part

CONNECT_S: Final = 10.0
TIMEOUT_S: Final = 30.0
_HELD_OF_EACH: Final = 2
_CALLERS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The bytes of this snapshot follow. owner: Place.key of the place that it is of. besides: see Replicate."""

    owner: str
    step: int
    generation: int
    note: str
    parts: tuple[Part, ...]
    besides: tuple[int, int] | None = None
    kind: Literal["offer"] = "offer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Give the newest counted replica of this owner, or its own snapshot where this is the owner's keeper; of `step` and
    `generation` where those are not None."""

    owner: str
    step: int | None
    generation: int | None = None
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

    def forget(self, after: int) -> None:
        """Replicas of later steps count no more."""
        with self._lock:
            self._counted = {one for one in self._counted if one[1] <= after}

    def drop_others(self, owners: Sequence[str]) -> None:
        """Of owners that somebody else holds replicas for by now, and of other parts than an owner's newest has."""
        with self._lock:
            for owner, held in list(self._segments.items()):
                newest = max(held, key=lambda one: self._worth(owner, one.seal())) if owner in owners else None
                self._drop(owner, [one for one in held if newest is None or one.layout.digest != newest.layout.digest])

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
            segment = self._room(offer)
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

    def _drop(self, owner: str, segments: Sequence[Segment]) -> None:
        """What is in use stays."""
        for segment in segments:
            if segment not in self._in_use:
                if (seal := segment.seal()) is not None:
                    self._counted.discard((owner, seal.step, seal.generation))
                self._segments[owner].remove(segment)
                os.close(segment.descriptor)
        if not self._segments[owner]:
            del self._segments[owner]

    @contextlib.contextmanager
    def _used(self, segment: Segment) -> Iterator[None]:
        """Of one that is in use already."""
        try:
            yield
        finally:
            with self._lock:
                self._in_use.remove(segment)

    def _room(self, offer: Offer) -> Segment:
        """Where the next replica of this owner goes, in use from now on: an empty or uncounted one, else the older.

        Raises SetupError where there is too little memory, StoreUnavailable when all are in use.
        """
        with self._lock:
            held = self._segments_for(offer.owner, layout_of(offer.parts))
            free = [one for one in held if one not in self._in_use and not self._is_kept(offer, one.seal())]
            if not free:
                raise StoreUnavailable(f"the replicas of {offer.owner} are in use")
            segment = min(free, key=lambda one: self._worth(offer.owner, one.seal()))
            self._in_use.append(segment)
            seal = segment.seal()
            if seal is not None:
                self._counted.discard((offer.owner, seal.step, seal.generation))
            segment.break_seal()
            return segment

    def _segments_for(self, owner: str, layout: Layout) -> list[Segment]:
        """Of these parts. A gang of another size has others: what counts of those stays until `drop_others`, or until there is no
        room for both."""
        held = self._segments.setdefault(owner, [])
        if not (fits := [one for one in held if one.layout.digest == layout.digest]):
            self._drop(owner, [one for one in held if self._worth(owner, one.seal()) < (0, 0)])
            try:
                descriptors = make_segments(self._place.folder, layout, _HELD_OF_EACH)
            except SetupError:
                if owner not in self._segments:
                    raise
                self._drop(owner, list(held))
                descriptors = make_segments(self._place.folder, layout, _HELD_OF_EACH)
            fits = [Segment(one, layout) for one in descriptors]
            self._segments.setdefault(owner, []).extend(fits)
        return fits

    def _is_kept(self, offer: Offer, seal: Seal | None) -> bool:
        """Whether it is the one that must stay."""
        return seal is not None and (seal.generation, seal.step) == offer.besides

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
            held = [pair for pair in held if want.generation in (None, pair[1].generation)]
            fits = [(segment, seal) for segment, seal in held if want.step in (None, seal.step)]
            newest = max(fits, key=lambda pair: (pair[1].generation, pair[1].step), default=None)
            if newest is not None:
                self._in_use.append(newest[0])
            return newest


def send(
    address: tuple[str, int], secret: str, owner: str, segment: Segment, seal: Seal, besides: tuple[int, int] | None = None
) -> None:
    """Gives the keeper at `address` a replica, which then counts on both sides. besides: see Replicate.

    Raises OSError when that keeper is gone, Unauthorized when it is of another gang, NotFound when it has no room, StoreUnavailable
    when the segment was taken meanwhile, as by a successor of its rank, who does not know of this.
    """
    with _called(address, secret) as channel:
        channel.say(_Opening, _offer(owner, seal, segment.layout, besides))
        _heard(channel)
        channel.pour(segment.memory[HEADER_BYTES:])
        _heard(channel)
        if segment.seal() != seal:
            raise StoreUnavailable("the snapshot was overwritten while it was sent")
        channel.say(_Answer, Sure())
        _heard(channel)


def fetch(
    address: tuple[str, int],
    secret: str,
    owner: str,
    step: int | None,
    room: Callable[[Layout, int, int], Segment],
    generation: int | None = None,
    asker: socket.socket | None = None,
) -> Seal:
    """Gets a replica back. room: given its layout, step and generation, where it goes; sealed here once it is whole. asker: once
    that hangs up nobody waits for it, and it is given up.

    Raises NotFound when that keeper has none, OSError and Unauthorized as `send`.
    """
    with _called(address, secret, asker) as channel:
        channel.say(_Opening, Want(owner=owner, step=step, generation=generation))
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
def _called(address: tuple[str, int], secret: str, asker: socket.socket | None = None) -> Iterator[Channel]:
    with socket.create_connection(address, timeout=CONNECT_S) as connection, _given_up(connection, asker):
        connection.settimeout(TIMEOUT_S)
        yield agree(connection, secret, called=False)


@contextlib.contextmanager
def _given_up(connection: socket.socket, asker: socket.socket | None) -> Iterator[None]:
    """Shuts the connection down where the asker hangs up."""
    if asker is None:
        yield
        return
    over, ring = socket.socketpair()
    poll = select.poll()
    poll.register(over, select.POLLIN)
    poll.register(asker, select.POLLRDHUP)

    def watch() -> None:
        if asker.fileno() in dict(poll.poll()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=watch, name="asker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ring.send(b"!")
        thread.join()
        over.close()
        ring.close()


def _heard(channel: Channel) -> None:
    answer = channel.hear(_Answer)
    if isinstance(answer, Sorry):
        raise NotFound("replica", None, answer.reason)


def item_of(owner: str, seal: Seal) -> Item:
    return Item(owner=owner, step=seal.step, generation=seal.generation, note=seal.note)


def _offer(owner: str, seal: Seal, layout: Layout, besides: tuple[int, int] | None = None) -> Offer:
    return Offer(
        owner=owner, step=seal.step, generation=seal.generation, note=seal.note, parts=layout.parts, besides=besides
    )  # fmt: skip
