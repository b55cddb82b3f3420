"""The clock that leases count on: it never goes back, and it goes on while the machine sleeps. Standard library only."""

import contextlib
import ctypes
import os
import struct
import time
from typing import Final

TFD_TIMER_ABSTIME: Final = 1  # linux/timerfd.h; its other flags are those of open

_libc = ctypes.CDLL(None, use_errno=True)


def now_ms() -> int:
    """Milliseconds since this machine was started; comparable between its processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Alarm:
    """A file that becomes readable at a moment of this clock, also when the machine slept through it: what select and epoll count
    on sleeps along."""

    def __init__(self) -> None:
        self._file = _libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "cannot make a timer")

    def fileno(self) -> int:
        return int(self._file)

    def ring_at(self, at_ms: int | None) -> None:
        """In place of what was set before; None for never."""
        seconds, rest_ms = divmod(max(at_ms, 1), 1000) if at_ms is not None else (0, 0)
        when = struct.pack("@llll", 0, 0, seconds, rest_ms * 1_000_000)
        if _libc.timerfd_settime(self._file, TFD_TIMER_ABSTIME, when, None) != 0:
            raise OSError(ctypes.get_errno(), "cannot set a timer")

    def quiet(self) -> None:
        """It rang and was heard."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)

    def close(self) -> None:
        os.close(self._file)
