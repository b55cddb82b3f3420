"""The cache of a node: what one process asks of it and does for it. `index` decides together with the other processes.

Whoever asks first for a unit fetches it; the others wait for that, or for its end. Units that are held are not removed.
"""

import os
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.core.units import show_size
from phalanx.storage.atomic import refused
from phalanx.storage.cache import needs
from phalanx.storage.cache.entry import entered
from phalanx.storage.cache.files import CacheFiles
from phalanx.storage.cache.index import Taken, Unit
from phalanx.storage.cache.origin import Origin, Waited, Watch

FETCHES_AT_ONCE: Final = 8
AHEAD_AT_ONCE: Final = 2 * FETCHES_AT_ONCE
"""Groups that wait in line for somebody who needs nothing yet: whoever needs something waits behind no more than these."""

ROOM_PATIENCE_S: Final = 300.0
_POLL_S: Final = 0.005
_AHEAD_POLL_S: Final = 0.2
_TELL_S: Final = 0.1

Ahead = Literal["begun", "full", "busy"]
"""full: there is no room for it. busy: enough is on its way; both: ask again later."""


class NodeCache:
    """One a process and folder. Methods raise StoreUnavailable where the folder's disk is full or fails, SetupError where the limit
    is too small, and what `Origin.read` raises. Any thread may call them. closing: set once it is to be closed."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder = folder
        self._changed = threading.Condition()
        self._failed: set[Unit] = set()
        with self._told(), ExitStack() as undo:
            self._files = CacheFiles(folder)
            self._users, self._index = entered(self._files)
            undo.callback(os.close, self._users)
            undo.callback(self._index.close)
            self.limit_bytes = limit_bytes or (shutil.disk_usage(folder).free + self._index.held_bytes()) // 2
            with self._index.alone():
                self.process = self._index.enter(self.limit_bytes)
                self._life = self._files.live(self.process)
                undo.callback(os.close, self._life)
            self._bury_ended()
            self._index.shrink(self._files.remove)
            undo.pop_all()
        self._held: Counter[Unit] = Counter()
        self._unreleased: set[Unit] = set()
        self._kept_bytes = 0
        self._closed = False
        self.closing = threading.Event()
        self._due: dict[object, Mapping[int, int]] = {}
        self._spares: list[Callable[[], object]] = []
        self._ahead = threading.BoundedSemaphore(AHEAD_AT_ONCE)
        self._pool = ThreadPoolExecutor(FETCHES_AT_ONCE, "data-cache")

    def close(self) -> None:
        """Gives back all that this process holds. Who reads from a store for it tries no longer."""
        self.closing.set()
        self._pool.shutdown(cancel_futures=True)
        with self._changed, self._told():
            self._leave(self.process)
            self._closed = True
        self._close_files()
        self._index.close()

    def abandon(self) -> None:
        """In a process that was forked from one that uses the cache: its parent's life, leases and index are not this one's."""
        self._closed = True
        self._changed = threading.Condition()  # a thread that is not here may have had the other one
        self._close_files()

    def _close_files(self) -> None:
        os.close(self._life)
        os.close(self._users)

    @property
    def held_bytes(self) -> int:
        """Of all processes' units."""
        return self._index.held_bytes()

    def fair_bytes(self) -> int:
        """What a process may keep, or ask for ahead, without taking others' room: half the limit divided by all."""
        return self._index.limit_bytes() // (2 * max(1, len(self._index.processes())))

    def call_when_full(self, give_up: Callable[[], object]) -> None:
        """Called before somebody here waits for room: releases what is held for convenience."""
        self._spares.append(give_up)

    def check_limit(self, size_bytes: int, what: str) -> None:
        """Raises SetupError where so much can never be in the cache at once."""
        if size_bytes > (limit := self._index.limit_bytes()):
            fix = f"{what} {size_bytes} bytes; raise the limit of the cache {self.folder} above that"
            raise SetupError("data cache limit", f"{limit} bytes", fix)

    def path(self, unit: Unit) -> Path:
        """Of its file, once it is held."""
        return self._files.path(unit)

    def key(self, unit: Unit) -> int:
        return self._index.key(unit)

    def publish(self, owner: object, due: Mapping[int, int]) -> None:
        """In how many steps the units with these keys will be needed; replaces what this owner said before."""
        with self._changed:
            self._due[owner] = due
            merged: dict[int, int] = {}
            for one in self._due.values():
                for key, steps in one.items():
                    merged[key] = min(steps, merged.get(key, steps))
        with self._told():
            self._index.publish(self.process, needs.packed(merged))
            self._bury_ended()  # what the dead needed keeps nobody's room

    def hold(self, units: Sequence[Unit], origin: Origin, watch: Watch | None = None) -> None:
        """Until they are released as often, these units are there; waits for that. What it raises leaves nothing held."""
        if self._closed:
            fix = "is closed, or was opened before this process was forked; open the data in this process"
            raise SetupError("data cache", str(self.folder), fix)
        self.check_limit(self._kept_bytes + sum(unit.size_bytes for unit in set(units)), "what is read at once has")
        began = time.monotonic()
        while True:
            taken: Taken | None = self._take_when_possible(units, began, watch)
            try:
                while taken is not None:
                    if self._have(taken, units, origin, watch):
                        return
                    taken = self._take(units, counted=True)
            except BaseException:
                self.release(units)
                raise
            self.release(units)  # who waits for room holds nothing: all could wait for one another

    def keep(self, unit: Unit, origin: Origin) -> None:
        """Holds it as long as this process uses the cache."""
        self.hold([unit], origin)
        self._kept_bytes += unit.size_bytes

    def release(self, units: Sequence[Unit]) -> None:
        """What is not held any more may be removed."""
        with self._changed, self._told():
            self._held.subtract(units)
            last = [unit for unit in set(units) if self._held[unit] <= 0]
            for unit in last:
                del self._held[unit]
            if self._closed:
                return
            self._unreleased.update(last)
            self._index.release(self.process, [unit for unit in self._unreleased if unit not in self._held])
            self._unreleased.clear()

    def fetch_ahead(self, group: Sequence[Unit], origin: Origin, beyond: int) -> Ahead:
        """Begins to fetch those of a group that nobody has, and removes nothing for it that is needed within `beyond` steps."""
        if not self._ahead.acquire(timeout=_AHEAD_POLL_S):
            return "busy"
        try:
            with self._told():
                taken = self._index.take(self.process, group, self._files.remove, lease=False, beyond=beyond)
            parts = origin.groups(taken.mine) if taken else ()
            futures = [self._pool.submit(self._fetch_group, part, origin) for part in parts]
        except BaseException:
            self._ahead.release()
            raise
        if futures:
            futures[-1].add_done_callback(lambda _: self._ahead.release())
        else:
            self._ahead.release()
        return "full" if taken is None else "begun"

    @contextmanager
    def opened(self, unit: Unit) -> Iterator[int]:
        """The file of a unit that is held. Raises FileNotFoundError where a killed process has removed it: `refuse` it then."""
        descriptor = os.open(self._files.path(unit), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def refuse(self, unit: Unit) -> None:
        """Its file is missing or not what it should be: whoever holds it next fetches it again."""
        with self._told():
            self._index.forget([unit], self._files.remove)

    def _have(self, taken: Taken, units: Sequence[Unit], origin: Origin, watch: Watch | None) -> bool:
        """Whether all of them are there, once what was to be fetched is."""
        waited = Waited("store", watch)
        self._fetch(taken.mine, origin, waited)
        self._wait_for([unit for unit, _ in taken.others], waited)
        if taken.others:
            return False  # whoever fetched them may have failed
        lost = [unit for unit in units if not self._files.path(unit).exists()]
        if lost:  # removed by a process that was killed before it could say so
            self._index.forget(lost, self._files.remove)
        return not lost

    def _take_when_possible(self, units: Sequence[Unit], began: float, watch: Watch | None) -> Taken:
        waited = Waited("cache", watch)
        while (taken := self._take(units)) is None:
            for give_up in self._spares:
                give_up()
            self._bury_ended()
            if time.monotonic() > began + ROOM_PATIENCE_S:
                raise StoreUnavailable(
                    f"{self.folder}: what is being read has held all of this cache's {show_size(self._index.limit_bytes())} for "
                    f"{ROOM_PATIENCE_S:.0f} s; raise its limit"
                )
            with self._changed:
                self._changed.wait(_POLL_S)
            waited.tell()
        waited.tell()
        return taken

    def _take(self, units: Sequence[Unit], counted: bool = False) -> Taken | None:
        """counted: as held here already. What is not taken must not be: others' release would leave it held by nobody."""
        with self._changed, self._told():
            taken = self._index.take(self.process, units, self._files.remove, lease=True)
            if taken is not None and not counted:
                self._held.update(units)
            return taken

    def _fetch(self, units: Sequence[Unit], origin: Origin, waited: "Waited") -> None:
        """Raises the first error once all have ended; who waits no longer leaves them to end by themselves."""
        futures: list[Future[None]] = [self._pool.submit(self._fetch_group, group, origin) for group in origin.groups(units)]
        while wait(futures, _TELL_S).not_done:
            waited.tell()
        waited.tell()
        for future in futures:
            future.result()

    def _fetch_group(self, group: Sequence[Unit], origin: Origin) -> None:
        """Of units that are this process's to fetch."""
        try:
            with self._told():
                for unit, pieces in zip(group, origin.read(group), strict=True):
                    self._files.write(unit, pieces, self.process)
                self._index.fetched(group)
        except BaseException:
            with self._changed:
                self._failed.update(group)
            self._forget_failed()
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def _forget_failed(self) -> None:
        """What could not be fetched is anybody's to fetch; said again where the index could not be written, or who waits for us
        would wait for ever."""
        with self._changed:
            failed = list(self._failed)
            if failed:
                with self._told():
                    self._index.forget(failed, self._files.remove, self.process)
                self._failed.clear()

    def _wait_for(self, units: Sequence[Unit], waited: "Waited") -> None:
        """Until nobody fetches them any more."""
        looks = 0
        while fetching := self._index.fetching(units):
            looks += 1
            if looks % 16 == 0:
                self._bury_ended()
            units = [unit for unit, _ in fetching]
            with self._changed:
                self._changed.wait(_POLL_S)
            waited.tell()

    def _bury_ended(self) -> None:
        """Takes over from processes that were killed, and from fetches that failed."""
        self._forget_failed()
        for process in self._index.processes():
            if process != self.process and self._files.has_ended(process):
                self._leave(process)

    def _leave(self, process: int) -> None:
        with self._index.alone():
            self._index.leave(process, lambda unit: self._files.settle(unit, process))
            self._files.bury(self._index.processes())

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the disk says, as one of our errors."""
        try:
            yield
        except OSError as error:
            raise refused(self.folder, error) from error
        except sqlite3.Error as error:
            raise StoreUnavailable(
                f"{self.folder}: the cache's index cannot be written ({error}); free space or try again"
            ) from error
