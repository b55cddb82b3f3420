"""Which system calls a job's processes may not make: a filter for the kernel (seccomp, classic BPF). Pure, standard library only.

Without capabilities most are refused as it is. What is left: a user namespace gives them all back inside, and with them the parts
of the kernel in which most holes were found; keyrings are of a user, and a user of the pool is another job's some day.
"""

import errno
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from phalanx.operate.agent.isolation.kernel import CLONE_NEWUSER

_LOAD, _IS, _ANY_OF, _AT_LEAST, _ANSWER = 0x20, 0x15, 0x45, 0x35, 0x06  # linux/bpf_common.h
_ALLOW: Final = 0x7FFF0000  # linux/seccomp.h
_ERRNO: Final = 0x00050000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # struct seccomp_data; both machines have their low half first
_X32: Final = 0x40000000


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int  # linux/audit.h
    clone: int
    unshare: int
    keys: tuple[int, ...]  # add_key, request_key, keyctl


_CLONE3: Final = 435  # of every architecture; its flags lie in memory, where no filter sees them
_MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(0xC000003E, 56, 272, (248, 249, 250)),
    "aarch64": _Machine(0xC00000B7, 220, 97, (217, 218, 219)),
}


def refusals(machine: str = "") -> bytes:
    """The filter for that machine (`uname -m`), this one where none is named. Raises OSError where none is known for it."""
    machine = machine or os.uname().machine
    known = _MACHINES.get(machine)
    if known is None:
        raise OSError(errno.ENOSYS, f"seccomp: no filter is known for {machine}")
    return b"".join(struct.pack("HBBI", *one) for one in _instructions(known))


def _instructions(machine: _Machine) -> Iterator[tuple[int, int, int, int]]:
    """code, jump if true, jump if false, constant. A call of another architecture is answered as one that does not exist."""
    no_such, no_right = _ERRNO | errno.ENOSYS, _ERRNO | errno.EPERM
    yield _LOAD, 0, 0, _ARCH
    yield _IS, 1, 0, machine.audit
    yield _ANSWER, 0, 0, no_such
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, _X32
    yield _ANSWER, 0, 0, no_such
    yield _IS, 0, 1, _CLONE3
    yield _ANSWER, 0, 0, no_such  # the C library makes its threads by clone then
    for key in machine.keys:
        yield _IS, 0, 1, key
        yield _ANSWER, 0, 0, no_right
    yield _IS, 1, 0, machine.clone
    yield _IS, 0, 3, machine.unshare
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield _ANY_OF, 0, 1, CLONE_NEWUSER
    yield _ANSWER, 0, 0, no_right
    yield _ANSWER, 0, 0, _ALLOW
