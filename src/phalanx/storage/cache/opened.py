"""The caches that this process uses: one of each folder, left when it ends, and entered anew by what is forked from it."""

import atexit
import os
import threading
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError
from phalanx.storage.cache.node_cache import NodeCache

_opened: Final[dict[Path, NodeCache]] = {}
_of_parents: Final[list[NodeCache]] = []
"""Never closed: a connection of SQLite that is carried through a fork must not be used, not even to end it."""

_lock = threading.Lock()


def cache_at(folder: Path, limit_bytes: int | None = None) -> NodeCache:
    """The cache in a folder, which is made where it is not there; without a limit, up to half of what the disk has for it.

    Raises SetupError, also for another limit than this process uses it with, and StoreUnavailable.
    """
    with _lock:
        cache = _opened.get(folder)
        if cache is None:
            cache = _opened[folder] = NodeCache(folder, limit_bytes)
        if limit_bytes not in (None, cache.limit_bytes):
            raise SetupError("data cache limit", limit_bytes, f"this process uses the cache {folder} with {cache.limit_bytes}")
        return cache


def _leave_all() -> None:
    while _opened:
        _opened.popitem()[1].close()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    for cache in _opened.values():
        cache.abandon()
    _of_parents.extend(_opened.values())
    _opened.clear()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_forked)
