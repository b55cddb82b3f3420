"""The kernel's calls by which one job is kept from another. Standard library only: the shim imports this.

Each raises OSError, which names the call, where it is refused. They are of the calling thread or process, as the kernel has it.
"""

import ctypes
import os
import struct
from typing import Final

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000  # linux/sched.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 0x1, 0x2, 0x4, 0x8, 0x20, 0x1000  # linux/mount.h
MS_REC, MS_SLAVE = 0x4000, 0x80000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 22, 38, 24  # linux/prctl.h
_SECCOMP_MODE_FILTER: Final = 2
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446  # of every architecture
_SCOPE_ABSTRACT_AND_SIGNALS: Final = 0x3  # linux/landlock.h, LANDLOCK_SCOPE_*
_CAPABILITIES: Final = 64

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _done(_libc.unshare(flags), "unshare")


def enter(namespace: int, flag: int) -> None:
    """By its descriptor."""
    _done(_libc.setns(namespace, flag), "setns")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    _done(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), f"mount {target}")


def bind(source: str, target: str, read_only: bool = False) -> None:
    """One file or folder, without what is mounted below it: that would bring along what is hidden there."""
    mount(source, target, None, MS_BIND)
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | (MS_RDONLY if read_only else 0))


def become(uid: int) -> None:
    """That user and its group, and no other, for good; raises too where it is not taken."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (uid, uid, uid) or os.getgroups():
        raise OSError(f"the user {uid} was not taken")


def drop_bounds() -> None:
    """No program started from here on has a capability; before `become`, which takes the right to do so."""
    for capability in range(_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the first that this kernel does not know


def no_new_privileges() -> None:
    _done(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def scope() -> None:
    """From here on this process and its children reach no abstract socket but those made among them, and signal nobody else."""
    attributes = struct.pack("QQQ", 0, 0, _SCOPE_ABSTRACT_AND_SIGNALS)  # struct landlock_ruleset_attr
    ruleset = _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    _done(min(ruleset, 0), "landlock")
    try:
        _done(_libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ruleset, ctypes.c_uint32(0)), "landlock")
    finally:
        os.close(ruleset)


def refuse_calls(program: bytes) -> None:
    """A filter as `calls` makes it; for good, and of all that this process starts."""
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))  # struct sock_fprog
    _done(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0), "seccomp")


def _done(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
