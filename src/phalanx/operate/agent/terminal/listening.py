"""At which address of this machine's loopback a job's own processes listen: a way to anything else there would lead out of it."""

import ipaddress
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_PPID: Final = 4 - 3
"""Field of proc(5), counted from the third on."""


def address(port: int, shim: int, marks: Sequence[str], proc: Path = Path("/proc")) -> str | None:
    """Where a descendant of the process `shim`, or one that carries all `marks` (containers have other parents), listens on `port`;
    None when none does."""
    found = dict(_listeners(port, proc))
    if not found:
        return None
    wanted = [mark.encode() for mark in marks]
    for pid in (int(one.name) for one in proc.iterdir() if one.name.isdecimal()):
        held = found.keys() & _sockets(pid, proc)
        if held and (_descends(pid, shim, proc) or _carries(pid, wanted, proc)):
            return found[min(held)]
    return None


def _listeners(port: int, proc: Path) -> Iterator[tuple[str, str]]:
    """(inode, loopback address by which it is reached)."""
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
                yield fields[9], loopback
            elif ipaddress.ip_address(where).is_loopback:
                yield fields[9], where


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
