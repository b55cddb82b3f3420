"""Makes the segments: memory without a name, all of it taken at once, and only where that much is free."""

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
) -> list[int]:
    """Descriptors of `buffers` segments. folder: shared by the keepers of a node, which take memory one after the other. is_wanted:
    asked again and again, by several threads.

    Raises SetupError naming the bytes needed and free, Unwanted.
    """
    needed = layout.size_bytes * buffers
    made: list[int] = []
    with _alone(folder, is_wanted):
        there = free()
        if needed + SPARE_BYTES > there:
            raise _too_little(needed, buffers, there)
        try:
            made.extend(_descriptor(f"phalanx-snapshot-{index}") for index in range(buffers))
            with ThreadPoolExecutor(buffers) as pool:  # the kernel clears pages on one core a segment
                list(pool.map(lambda descriptor: _take(descriptor, layout.size_bytes, is_wanted), made))
        except (OSError, Unwanted) as error:
            for descriptor in made:
                os.close(descriptor)
            if isinstance(error, Unwanted):
                raise
            raise _too_little(needed, buffers, there, f" ({error.strerror})") from error
    return made


def _descriptor(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _take(descriptor: int, size_bytes: int, is_wanted: Callable[[], bool]) -> None:
    """Now: a snapshot under way must not be what runs the node out of it."""
    for start in range(0, size_bytes, _AT_ONCE_BYTES):
        if not is_wanted():
            raise Unwanted
        os.posix_fallocate(descriptor, start, min(_AT_ONCE_BYTES, size_bytes - start))
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


def _too_little(needed: int, buffers: int, there: int, why: str = "") -> SetupError:
    fix = (
        f"{buffers} snapshots of this rank's state need {needed} bytes of host memory, and {there} are free{why}; "
        f"give the job more memory, or more ranks so that each has less of the state"
    )
    return SetupError(TOO_LITTLE, f"{needed} bytes", fix)
