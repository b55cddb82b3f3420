"""The keeper itself: one thread that waits for ranks and does what they ask. Ends when nobody needs it."""

import contextlib
import functools
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from phalanx.core.errors import PhalanxError, SetupError, UserError
from phalanx.job.checkpoint.keeper.callers import Caller, Callers
from phalanx.job.checkpoint.keeper.holdings import Holdings, parts_of
from phalanx.job.checkpoint.keeper.messages import (
    BUFFERS_MAX,
    BUFFERS_MIN,
    Adopt,
    Bye,
    Drop,
    Fetch,
    Forget,
    GivenUp,
    Hello,
    Holding,
    Listen,
    Listening,
    Look,
    Make,
    News,
    NotReplicated,
    Persist,
    Refused,
    Replicate,
    Replicated,
    Request,
    Stock,
)
from phalanx.job.checkpoint.keeper.only import lock_name
from phalanx.job.checkpoint.keeper.place import IDLE_S, Place
from phalanx.job.checkpoint.keeper.recorded import record_unheard
from phalanx.job.checkpoint.keeper.replicas import Held, fetch, item_of, send
from phalanx.job.checkpoint.keeper.saves import Saves
from phalanx.job.checkpoint.keeper.segments import TOO_LITTLE, Unwanted, make_segments
from phalanx.job.checkpoint.segment import Layout, Seal, Segment, layout_of

_UNHEARD_MAX: Final = 64
NEW_S: Final = 30.0


class Keeper:
    """Serves one place until it is idle."""

    def __init__(self, place: Place, idle_s: float = IDLE_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self._idle_s = idle_s
        self._clock_s = clock_s
        self._alone_since_s = clock_s()
        self._patience_alone_s = min(idle_s, NEW_S)  # whoever started it may have died since
        self._dismissed = False
        self._heard, self._ring = socket.socketpair()
        self._ring.setblocking(False)
        self._news: deque[News] = deque()  # from the saves' threads
        self._unheard: deque[News] = deque(maxlen=_UNHEARD_MAX)
        self._saves = Saves(self._post, clock_s)
        self._memory = Holdings(self._saves.segments_are_gone)
        self._held: Held | None = None
        self._sending: list[Segment] = []  # by the sender, or soon
        self._sender = ThreadPoolExecutor(1, "replica")
        self._making = 0
        self._maker = ThreadPoolExecutor(1, "memory")
        self._inbox: deque[Callable[[], None]] = deque()  # from its thread
        self._selector = selectors.DefaultSelector()
        self._callers = Callers(self._selector, self._obey, self._is_alone)

    def dismiss(self) -> None:
        """The attempt ends: writes what it is writing, soon or not at all, and ends. May be called from a signal's handler."""
        self._dismissed = True
        self._saves.hurry()
        with contextlib.suppress(BlockingIOError):
            self._ring.send(b"!")

    def run(self) -> None:
        """Returns when idle. Only for whoever has the place's lock."""
        folder = os.open(self.place.folder, os.O_RDONLY | os.O_DIRECTORY)
        self._callers.listen(folder, self.place.socket_name)
        self._selector.register(self._heard, selectors.EVENT_READ, self._spread_news)
        while not self._is_over():
            for key, _ in self._selector.select(self._patience_s()):
                key.data()
        self._leave(folder)

    def _leave(self, folder: int) -> None:
        for name in (self.place.socket_name, self.place.log_name, lock_name(self.place.slot)):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
        with contextlib.suppress(OSError):  # another slot's keeper is there, or it was removed
            self.place.folder.rmdir()

    def _is_over(self) -> bool:
        if self._making or self._saves.running or (self._callers.there and not self._saves.is_hurried):
            return False
        return self._dismissed or self._left_s() <= 0

    def _patience_s(self) -> float | None:
        return None if self._callers.there or self._saves.running or self._making else max(0.0, self._left_s())

    def _left_s(self) -> float:
        return self._patience_alone_s - (self._clock_s() - self._alone_since_s)

    def _is_alone(self) -> None:
        """For how long, if nobody comes."""
        self._alone_since_s = self._clock_s()

    def _obey(self, caller: Caller, asked: Request) -> None:
        """Raises ValueError for what may not be asked now."""
        match asked:
            case Hello():
                self._greet(caller, asked)
            case Look() if caller.greeted:
                self._say_stock(caller)
            case _ if not caller.known:
                raise ValueError("no Hello")
            case Listen() | Forget() | Replicate() | Fetch():
                self._exchange(caller, asked)
            case _:
                self._serve(caller, asked)

    def _exchange(self, caller: Caller, asked: Listen | Forget | Replicate | Fetch) -> None:
        """With other keepers."""
        match asked:
            case Listen():
                self._listen_for_replicas(caller, asked)
            case Forget(after=after):
                if self._held is not None:
                    self._held.forget(after)
            case Replicate():
                self._replicate(caller, asked)
            case Fetch():
                self._fetch(caller, asked)

    def _serve(self, caller: Caller, asked: Request) -> None:
        """The rank of this place."""
        match asked:
            case Make(parts=parts, buffers=buffers, scratch=scratch):
                self._make(caller, layout_of(parts), buffers, scratch)
            case Adopt(parts=parts, buffers=buffers):
                self._memory.take(caller.received.take(buffers), layout_of(parts))
                self._show(caller)
            case Persist():
                self._persist(caller, asked)
            case Drop(owners=owners):
                self._memory.drop_former()
                if owners is not None and self._held is not None:
                    self._held.drop_others(owners)
            case Bye():
                self._dismissed = True
                self._callers.hang_up(caller)

    def _greet(self, caller: Caller, hello: Hello) -> None:
        if hello.attempt != self.place.attempt:
            fix = f"the keeper in {self.place.folder} is of attempt {self.place.attempt!r}; give each attempt a folder of its own"
            caller.tell(Refused(field="attempt", value=hello.attempt, fix=fix))
            raise ValueError("another attempt")
        caller.greeted = True
        if hello.reads:
            self._show(caller, self._memory.former)
            return
        caller.known = True
        self._patience_alone_s = self._idle_s
        self._dismissed = False
        self._show(caller)
        while self._unheard:
            caller.tell(self._unheard.popleft())

    def _make(self, caller: Caller, layout: Layout, buffers: int, scratch: str) -> None:
        if not BUFFERS_MIN <= buffers <= BUFFERS_MAX:
            raise ValueError(f"{buffers} buffers")
        if self._memory.has(layout, buffers):
            self._show(caller)
            return
        self._memory.put_by(layout)
        self._making += 1
        self._maker.submit(self._take, caller, layout, buffers, scratch)

    def _take(self, caller: Caller, layout: Layout, buffers: int, scratch: str) -> None:
        """In a thread: it lasts as long as it takes to clear tens of gigabytes, in the turn of this node's keepers, and others ask
        meanwhile what is put by. Given up once the caller is gone."""
        made: list[int] | UserError = []
        with contextlib.suppress(Unwanted):
            try:
                wanted = functools.partial(self._callers.there.__contains__, caller)
                made = make_segments(self.place.folder, layout, buffers, is_wanted=wanted, scratch=scratch)
            except UserError as error:
                made = error
        self._inbox.append(functools.partial(self._took, caller, layout, buffers, scratch, made))
        self._call()

    def _took(self, caller: Caller, layout: Layout, buffers: int, scratch: str, made: list[int] | UserError) -> None:
        self._making -= 1
        if isinstance(made, UserError):
            if self._memory.former and buffers == BUFFERS_MIN and caller in self._callers.there:
                self._memory.drop_former()  # it makes way where there is not enough for both
                self._make(caller, layout, buffers, scratch)
            else:
                caller.tell(Refused(field=made.field, value=str(made.value), fix=made.fix))
        elif caller in self._callers.there:
            self._memory.take(made, layout)
            self._show(caller)
        else:
            for descriptor in made:
                os.close(descriptor)
        self._is_alone()

    def _persist(self, caller: Caller, asked: Persist) -> None:
        found = self._memory.sealed_at(asked.segment) if asked.segment is not None else None
        if asked.segment is None:
            self._saves.begin(asked, None)
        elif found is None:
            caller.tell(GivenUp(key=asked.key, reason="its snapshot is not there"))
        else:
            if asked.own and not 0 <= min(asked.own) <= max(asked.own) < len(found[0].layout.parts):
                raise ValueError("parts that the layout does not have")
            self._saves.begin(asked, found[0])

    def _listen_for_replicas(self, caller: Caller, asked: Listen) -> None:
        if self._held is None:
            try:
                self._held = Held(self.place, asked.host, asked.secret, self._memory.all_sealed, asked.port)
            except OSError as error:
                fix = f"replicas cannot be taken there ({error.strerror}); give an address of this node"
                caller.tell(Refused(field="host", value=asked.host, fix=fix))
                return
        self._held.secret = asked.secret
        caller.tell(Listening(host=self._held.host, port=self._held.port))

    def _say_stock(self, caller: Caller) -> None:
        own = tuple(item_of(self.place.key, seal) for _, seal in self._memory.all_sealed())
        held = self._held.items() if self._held is not None else ()
        host, port = (self._held.host, self._held.port) if self._held is not None else ("", 0)
        caller.tell(Stock(own=own, held=held, host=host, port=port))

    def _replicate(self, caller: Caller, asked: Replicate) -> None:
        found = self._memory.sealed_at(asked.segment)
        if found is None:
            reason = "its snapshot is not there"
            caller.tell(NotReplicated(segment=asked.segment, step=0, reason=reason, sending=asked.sending))
            return
        segment, seal = found
        self._sending.append(segment)
        self._sender.submit(self._send, segment, seal, asked)

    def _send(self, segment: Segment, seal: Seal, asked: Replicate) -> None:
        peer = asked.peer
        try:
            send((peer.host, peer.port), peer.secret, peer.owner, segment, seal, asked.besides)
        except (OSError, PhalanxError) as error:
            reason = error.sentence() if isinstance(error, PhalanxError) else str(error)
            self._post(NotReplicated(segment=asked.segment, step=seal.step, reason=reason, sending=asked.sending))
            return
        finally:
            self._sending.remove(segment)
        told = Replicated(segment=asked.segment, step=seal.step, generation=seal.generation, sending=asked.sending)
        self._post(told)

    def _fetch(self, caller: Caller, asked: Fetch) -> None:
        """Nobody else is served meanwhile: whoever asks has nothing here yet. One that dies is not fetched for any longer: another
        process is to take its place."""
        peer, room = asked.peer, functools.partial(self._place_for, asked)
        try:
            fetch(
                (peer.host, peer.port), peer.secret, peer.owner, asked.step, room, asked.generation, caller.channel
            )  # fmt: skip
        except (OSError, PhalanxError) as error:
            reason = error.sentence() if isinstance(error, PhalanxError) else str(error)
            field = TOO_LITTLE if isinstance(error, SetupError) else "replica"
            caller.tell(Refused(field=field, value=f"of {peer.owner} at {peer.host}:{peer.port}", fix=reason))
            return
        self._show(caller)

    def _place_for(self, asked: Fetch, layout: Layout, step: int, generation: int) -> Segment:
        """Where a replica goes. Raises StoreUnavailable where there is no place."""
        if not self._memory.has(layout, asked.buffers):
            self._memory.let_go()
            self._memory.take(make_segments(self.place.folder, layout, asked.buffers), layout)
        return self._memory.to_fill({save.segment for save in self._saves.running}, self._sending)

    def _post(self, news: News) -> None:
        """From any thread."""
        self._news.append(news)
        self._call()

    def _call(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it rings already
            self._ring.send(b"!")

    def _spread_news(self) -> None:
        """To everybody there; else to whoever comes first."""
        self._heard.recv(4096)
        while self._inbox:
            self._inbox.popleft()()
        while self._news:
            news = self._news.popleft()
            known = self._callers.known
            for caller in known:
                caller.tell(news)
            if not known:
                self._unheard.append(news)
                record_unheard(news)
        self._alone_since_s = self._clock_s()

    def _show(self, caller: Caller, former: Sequence[Segment] = ()) -> None:
        segments = self._memory.segments
        told = Holding(
            pid=os.getpid(), parts=parts_of(segments), buffers=len(segments), former_parts=parts_of(former),
            former_buffers=len(former), saves=self._saves.running,
        )  # fmt: skip
        caller.tell(told, [segment.descriptor for segment in (*segments, *former)])
