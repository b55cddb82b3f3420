"""At which address of this machine's loopback a job's own processes listen: a way to anything else there would lead out of it."""

import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_PPID: Final = 4 - 3
"""Field of proc(5), counted from the third on."""


@dataclass(frozen=True, slots=True)
class _Listener:
    """address: of loopback, by which it is reached. uid: of who made the socket, by the kernel's word."""

    inode: str
    address: str
    uid: int


def address(port: int, shim: int, marks: Sequence[str], uid: int | None = None, proc: Path = Path("/proc")) -> str | None:
    """Where a process of the attempt listens on `port`; None when none does: a descendant of the process `shim`. uid: the attempt's
    own user, where it has one, whose each such socket is. Where it has none, and no descendant listens, also a process of ours that
    carries all `marks`, as containers have other parents: whoever may run as ours may do as that one does anyway."""
    found = {one.inode: one for one in _listeners(port, proc) if uid is None or one.uid == uid}
    if not found:
        return None
    holders = [(pid, held) for pid in _pids(proc) if (held := found.keys() & _sockets(pid, proc))]
    own = [held for pid, held in holders if _descends(pid, shim, proc)]
    if not own and uid is None:
        wanted = [mark.encode() for mark in marks]
        ours = ((pid, {inode for inode in held if found[inode].uid == os.geteuid()}) for pid, held in holders)
        own = [held for pid, held in ours if held and _users(pid, proc) == {os.geteuid()} and _carries(pid, wanted, proc)]
    return found[min(own[0])].address if own else None


def _pids(proc: Path) -> list[int]:
    return [int(one.name) for one in proc.iterdir() if one.name.isdecimal()]


def _listeners(port: int, proc: Path) -> Iterator[_Listener]:
    for name, any_address, loopback in (("tcp", "0.0.0.0", "127.0.0.1"), ("tcp6", "::", "::1")):  # noqa: S104 - compared with
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            host, _, number = fields[1].rpartition(":")
            if fields[3] != _LISTEN or int(number, 16) != port:
                continue
            where = _address(host)
            if where == any_address:
                yield _Listener(fields[9], loopback, int(fields[7]))
            elif ipaddress.ip_address(where).is_loopback:
                yield _Listener(fields[9], where, int(fields[7]))


def _address(text: str) -> str:
    """As the kernel writes it: words of 32 bits in the machine's own order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _sockets(pid: int, proc: Path) -> set[str]:
    """Inodes of what it has open; empty for one that has gone, or is another user's."""
    try:
        links = [str(one.readlink()) for one in (proc / str(pid) / "fd").iterdir()]
    except OSError:
        return set()
    return {found[1] for link in links if (found := _SOCKET.fullmatch(link))}


def _descends(pid: int, ancestor: int, proc: Path) -> bool:
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        try:
            pid = int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[_PPID])
        except OSError:
            return False
        if pid == ancestor:
            return True
    return False


def _carries(pid: int, marks: Sequence[bytes], proc: Path) -> bool:
    try:
        return set(marks) <= set((proc / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return False


def _users(pid: int, proc: Path) -> set[int]:
    """Real, effective, saved and of files: a program that one user started as another is not the other's alone."""
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
        return {int(word) for line in lines if line.startswith("Uid:") for word in line.split()[1:]}
    except OSError:
        return set()
