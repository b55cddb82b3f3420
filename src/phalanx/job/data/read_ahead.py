"""Units of the steps to come, fetched into the node's cache by a thread, in the order in which they are needed.

It tells the cache what is needed when, so that what it holds for this run is removed last, and that farthest ahead first.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from phalanx.core.errors import PhalanxError
from phalanx.job.data.shards import Watch
from phalanx.job.data.store_source import UNIT_BYTES
from phalanx.storage.cache.index import Unit
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.cache.origin import Origin


class Stored(Protocol):
    """The shards of a data set in a store, which number their units."""

    @property
    def origin(self) -> Origin: ...

    def units(self, numbers: Sequence[int], watch: Watch | None = None, /) -> list[Unit]:
        """What the cache calls these. watch: told of waits; what it raises ends them."""


Needs = Callable[[int], Iterable[tuple[Stored, Sequence[int]]]]
"""From a step to the units that its samples lie in, by the shards of each data set."""

Place = tuple[Stored, int]
"""A unit, as the shards of a data set number it."""

HORIZON_STEPS: Final = 64
LOOK_STEPS: Final = 8
"""Steps are looked at so many at once, since each look is published."""

_WAIT_S: Final = 0.2


class ReadAhead:
    """From the step `start` on, up to `HORIZON_STEPS` ahead of what was delivered, and half the cache's limit divided by all its
    processes. An error is left to whoever needs the unit."""

    def __init__(self, cache: NodeCache, needs: Needs, start: int, stop: int | None) -> None:
        """cache: through which all of these shards are read."""
        self._view = _View(cache, needs, start, stop)
        self._thread = threading.Thread(target=self._view.run, name="data-ahead", daemon=True)
        self._close = weakref.finalize(self, _end, self._view, self._thread)
        self._thread.start()

    def delivered(self, step: int) -> None:
        """The next step is this one."""
        self._view.delivered(step)

    def close(self) -> None:
        self._close()


class _View:
    """at: the next step to be delivered. looked: the next one to be looked at."""

    def __init__(self, cache: NodeCache, needs: Needs, start: int, stop: int | None) -> None:
        self._cache, self._needs, self._stop = cache, needs, stop
        self._at = self._looked = start
        self._closed = False
        self._changed = threading.Condition()
        self._steps: deque[tuple[int, list[Place]]] = deque()
        self._keys: dict[Place, int] = {}
        self._line: deque[tuple[int, Stored, Unit]] = deque()

    def delivered(self, step: int) -> None:
        with self._changed:
            self._at = step
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """The thread's life."""
        while self._goes_on():
            try:
                if self._may_look():
                    self._look()
                if self._line and self._fetch_first():
                    continue
            except Exception:  # noqa: BLE001 -- whoever needs the unit meets the same, and tells it
                self._line.clear()
            self._rest()
        with suppress(PhalanxError):
            self._cache.publish(id(self), {})

    def _goes_on(self) -> bool:
        return not self._closed and (bool(self._line) or self._looked != self._stop)

    def _rest(self) -> None:
        with self._changed:
            at = self._at
            self._changed.wait_for(lambda: self._closed or self._at != at, _WAIT_S)

    def _may_look(self) -> bool:
        while self._steps and self._steps[0][0] < self._at:
            self._steps.popleft()
        size_bytes = len({place for _, places in self._steps for place in places}) * UNIT_BYTES
        ahead = self._looked - self._at
        return self._looked != self._stop and ahead <= HORIZON_STEPS - LOOK_STEPS and size_bytes < self._cache.fair_bytes()

    def _look(self) -> None:
        """At some more steps."""
        end = self._looked + LOOK_STEPS if self._stop is None else min(self._stop, self._looked + LOOK_STEPS)
        found = [
            (step, [(shards, unit) for shards, units in self._needs(step) for unit in units]) for step in range(self._looked, end)
        ]
        seen = {place for _, places in self._steps for place in places}
        fresh = {place: step for step, places in reversed(found) for place in places if place not in seen}
        named = _named(fresh, self._waiting)
        self._keys.update((place, self._cache.key(unit)) for place, unit in named.items())
        self._line.extend((fresh[place], place[0], named[place]) for place in sorted(fresh, key=lambda place: fresh[place]))
        self._steps.extend(found)
        self._looked = end
        self._publish()

    def _waiting(self, *_: object) -> None:
        """Ends a wait that nobody wants any more."""
        if self._closed:
            raise ValueError("the stream is closed")

    def _publish(self) -> None:
        due = {self._keys[place]: max(0, step - self._at) for step, places in reversed(self._steps) for place in places}
        self._keys = {place: self._keys[place] for _, places in self._steps for place in places}
        self._cache.publish(id(self), due)

    def _fetch_first(self) -> bool:
        """Whether one could be begun."""
        step, shards, unit = self._line[0]
        found = self._cache.fetch_ahead([unit], shards.origin, max(0, step - self._at))
        if found == "begun":
            self._line.popleft()
        return found != "full"


def _named(places: Iterable[Place], watch: Watch) -> dict[Place, Unit]:
    """What the cache calls them. watch: told of waits for checksums; what it raises ends them."""
    blocks: dict[Stored, list[int]] = {}
    for shards, block in places:
        blocks.setdefault(shards, []).append(block)
    return {(shards, at): unit for shards, ats in blocks.items() for at, unit in zip(ats, shards.units(ats, watch), strict=True)}


def _end(view: _View, thread: threading.Thread) -> None:
    view.close()
    if thread is not threading.current_thread():
        thread.join()
