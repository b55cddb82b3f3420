"""From the shim's processes to a job's: the first process of its namespace makes the view, each rank enters it and becomes a user.

Standard library only, single-threaded: the shim imports this, and runs parts of it between fork and exec.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from phalanx.operate.agent import own_pids
from phalanx.operate.agent.isolation import calls, cgroups, kernel

_MADE: Final = kernel.MS_NOSUID | kernel.MS_NODEV
_EMPTY_BYTES: Final = 1024 * 1024
_DEV: Final = "/dev"
_libc = ctypes.CDLL(None, use_errno=True)


class Inside:
    """order: {"uid", "places": as `view` makes them, "devices": names in /dev, "scope": bool, "group": a control group or "",
    "secrets": {name: path of the file that its ranks see}}."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.uid: int = order["uid"]
        self._places: list[dict[str, str]] = order["places"]
        self._devices: list[str] = order["devices"]
        self._scope: bool = order["scope"]
        self._group: str = order["group"]
        self.secrets: dict[str, str] = order["secrets"]
        self._filter = calls.refusals()
        self._spaces: list[tuple[int, int]] = []
        self._ooms = self._count()

    def close_off(self) -> None:
        """In the shim, before it has children: they are one with it for sockets and signals, and nobody else is."""
        if self._scope:
            kernel.scope()

    def build(self) -> None:
        """In the first process of the PID namespace. Raises OSError; what was made so far goes with the process."""
        os.umask(0o022)  # of this process alone: its folders are to be passed by others
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
        sources = {place["at"]: opened for place in self._places if (opened := self._opened(place)) is not None}
        nodes = {name: os.open(f"{_DEV}/{name}", os.O_PATH | os.O_CLOEXEC) for name in self._devices}
        own_pids.mount_proc()
        _make_dev(nodes)
        for place in self._places:
            _make(place, sources.get(place["at"]))
        for place in reversed(self._places):
            if place["kind"] == "empty":
                kernel.mount(None, place["at"], None, kernel.MS_REMOUNT | kernel.MS_RDONLY | _MADE)
        for opened in (*sources.values(), *nodes.values()):
            os.close(opened)

    def open_spaces(self, init: int) -> None:
        """In the shim, once the view is made."""
        for name, flag in (("ipc", kernel.CLONE_NEWIPC), ("mnt", kernel.CLONE_NEWNS)):
            self._spaces.append((os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag))

    def put_secrets(self, init: int, values: Mapping[str, bytes]) -> None:
        """In the shim, once all have come: into memory that is mounted in the view alone. Raises OSError."""
        for name, path in self.secrets.items():
            handle = os.open(f"/proc/{init}/root{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
            try:
                os.write(handle, values[name])
                os.fchown(handle, self.uid, self.uid)
            finally:
                os.close(handle)

    def become(self, cwd: str) -> None:
        """In a child just forked. Raises OSError where anything is not as it was ordered: then nothing is started."""
        if self._group:
            cgroups.join(self._group)
        for space, flag in self._spaces:
            kernel.enter(space, flag)
        kernel.drop_bounds()
        kernel.become(self.uid)
        os.chdir(cwd)
        kernel.no_new_privileges()
        own_pids.die_with_parent()  # which becoming another user has undone
        kernel.refuse_calls(self._filter)

    def met_bound(self) -> bool:
        """Whether the kernel has killed something of the attempt for its memory since this was asked last."""
        before, self._ooms = self._ooms, self._count()
        return self._ooms > before

    def _count(self) -> int:
        return cgroups.ooms(self._group) if self._group else 0

    def _opened(self, place: Mapping[str, str]) -> int | None:
        if not place["source"]:
            return None
        if place["kind"] == "kept":
            return self._kept(place["source"])
        if place["kind"] != "theirs":
            return os.open(place["source"], os.O_PATH | os.O_CLOEXEC)
        with contextlib.suppress(OSError), _files_as(self.uid):  # what it may not reach itself must not be brought to it
            return os.open(place["source"], os.O_PATH | os.O_CLOEXEC)
        return None

    def _kept(self, path: str) -> int:
        """Its user's folder at a place that the job named. What it may not do there by itself is not done for it, and a link leads
        nowhere. Raises OSError."""
        with _files_as(self.uid):
            with contextlib.suppress(FileExistsError):
                Path(path).mkdir(mode=0o700)
            opened = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(opened).st_uid != self.uid:
            raise PermissionError(errno.EPERM, "is there already, and another user's", path)
        return opened


@contextlib.contextmanager
def _files_as(uid: int) -> Any:
    """For files this process is that user, without the rights of root."""
    groups = os.getgroups()
    os.setgroups([])
    _libc.setfsgid(uid)
    _libc.setfsuid(uid)
    try:
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)
        os.setgroups(groups)


def _make(place: Mapping[str, str], source: int | None) -> None:
    at = place["at"]
    match place["kind"]:
        case "empty":
            Path(at).mkdir(parents=True, exist_ok=True)
            kernel.mount("tmpfs", at, "tmpfs", _MADE, f"mode=0755,size={_EMPTY_BYTES}")
        case "memory":
            Path(at).mkdir(parents=True, exist_ok=True)
            kernel.mount("ramfs", at, "ramfs", _MADE | kernel.MS_NOEXEC, "mode=0755")  # which is never swapped
        case "own" | "read_only" | "theirs" | "kept" if source is not None:
            _make_point(at, stat.S_ISDIR(os.fstat(source).st_mode))
            kernel.bind(f"/proc/self/fd/{source}", at, place["kind"] not in ("own", "kept"))


def _make_point(at: str, is_folder: bool) -> None:
    """In an empty folder there is nothing yet to mount upon."""
    if is_folder:
        Path(at).mkdir(parents=True, exist_ok=True)
    elif not Path(at).exists():
        Path(at).parent.mkdir(parents=True, exist_ok=True)
        Path(at).touch()


def _make_dev(nodes: Mapping[str, int]) -> None:
    kernel.mount("tmpfs", _DEV, "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=0755,size=1m")
    for name, opened in nodes.items():
        _make_point(f"{_DEV}/{name}", stat.S_ISDIR(os.fstat(opened).st_mode))
        kernel.mount(f"/proc/self/fd/{opened}", f"{_DEV}/{name}", None, kernel.MS_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"), ("ptmx", "pts/ptmx")):
        Path(_DEV, name).symlink_to(target)
    for name, kind, data in (("pts", "devpts", "newinstance,ptmxmode=0666,mode=620"), ("shm", "tmpfs", "mode=1777")):
        Path(_DEV, name).mkdir()
        kernel.mount(kind, f"{_DEV}/{name}", kind, kernel.MS_NOSUID | kernel.MS_NOEXEC, data)
    kernel.mount(None, _DEV, None, kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NOEXEC)
