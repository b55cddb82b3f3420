"""Makes the segments: memory without a name, or a file without one, all of it taken at once, and only where that much is free."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError
from phalanx.job.checkpoint.host_memory import free_bytes
from phalanx.job.checkpoint.nameless import free_on_disk, nameless
from phalanx.job.checkpoint.segment import Layout

TOO_LITTLE: Final = "checkpoint memory"
"""The field of the SetupError that tells it."""
SPARE_BYTES: Final = 256 * 1024 * 1024
"""Left to everybody else on the machine, the ranks' own stacks and file buffers among them."""
_AT_ONCE_BYTES: Final = 1 << 30
_LOOK_S: Final = 0.02


class Unwanted(Exception):
    """Nobody wants the memory any more."""


def make_segments(
    folder: Path,
    layout: Layout,
    buffers: int,
    free: Callable[[], int] = free_bytes,
    is_wanted: Callable[[], bool] = lambda: True,
    scratch: str = "",
) -> list[int]:
    """Descriptors of `buffers` segments. folder: shared by the keepers of a node, which take memory one after the other. is_wanted:
    asked again and again, by several threads. scratch: a folder on whose disk they shall lie; '' for in memory.

    Raises SetupError naming the bytes needed and free, Unwanted.
    """
    needed = layout.size_bytes * buffers
    made: list[int] = []
    with _alone(folder, is_wanted):
        there = room(scratch, free)
        if needed + SPARE_BYTES > there:
            raise _too_little(needed, buffers, there, scratch)
        try:
            made.extend(_descriptor(f"phalanx-snapshot-{index}", scratch) for index in range(buffers))
            with ThreadPoolExecutor(buffers) as pool:  # the kernel clears pages on one core a segment
                list(pool.map(lambda descriptor: _take(descriptor, layout.size_bytes, is_wanted, not scratch), made))
        except (OSError, Unwanted) as error:
            for descriptor in made:
                os.close(descriptor)
            if isinstance(error, Unwanted):
                raise
            raise _too_little(needed, buffers, there, scratch, f" ({error.strerror})") from error
    return made


def room(scratch: str, free: Callable[[], int]) -> int:
    """Free bytes where segments shall lie; none on a disk that is not there."""
    if not scratch:
        return free()
    with contextlib.suppress(OSError):
        return free_on_disk(Path(scratch))
    return 0


def _descriptor(name: str, scratch: str) -> int:
    if scratch:
        return nameless(Path(scratch))
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _take(descriptor: int, size_bytes: int, is_wanted: Callable[[], bool], is_memory: bool) -> None:
    """Now: a snapshot under way must not be what runs the node out of it. is_memory: a file of a disk has no seals."""
    for start in range(0, size_bytes, _AT_ONCE_BYTES):
        if not is_wanted():
            raise Unwanted
        os.posix_fallocate(descriptor, start, min(_AT_ONCE_BYTES, size_bytes - start))
    if is_memory:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


@contextlib.contextmanager
def _alone(folder: Path, is_wanted: Callable[[], bool]) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not _locked(lock):
            if not is_wanted():
                raise Unwanted
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _too_little(needed: int, buffers: int, there: int, scratch: str, why: str = "") -> SetupError:
    where, what = (f"in {scratch}", "make room there") if scratch else ("of host memory", "give the job more memory")
    fix = (
        f"{buffers} snapshots of this rank's state need {needed} bytes {where}, and {there} are free{why}; "
        f"{what}, or more ranks so that each has less of the state"
    )
    return SetupError(TOO_LITTLE, f"{needed} bytes", fix)
