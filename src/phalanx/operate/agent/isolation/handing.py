"""Gives a job's files to the user that its next attempt runs as. The trees are a job's doing, and the agent is root: each step goes
through a descriptor of the folder above and follows no link.
"""

import os
import stat
from collections.abc import Container
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError

DEPTH_MAX: Final = 100
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hand_over(top: Path, uid: int, pool: Container[int], own: bool = True, close: bool = False) -> None:
    """Everything in `top`, and it itself, that was of another user of the pool, or (`own`) of this process's. What is anybody
    else's stays so, and so does a file of this process's that has a second name: it may be one of the machine's. close: the user's
    folders let in nobody else from here on, by descriptors that somebody still holds neither.

    Raises OSError, where `top` is a link among others; SetupError for folders too deep.
    """
    handle = os.open(top, _FOLDER)
    try:
        given = _Given(uid, pool, os.geteuid() if own else None, close)
        if given.takes(os.fstat(handle)):
            os.fchown(handle, uid, uid)
        given.closes(handle)
        _walk(handle, given, 1, top)
    finally:
        os.close(handle)


class _Given:
    def __init__(self, uid: int, pool: Container[int], own: int | None, close: bool) -> None:
        self.uid, self._pool, self._own, self._close = uid, pool, own, close

    def takes(self, known: os.stat_result) -> bool:
        if known.st_uid == self.uid:
            return False
        if known.st_uid == self._own:
            return not stat.S_ISREG(known.st_mode) or known.st_nlink == 1
        return known.st_uid in self._pool

    def closes(self, folder: int) -> None:
        known = os.fstat(folder)
        if self._close and known.st_uid == self.uid and known.st_mode & 0o077:
            os.fchmod(folder, stat.S_IMODE(known.st_mode) & 0o700)


def _walk(handle: int, given: _Given, depth: int, top: Path) -> None:
    if depth > DEPTH_MAX:
        raise SetupError("folder", str(top), f"has folders more than {DEPTH_MAX} deep; remove them")
    with os.scandir(handle) as entries:
        for entry in entries:
            known = entry.stat(follow_symlinks=False)
            if given.takes(known):
                os.chown(entry.name, given.uid, given.uid, dir_fd=handle, follow_symlinks=False)
            if stat.S_ISDIR(known.st_mode):
                inner = os.open(entry.name, _FOLDER, dir_fd=handle)
                try:
                    given.closes(inner)
                    _walk(inner, given, depth + 1, top)
                finally:
                    os.close(inner)
