"""A keeper's saves: shards one after the other, each read back before it is announced; commits beside them, since they wait.

What goes wrong with a place is tried again within the save's patience; older checkpoints are not touched by it.
"""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import Final

from phalanx.core.errors import CheckpointError
from phalanx.job.checkpoint import commit, manifest, shard_file
from phalanx.job.checkpoint.commit import UNWRITABLE, Content, Saved, SaveFailed, backoff_s, reason_of
from phalanx.job.checkpoint.fence import Holder
from phalanx.job.checkpoint.folder import Folder, folder_at
from phalanx.job.checkpoint.keeper.messages import Committed, GivenUp, News, Persist, Troubled, Written
from phalanx.job.checkpoint.keeper.outage import refuse_if_asked
from phalanx.job.checkpoint.retention import remove, superfluous
from phalanx.job.checkpoint.segment import Segment
from phalanx.job.checkpoint.shard_file import Damaged, ShardIndex

HURRY_S: Final = 6.0
"""How long a keeper that shall end waits for other ranks' shards, which their keepers are writing now or never."""
_SLICE_S: Final = 0.2
_COMMITS_MAX: Final = 8
"""Saves that wait for other ranks' shards at a time; more segments than that no rank has."""


class Saves:
    """`tell` is called from other threads."""

    def __init__(
        self, tell: Callable[[News], None], clock_s: Callable[[], float], pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._tell = tell
        self._clock_s = clock_s
        self._pause = pause
        self._lock = Lock()
        self._running: dict[str, Persist] = {}  # by the key's save
        self._troubled: set[str] = set()  # of which it was said
        self._generation = 0
        self._asked = 0
        self._order: dict[str, int] = {}  # by the key's save, as they were asked for
        self._committed = (0, 0)  # the last in that order, and its step
        self._hurried_s: float | None = None
        self._writer = ThreadPoolExecutor(1, "shard")
        self._committer = ThreadPoolExecutor(_COMMITS_MAX, "commit")

    @property
    def running(self) -> tuple[Persist, ...]:
        with self._lock:
            return tuple(self._running.values())

    def begin(self, asked: Persist, segment: Segment | None) -> None:
        """segment: sealed, and not to be changed before `Written`. One that is under way already is not begun again."""
        with self._lock:
            if asked.key.save in self._running:
                return
            self._asked += 1
            self._order[asked.key.save] = self._asked
            self._running[asked.key.save] = asked
            self._generation = max(self._generation, asked.key.generation)
        if segment is not None:
            self._writer.submit(self._guarded, asked, lambda: self._write(asked, segment))
        else:
            self._committer.submit(self._guarded, asked, lambda: self._commit(asked))

    def hurry(self) -> None:
        """From here on nothing is tried again, and waits are short."""
        if self._hurried_s is None:
            self._hurried_s = self._clock_s()

    @property
    def is_hurried(self) -> bool:
        return self._hurried_s is not None

    def segments_are_gone(self) -> None:
        """There are others by now: whoever asks what is busy shall not take those for them."""
        with self._lock:
            self._running = {save: replace(asked, segment=None) for save, asked in self._running.items()}

    def _guarded(self, asked: Persist, work: Callable[[], None]) -> None:
        try:
            work()
        except CheckpointError as error:  # a newer attempt's or generation's right to write
            self._end(asked, GivenUp(key=asked.key, reason=error.sentence(), fenced=True))
        except Exception as error:  # noqa: BLE001 (the rank hears of it; this thread has others to serve)
            self._end(asked, GivenUp(key=asked.key, reason=f"{type(error).__name__}: {error}"))

    def _write(self, asked: Persist, segment: Segment) -> None:
        """A snapshot that cannot be written makes way for a newer one: what is worth saving is what is lost least of."""
        folder = folder_at(asked.root) / manifest.folder_name(asked.key.step)
        until_s, pauses = self._clock_s() + asked.patience_s, backoff_s()
        shard = _Shard(folder, asked, segment)
        while reason := shard.written():
            newer = shard.overwritten() or self._newer(asked)
            if newer or self._clock_s() >= until_s or self._is_old(asked) or self.is_hurried:
                commit.announce_failure(folder, asked.key, asked.rank, newer or reason)
                self._end(asked, GivenUp(key=asked.key, reason=f"{newer}: {reason}" if newer not in ("", reason) else reason))
                return
            self._say_trouble(asked, reason)
            self._rest(next(pauses), lambda: bool(self.is_hurried or self._newer(asked)))
        if asked.content is None:
            self._end(asked, Written(key=asked.key))
            return
        waiting = replace(asked, segment=None)
        with self._lock:
            self._running[asked.key.save] = waiting
        self._tell(Written(key=asked.key))
        self._committer.submit(self._guarded, waiting, lambda: self._commit(waiting))

    def _rest(self, pause_s: float, is_over: Callable[[], bool]) -> None:
        until_s = self._clock_s() + pause_s
        while not is_over() and (left_s := until_s - self._clock_s()) > 0:
            self._pause(min(left_s, _SLICE_S))

    def _newer(self, asked: Persist) -> str:
        """Whether a newer snapshot waits to be written: in words, or ''."""
        with self._lock:
            after = self._order[asked.key.save]
            newer = [one for save, one in self._running.items() if one.segment is not None and self._order[save] > after]
        return f"step {newer[-1].key.step} is saved instead" if newer else ""

    def _commit(self, asked: Persist) -> None:
        content = asked.content
        if not isinstance(content, Content):
            raise TypeError("only rank 0's keeper commits")
        root = folder_at(asked.root)
        if reason := self._refused(asked):
            self._end(asked, GivenUp(key=asked.key, reason=reason))
            return
        saved = commit.commit_when_whole(
            root / manifest.folder_name(asked.key.step), asked.key, content, patience_s=asked.patience_s,
            clock_s=self._clock_s, pause=self._pause, given_up=lambda: self._is_old(asked),
            troubled=lambda reason: self._say_trouble(asked, reason),
        )  # fmt: skip
        match saved:
            case Saved(step=step):
                self._committed = max(self._committed, (self._order.get(asked.key.save, 0), step))
                self._retain(root, asked)
                self._end(asked, Committed(key=asked.key, saved=saved))
            case SaveFailed(reason=reason):
                self._end(asked, GivenUp(key=asked.key, reason=reason))

    def _refused(self, asked: Persist) -> str:
        """Waits while a fault that was asked for keeps the store away, as for a real one; why it gave up, or ''."""
        until_s, pauses = self._clock_s() + asked.patience_s, backoff_s()
        while True:
            try:
                _refuse_if_asked(asked)
            except UNWRITABLE as error:
                reason = reason_of(error)
            else:
                return ""
            if self._clock_s() >= until_s or self._is_old(asked) or self.is_hurried:
                return reason
            self._say_trouble(asked, reason)
            self._pause(next(pauses))

    def _retain(self, root: Folder, asked: Persist) -> None:
        """What looks left over may by now be a newer attempt's, which is saving that step: the fence is looked at once more."""
        with contextlib.suppress(CheckpointError, *UNWRITABLE):
            doomed = superfluous(root, asked.key.step, asked.keep, saving=[one.key.step for one in self.running])
            manifest.check_fence(root, Holder(attempt=asked.key.attempt, generation=asked.key.generation))
            remove(doomed)

    def _is_old(self, asked: Persist) -> str:
        """Why the save is not waited for, or '': ranks of an older generation may have died before they asked for their part."""
        if self._hurried_s is not None and self._clock_s() - self._hurried_s >= HURRY_S:
            return "the attempt has ended"
        if self._order.get(asked.key.save, 0) < self._committed[0]:  # every rank writes in the order in which it was asked
            return f"step {self._committed[1]} was saved meanwhile"
        return "the gang was formed anew" if asked.key.generation < self._generation else ""

    def _say_trouble(self, asked: Persist, reason: str) -> None:
        with self._lock:
            if asked.key.save in self._troubled:
                return
            self._troubled.add(asked.key.save)
        self._tell(Troubled(key=asked.key, reason=reason))

    def _end(self, asked: Persist, news: News) -> None:
        with self._lock:
            self._running.pop(asked.key.save, None)
            self._order.pop(asked.key.save, None)
            self._troubled.discard(asked.key.save)
        self._tell(news)


def _refuse_if_asked(asked: Persist) -> None:
    refuse_if_asked(asked.rank if asked.slot is None else asked.slot)


class _Shard:
    """What of a rank's shard is done: after trouble it goes on from there."""

    def __init__(self, folder: Folder, asked: Persist, segment: Segment) -> None:
        self._folder = folder
        self._asked = asked
        self._segment = segment
        self._index: ShardIndex | None = None

    def overwritten(self) -> str:
        """Whether somebody took the segment while it was needed, as a successor of its rank who does not know of this save: in
        words, or ''."""
        if self._index is not None:
            return ""
        seal, key = self._segment.seal(), self._asked.key
        same = seal is not None and (seal.step, seal.generation) == (key.step, key.generation)
        return "" if same else "its snapshot was overwritten"

    def written(self) -> str:
        """Writes it, reads it back, announces it. Why not, or ''."""
        try:
            _refuse_if_asked(self._asked)
            if self._index is None:
                pairs = self._segment.pairs(self._asked.own)
                index = shard_file.write(self._folder, pairs, key=self._asked.key, rank=self._asked.rank)
                if reason := self.overwritten():
                    return reason
                self._index = index
            shard_file.verify(self._folder, self._index)
            commit.announce(self._folder, self._index)
        except Damaged as error:
            self._index = None
            return reason_of(error)
        except UNWRITABLE as error:
            return reason_of(error)
        return ""
