"""A PID namespace for one attempt's ranks, where the kernel permits it: when its first process ends, everything in it does.

That first process, here called init, dies with the shim (PDEATHSIG), and the kernel then kills whatever was started inside, be it
in a session of its own, with parents that are gone and an environment that was cleared. Ranks stay children of the shim and are
named outside by the numbers that `ps` shows. Inside they have other numbers, so each gets its own /proc to agree with them.

Standard library only: the shim imports this before anything of ours is on its path. Needs CAP_SYS_ADMIN.
"""

import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
PR_SET_NAME: Final = 15
CLONE_NEWNS: Final = 0x00020000  # linux/sched.h
CLONE_NEWPID: Final = 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SLAVE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x80000  # linux/mount.h
NAME: Final = b"phalanx-init"

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def set_name(name: bytes) -> None:
    """What `ps` calls this process: 15 bytes at most."""
    _libc.prctl(PR_SET_NAME, name, 0, 0, 0)


def enter(prepare: Callable[[], None] | None = None) -> int | None:
    """From here on this process's children live in a new PID namespace; the pid of its init, or None where that is not permitted
    and nothing has changed. This process must have one thread; the first child that it forks from here on is the init, which does
    `prepare` before anything else; `own_proc` where none is given."""
    ours = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.unshare(CLONE_NEWPID) != 0:
            return None
        init = _start_init(prepare or own_proc)
        if init is None and _libc.setns(ours, CLONE_NEWPID) != 0:
            raise OSError(ctypes.get_errno(), "cannot come back from a PID namespace")
        return init
    finally:
        os.close(ours)


def own_proc() -> None:
    """In a child just forked into the namespace: a /proc that shows it. What was mounted inside the old one, such as a container's
    masks, stays where it was, and later mounts of the machine still arrive. Raises OSError."""
    _succeed(_libc.unshare(CLONE_NEWNS), "unshare")
    _succeed(_libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None), "mount / as slave")
    mount_proc()


def mount_proc() -> None:
    """That alone, in a mount namespace of one's own. Raises OSError."""
    kept = [(os.open(place, os.O_PATH | os.O_CLOEXEC), place) for place in _mounts_below_proc()]
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _succeed(_libc.mount(b"proc", b"/proc", b"proc", flags, None), "mount /proc")
    for opened, place in kept:
        source = f"/proc/self/fd/{opened}".encode()
        _succeed(_libc.mount(source, place, None, ctypes.c_ulong(MS_BIND | MS_REC), None), "mount inside /proc")
        os.close(opened)


def _start_init(prepare: Callable[[], None]) -> int | None:
    """None when it could not be started, or cannot prepare itself."""
    told, tell = os.pipe()
    try:
        try:
            init = os.fork()
        except OSError:
            return None
        if init == 0:
            _be_init(told, tell, prepare)
        os.close(tell)
        tell = -1
        if os.read(told, 1) == b"y":
            return init
        os.waitpid(init, 0)
        return None
    finally:
        os.close(told)
        if tell >= 0:
            os.close(tell)


def _be_init(told: int, tell: int, prepare: Callable[[], None]) -> None:
    """Never returns. The parent is outside, so getppid() tells nothing: a shim that is gone already no longer reads."""
    try:
        os.close(told)
        die_with_parent()
        set_name(NAME)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which never ends an init
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come to us, and the kernel collects them
        prepare()
        os.write(tell, b"y")
        os.close(tell)
        while True:
            signal.pause()
    finally:
        os._exit(1)


def _mounts_below_proc() -> Sequence[bytes]:
    """Mount points under /proc, those within others left out: they come along. An automounter's are of no use outside its own."""
    outer: list[bytes] = []
    for place in sorted(set(_mount_points(Path("/proc/self/mountinfo").read_bytes()))):
        if place.startswith(b"/proc/") and not any(place.startswith(b"%s/" % known) for known in outer):
            outer.append(place)
    return outer


def _mount_points(mountinfo: bytes) -> Iterator[bytes]:
    """Those of proc(5), section /proc/pid/mountinfo."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(b" - ")
        if not after.startswith(b"autofs "):
            yield re.sub(rb"\\([0-7]{3})", lambda escaped: bytes([int(escaped[1], 8)]), before.split(b" ")[4])


def _succeed(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
