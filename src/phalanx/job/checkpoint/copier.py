"""A rank's snapshots, and what fills them beside its training: one copy at a time, sealed once all of it is there.

Whoever changes the state waits for the copy first. Lives as long as its process: page-locked memory is kept from one generation
of a gang to the next.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Final

import torch

from phalanx.core.errors import Bug, NotFound, PhalanxError, SetupError
from phalanx.job.checkpoint.beside import Beside, PageLocks
from phalanx.job.checkpoint.commit import reason_of
from phalanx.job.checkpoint.keeper.messages import BUFFERS_MIN, News, NotReplicated, Peer, Persist, Replicated
from phalanx.job.checkpoint.keeper.place import IDLE_S, Place
from phalanx.job.checkpoint.keeper.segments import TOO_LITTLE
from phalanx.job.checkpoint.memory import Draft, Memory
from phalanx.job.checkpoint.pages import map_now
from phalanx.job.checkpoint.shard_file import Part

_log: Final = logging.getLogger(__name__)
_DROP_AT: Final = 2
"""Once a second snapshot is sealed every rank has a first (see train.snapshots): those of a gang of another size may go."""
Held = Sequence[tuple[Part, torch.Tensor]]
"""Parts of a state with the tensors that they are now."""


class Copier:
    """Belongs to the training thread. unsaved: (step, reason) of saves that could not be handed to the keeper."""

    def __init__(self, place: Place, device: torch.device, idle_s: float = IDLE_S) -> None:
        self.place = place
        self.memory: Memory | None = None
        self.unsaved: deque[tuple[int, str]] = deque()
        self.sealed_then: Callable[[Memory, int], None] = lambda memory, step: None  # called in the copying thread
        self._device = device
        self._idle_s = idle_s
        self._targets: list[list[torch.Tensor]] = []
        self._locks = PageLocks(device)
        self._locked: set[int] = set()  # segments
        self._beside = Beside(device)
        self._coming: Future[Memory] | None = None
        self._riding: Persist | None = None
        self._told: deque[News] = deque()
        self.replicated: tuple[int, int] | None = None  # (generation, step) that another keeper last had whole
        self.refused = -1  # the step that one last did not take
        self.keeps_former = False  # whoever has replicas made drops what is of other parts
        self._complained = False
        self._num_sealed = 0  # in this memory

    def find(self) -> Memory | None:
        """The place's snapshots of whatever parts, its own or those of a former life; None when there are none, and while memory
        is being taken."""
        if self.memory is None and self._coming is None:
            try:
                self._use(Memory.attach(self.place, idle_s=self._idle_s, populate=False))
            except NotFound:
                return None
        return self.memory

    def begin_fit(self, parts: Sequence[Part], buffers: int) -> None:
        """Takes memory for so many snapshots of these parts, in the copying thread; what is there is kept when it is of the same
        parts. Until `end_fit` there is none.

        Memory that is made is page-locked then; what a former life of this place has sealed only when it is used, beside the next
        steps, since a gang that recovers waits for this rank.
        """
        self.rest()
        former = self.memory
        if former is not None and list(former.layout.parts) == list(parts):
            return
        self.memory, self._targets = None, []
        self._coming = self._beside.run(lambda: self._made(former, parts, buffers))

    def has_fit(self, wait_s: float = 0.0) -> bool:
        """Whether `end_fit` would wait for nothing, after at most so long."""
        return self._coming is None or not wait_for([self._coming], min(wait_s, threading.TIMEOUT_MAX)).not_done

    def end_fit(self) -> Memory:
        """Raises SetupError when there is too little, and as Memory.attach."""
        coming, self._coming = self._coming, None
        if coming is not None:
            self._use(coming.result())
        assert self.memory is not None
        return self.memory

    def rest(self) -> None:
        """Until nothing is done beside training. What of memory could not be taken there is none."""
        if self._coming is not None:
            with contextlib.suppress(PhalanxError):
                self.end_fit()
        self.wait()

    def _made(self, former: Memory | None, parts: Sequence[Part], buffers: int) -> Memory:
        """In the copying thread."""
        self._unlock()
        if former is not None:
            former.leave()
        memory = Memory.attach(self.place, parts, buffers, self._idle_s, populate=self._device.type == "cpu")
        if not memory.sealed():
            for index in range(memory.buffers):
                self._lock(memory, index)
        return memory

    def stored(self, step: int) -> dict[str, torch.Tensor]:
        """Part.key -> its bytes, flat and in place, of the snapshot of `step`; of parts that have any. Raises NotFound."""
        memory = self.find()
        if memory is None:
            raise NotFound("snapshot", step, "this place holds none")
        keys = [part.key for part in memory.layout.parts if part.num_bytes]
        return dict(zip(keys, self._targets[memory.index_of(step)], strict=True))

    def is_locked(self, step: int) -> bool:
        """Whether a GPU reads what is stored of `step` by itself."""
        return self.memory is not None and self.memory.index_of(step) in self._locked

    def give_back(self) -> None:
        """The memory, to everybody: the keeper holds none any more, but for what was sealed of other parts before."""
        self.leave()
        with contextlib.suppress(PhalanxError):  # then there is no keeper that holds any
            Memory.attach(self.place, (), BUFFERS_MIN, self._idle_s).leave()

    def ride(self, save: Persist) -> None:
        """The next snapshot shall be written to durable storage."""
        self._riding = save

    def take(self, step: int, generation: int, held: Held, note: str = "") -> bool:
        """Begins to copy the state after `step`, of the parts for which there is memory. False when every segment is in use.

        Waits for the copy before this one. Raises Bug when there is no room for one that has to be saved.
        """
        self.wait()
        memory, riding = self.memory, self._riding
        draft = memory.begin(step, generation) if memory is not None else None
        if memory is None or draft is None:
            if riding is not None:
                raise Bug("the room that was there for a save is gone")
            return False
        self._riding = None
        sources = [tensor.contiguous().reshape(-1).view(torch.uint8) for part, tensor in held if part.num_bytes]
        copies = list(zip(self._targets[draft.segment], sources, strict=True))
        first = None if draft.segment in self._locked else lambda: self._lock(memory, draft.segment)
        self._beside.start(copies, lambda: self._sealed(memory, draft, note, riding), first)
        return True

    def wait(self) -> float:
        """Until the copy under way, if any, is sealed; for how many seconds."""
        return self._beside.finish()

    def before_change(self) -> float:
        """Called before the state is changed: the calling thread waits, as in `wait`, on a GPU too."""
        return self._beside.before_change()

    def hear(self, wait_s: float = 0.0) -> None:
        """What the keeper says, for whoever asks for `news`; waits for the first of it."""
        if self.memory is None:
            time.sleep(wait_s)
        for one in self.memory.news(wait_s) if self.memory is not None else []:
            match one:
                case Replicated(step=step, generation=generation):
                    self.replicated, self._complained = (generation, step), False
                case NotReplicated(step=step, reason=reason):
                    self.refused = step
                    if not self._complained:
                        _log.warning("the state after step %d has no replica: %s; newer ones are tried", step, reason)
                    self._complained = True
                case _:
                    self._told.append(one)

    def news(self, wait_s: float = 0.0) -> list[News]:
        """What has become of saves since the last time; waits up to `wait_s` for the first of it."""
        self.hear(wait_s if not self._told else 0.0)
        return [self._told.popleft() for _ in range(len(self._told))]

    def bring(self, peer: Peer, step: int, buffers: int, generation: int | None = None) -> None:
        """Has the snapshot of `step` and `generation` fetched from another keeper into memory of this place, for `buffers` or for
        as many fewer as there is room for. Raises NotFound, SetupError."""
        self.leave()
        while True:
            try:
                self._use(Memory.fetch(self.place, peer, step, buffers, self._idle_s, generation))
                return
            except SetupError as error:
                if error.field != TOO_LITTLE or buffers <= BUFFERS_MIN:
                    raise
            buffers -= 1

    def close(self) -> None:
        """Ends the keeper too, and gives the memory back."""
        self._let_go()
        if self.memory is not None:
            self.memory.close()
            self.memory = None
        self._beside.close()

    def leave(self) -> None:
        """Ends nothing: the keeper goes on, and waits for whoever comes next."""
        self._let_go()
        if self.memory is not None:
            self.memory.leave()
            self.memory = None

    def _let_go(self) -> None:
        self.rest()
        self._unlock()
        self._targets = []

    def _unlock(self) -> None:
        self._locks.release()
        self._locked.clear()

    def _use(self, memory: Memory) -> None:
        self.memory, self._num_sealed = memory, 0
        self._targets = [[torch.frombuffer(one, dtype=torch.uint8) for one in views] for views in memory.views()]

    def _lock(self, memory: Memory, index: int) -> None:
        """In the copying thread."""
        if index not in self._locked and not self.place.scratch:
            self._locked.add(index)
            whole = memory.whole_segments()[index]
            if self._device.type != "cpu":
                map_now(whole)
            self._locks.lock(torch.frombuffer(whole, dtype=torch.uint8))

    def _sealed(self, memory: Memory, draft: Draft, note: str, riding: Persist | None) -> None:
        """In the copying thread. A keeper that is gone is replaced here, beside training, and not when it is needed."""
        draft.seal(note)
        try:
            self._num_sealed += 1
            if self._num_sealed == _DROP_AT and not self.keeps_former:
                memory.drop_former()
            if riding is not None:
                memory.persist(draft.step, riding)
            else:
                memory.repair()
            self.sealed_then(memory, draft.step)
        except PhalanxError as error:
            if riding is not None:
                self.unsaved.append((draft.step, reason_of(error)))
            _log.warning("the keeper of this rank's snapshots could not be told of step %d: %s", draft.step, reason_of(error))
