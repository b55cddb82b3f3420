"""A rank's snapshots in host memory. The rank copies and seals; its keeper holds them, and gives them to the process after it.

One process a place at a time writes; its threads may share a Memory. A snapshot is whole once it is
sealed, and as long as its seal is: `begin` breaks one before anything is overwritten, and never the newest. No torch.
"""

import contextlib
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from phalanx.core.errors import Bug, NotFound
from phalanx.job.checkpoint.keeper.link import KeeperGone, Link, reach
from phalanx.job.checkpoint.keeper.messages import (
    Adopt,
    Bye,
    Committed,
    Drop,
    Fetch,
    Forget,
    GivenUp,
    Holding,
    Make,
    News,
    NotReplicated,
    Peer,
    Persist,
    Replicate,
    Replicated,
    Written,
)
from phalanx.job.checkpoint.keeper.place import IDLE_S, Place
from phalanx.job.checkpoint.segment import Layout, Seal, Segment, layout_of
from phalanx.job.checkpoint.shard_file import Part

BUFFERS: Final = 3
"""The newest whole one, one that is being copied, and one that is being written to durable storage."""


class Draft:
    """A snapshot that is being copied. Until `seal` it does not exist."""

    def __init__(self, segment: Segment, index: int, step: int, generation: int) -> None:
        self._segment = segment
        self.segment = index  # as in Memory.views
        self.step = step
        self.generation = generation

    @property
    def places(self) -> list[tuple[Part, memoryview]]:
        """Where the bytes of each part go, in the order in which the parts were given."""
        return [(part, self._segment.part(index)) for index, part in enumerate(self._segment.layout.parts)]

    def put(self, part: Part, data: memoryview) -> None:
        """Copies the bytes of one part. Raises Bug for a part of another layout, or bytes of another length."""
        for mine, place in self.places:
            if mine == part and place.nbytes == data.nbytes:
                place[:] = data.cast("B")
                return
        raise Bug(f"{part.key} of {data.nbytes} bytes is no part of this snapshot")

    def seal(self, note: str = "") -> None:
        """Says that every part is there. note: what else belongs to the state, see segment.NOTE_BYTES_MAX."""
        self._segment.write_seal(Seal(self.step, self.generation, note))


class Memory:
    """From `attach`."""

    def __init__(self, place: Place, link: Link, holding: Holding, segments: list[Segment], idle_s: float) -> None:
        self.place = place
        self.keeper_pid = holding.pid
        self._link = link
        self._segments = segments
        self._layout = segments[0].layout
        self._idle_s = idle_s
        self._replicating: dict[int, tuple[str, bool]] = {}  # segments on their way to another keeper; whether they are kept then
        self._kept: set[int] = set()  # segments that the gang may have to go back to
        self._listening: tuple[str, str, int] | None = None
        self._left = False
        self._lock = threading.RLock()
        self._saves = {one.key.save: one for one in holding.saves}  # under way

    @classmethod
    def attach(
        cls,
        place: Place,
        parts: Sequence[Part] | None = None,
        buffers: int = BUFFERS,
        idle_s: float = IDLE_S,
        populate: bool = True,
    ) -> "Memory":
        """The place's snapshots. parts: what each holds; those that are there are kept if they are of the same parts, else made
        anew. None: those that are there, whatever they hold. populate: see Segment.

        Raises SetupError when there is too little memory, naming bytes needed and free, or when no keeper can be started; NotFound
        when nothing is there for `parts` None; UserError when the keeper in this place is another attempt's.
        """
        link, holding, descriptors = reach(place, idle_s)
        if parts is None:
            if not holding.buffers:
                link.close()
                raise NotFound("snapshots", str(place.folder), "the keeper has none; say which parts they shall have")
        else:
            _close(descriptors)
            try:
                holding, descriptors = link.ask(Make(parts=tuple(parts), buffers=buffers, scratch=place.scratch))
            except Exception:
                link.close()
                raise
        populate = populate and not place.scratch  # a file's pages would all be in memory
        return cls(place, link, holding, _mapped(holding, descriptors, populate), idle_s)

    @classmethod
    def fetch(
        cls,
        place: Place,
        peer: Peer,
        step: int | None = None,
        buffers: int = BUFFERS,
        idle_s: float = IDLE_S,
        generation: int | None = None,
    ) -> "Memory":
        """Has the place's keeper get a replica back: the newest that counts, or that of `step` and `generation`.

        Raises NotFound when the peer has none or cannot be reached, and as `attach`.
        """
        link, _, descriptors = reach(place, idle_s)
        _close(descriptors)
        try:
            holding, descriptors = link.ask(Fetch(peer=peer, step=step, buffers=buffers, generation=generation))
        except Exception:
            link.close()
            raise
        return cls(place, link, holding, _mapped(holding, descriptors, populate=False), idle_s)

    @property
    def layout(self) -> Layout:
        """Also of one that was left."""
        return self._layout

    @property
    def buffers(self) -> int:
        """How many snapshots there is memory for."""
        return len(self._segments)

    def begin(self, step: int, generation: int = 0) -> Draft | None:
        """Somewhere to copy the state after `step` to; None when every segment is busy or holds the newest whole one."""
        index = self._room()
        if index is None:
            return None
        self._segments[index].break_seal()
        return Draft(self._segments[index], index, step, generation)

    def has_room(self) -> bool:
        """Whether `begin` would give somewhere."""
        return self._room() is not None

    def can_save(self, others: int) -> bool:
        """Whether one more snapshot can be written to durable storage, which may take long, with `others` segments left to go on
        with."""
        with self._lock:
            return len(self._segments) - len(self._busy()) - 1 >= others

    @property
    def is_replicating(self) -> bool:
        """Whether a replica is on its way."""
        return bool(self._replicating)

    def keep_only(self, version: tuple[int, int] | None) -> None:
        """Of all snapshots that of (generation, step) is kept until the next call, besides what is on its way to another keeper;
        the others are free again."""
        with self._lock:
            seals = [segment.seal() for segment in self._segments]
            self._kept = {at for at, seal in enumerate(seals) if seal is not None and (seal.generation, seal.step) == version}

    def views(self) -> list[list[memoryview]]:
        """Of each segment, where the bytes of each part that has any go, in the order of the parts."""
        kept = [index for index, part in enumerate(self.layout.parts) if part.num_bytes]
        return [[segment.part(index) for index in kept] for segment in self._segments]

    def whole_segments(self) -> list[memoryview]:
        """The memory of each segment."""
        return [segment.memory for segment in self._segments]

    def sealed(self) -> tuple[int, ...]:
        """Steps whose snapshots are whole, newest first."""
        return tuple(sorted({seal.step for seal, _ in self._whole()}, reverse=True))

    def index_of(self, step: int) -> int:
        """Which segment holds it, as in `views`. Raises NotFound."""
        return self._segments.index(self._find(step)[1])

    def seal_of(self, step: int) -> Seal:
        """Raises NotFound."""
        return self._find(step)[0]

    def read(self, step: int) -> Mapping[str, memoryview]:
        """Part.key -> its bytes, in place and read only, of the youngest generation's snapshot. Raises NotFound.

        They change when `begin` takes the segment again: copy before the next one.
        """
        return {part.key: data for part, data in self._find(step)[1].pairs()}

    def forget_after(self, step: int) -> None:
        """Drops snapshots of later steps: after a rollback they are of a history that did not happen."""
        for seal, segment in self._whole():
            if seal.step > step:
                segment.break_seal()

    def persist(self, step: int, asked: Persist) -> None:
        """Has the keeper write the snapshot of `step`; `news` says how it went. asked: its `segment` is filled in here.

        A keeper that is gone is replaced first. Raises NotFound, or SetupError when none can be started.
        """
        with self._lock:
            _, segment = self._find(step)
            asked = replace(asked, segment=self._segments.index(segment))
            self.repair()
            self._saves[asked.key.save] = asked
            with contextlib.suppress(KeeperGone):  # just now: the next repair says it again
                self._link.say(asked)

    def listen(self, host: str, secret: str) -> int:
        """Has the keeper hold replicas for others of the gang, and each after it at the same port; that port. Raises SetupError,
        KeeperGone."""
        with self._lock:
            there, port = self._link.listen(host, secret)
            self._listening = (there, secret, port)
            return port

    @property
    def host(self) -> str:
        """Where the keeper really listens: it may have done so before it was asked. '' before `listen`."""
        return self._listening[0] if self._listening is not None else ""

    @property
    def port(self) -> int:
        """As `host`; 0 where it does not listen."""
        return self._listening[2] if self._listening is not None else 0

    def forget_replicas(self, after: int) -> None:
        """See keeper.messages.Forget."""
        with self._lock, contextlib.suppress(KeeperGone):
            self._link.say(Forget(after=after))

    def drop_former(self, owners: Sequence[str] | None = None) -> None:
        """What was sealed of other parts, before these were attached, is not needed any more. owners: see keeper.messages.Drop."""
        with self._lock, contextlib.suppress(KeeperGone):
            self._link.say(Drop(owners=tuple(owners) if owners is not None else None))

    def replicate(self, step: int, peer: Peer, keeps: bool = False, besides: tuple[int, int] | None = None) -> None:
        """Has the keeper give the snapshot of `step` to another; it counts once `news` says so. keeps: once it counts it is not
        overwritten here either, before `keep_only`: a gang goes back to one step, of which each rank has its own. besides: see
        keeper.messages.Replicate.

        Raises NotFound.
        """
        with self._lock:
            index = self._segments.index(self._find(step)[1])
            self.repair()
            sending = secrets.token_hex(8)
            self._replicating[index] = sending, keeps
            with contextlib.suppress(KeeperGone):  # then `repair` forgets it: there will be a newer one
                self._link.say(Replicate(segment=index, peer=peer, sending=sending, besides=besides))

    def news(self, wait_s: float = 0.0) -> list[News]:
        """What has become of saves since the last time; waits up to `wait_s` for the first of it."""
        with self._lock:
            try:
                told = self._link.news(wait_s)
            except KeeperGone:
                return []  # `repair` begins its saves again
            return [one for one in told if self._note(one)]

    @property
    def saving(self) -> tuple[Persist, ...]:
        """Saves of which the end was not heard."""
        with self._lock:
            return tuple(self._saves.values())

    def repair(self) -> bool:
        """Whether the keeper was gone: then there is a new one, which holds the same memory and does the saves that it left.

        Raises SetupError when none can be started, KeeperGone when it ended at once: the next call tries again.
        """
        with self._lock:
            if self._left or not self._link.has_ended():
                return False
            link, pid = self._adopted()
            self._link.close()
            self._link, self.keeper_pid = link, pid
            self._replicating.clear()
            for save in self._saves.values():
                self._link.say(save)
            if self._listening is not None:
                (host, secret, port), self._listening = self._listening, None  # where it cannot, nobody shall count on it
                self._listening = (host, secret, self._link.listen(host, secret, port)[1])
            return True

    def _adopted(self) -> tuple[Link, int]:
        """A new keeper that holds this memory, and its process."""
        link, holding, descriptors = reach(self.place, self._idle_s)
        _close(descriptors)
        adopt = Adopt(parts=self.layout.parts, buffers=len(self._segments))
        try:
            _close(link.ask(adopt, [segment.descriptor for segment in self._segments])[1])
        except BaseException:
            link.close()
            raise
        return link, holding.pid

    def close(self) -> None:
        """Ends the keeper too, once it has written what it is writing. A rank that will be replaced must not call this."""
        with contextlib.suppress(KeeperGone):
            self._link.say(Bye())
        self.leave()

    def leave(self) -> None:
        """Goes, and has the keeper wait for whoever comes next. What was read in place must not be used any more."""
        if not self._left:
            self._left = True
            self._link.close()
            _close([segment.descriptor for segment in self._segments])
            self._segments = []  # the mappings go with the last view of them

    def _room(self) -> int | None:
        """The oldest that nobody needs: never the newest whole one, which the other ranks may count on."""
        seals, busy = [segment.seal() for segment in self._segments], self._busy()
        in_order = sorted(range(len(seals)), key=lambda index: _age(seals[index]))
        return next((at for at in in_order if at not in busy and (seals[at] is None or at != in_order[-1])), None)

    def _busy(self) -> set[int]:
        """Segments that are being written to durable storage, or given to another keeper."""
        with self._lock:
            return {*self._replicating, *self._kept} | {save.segment for save in self._saves.values() if save.segment is not None}

    def _note(self, news: News) -> bool:
        """False for what was sent before, or by the process before this: nobody here waits for it."""
        match news:
            case Replicated() | NotReplicated():
                return self._note_replica(news)
            case Written(key=key) if (save := self._saves.get(key.save)) is not None and save.content is not None:
                self._saves[key.save] = replace(save, segment=None)  # what is left of it is the commit
            case Written(key=key) | Committed(key=key) | GivenUp(key=key):
                self._saves.pop(key.save, None)
        return True

    def _note_replica(self, news: Replicated | NotReplicated) -> bool:
        sending, keeps = self._replicating.get(news.segment, ("", False))
        if sending != news.sending:
            return False
        del self._replicating[news.segment]
        if keeps and isinstance(news, Replicated):
            self._kept.add(news.segment)
        return True

    def _whole(self) -> list[tuple[Seal, Segment]]:
        return [(seal, segment) for segment in self._segments if (seal := segment.seal()) is not None]

    def _find(self, step: int) -> tuple[Seal, Segment]:
        found = [pair for pair in self._whole() if pair[0].step == step]
        if not found:
            raise NotFound("snapshot", step, f"there are {list(self.sealed())}")
        return max(found, key=lambda pair: pair[0].generation)


def _mapped(holding: Holding, descriptors: list[int], populate: bool) -> list[Segment]:
    layout = layout_of(holding.parts)
    return [Segment(descriptor, layout, populate) for descriptor in descriptors]


def _age(seal: Seal | None) -> tuple[int, int]:
    """What is taken first: an empty one, then that of the oldest step of the oldest generation."""
    return (-1, -1) if seal is None else (seal.generation, seal.step)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
