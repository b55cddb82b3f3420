"""A pool of users, one for each attempt that a node holds: never two at once, whoever dies.

A user is taken by a file of its name that says for which attempt, written whole before the first process of that user. It is free
again when the file is gone, which is removed only once no process of that user lives.
"""

import contextlib
import hashlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError
from phalanx.core.ids import AttemptId
from phalanx.operate.agent.durable import fsync_folder

FIRST: Final = 200_000
"""Beyond what distributions give to people and services, and below what they give to containers (subuids from 524,288 on)."""
COUNT: Final = 65_536
END_S_MAX: Final = 5.0


def users_alive() -> dict[int, list[int]]:
    """User -> pids of its processes: real, effective, saved or of the file system."""
    found: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        for uid in _users_of(pid):
            found.setdefault(uid, []).append(pid)
    return found


def _users_of(pid: int) -> set[int]:
    """None of a process that has ended and was not collected yet: it runs nothing any more. One that has lost only its first thread
    still does."""
    with contextlib.suppress(OSError, LookupError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        facts = {name: words.split() for name, _, words in (line.partition(":") for line in status.splitlines())}
        if facts["State"][0] not in ("Z", "X") or facts["Threads"] != ["1"]:
            return {int(word) for word in facts["Uid"]}
    return set()


class Uids:
    """The pool of one node. Its methods may be called from any thread."""

    def __init__(
        self, folder: Path, first: int = FIRST, count: int = COUNT, alive: Callable[[], Collection[int]] = users_alive
    ) -> None:
        self._folder, self._first, self._count, self._alive = folder, first, count, alive
        self._lock = threading.Lock()

    @property
    def all(self) -> range:
        return range(self._first, self._first + self._count)

    def of(self, attempt: AttemptId) -> int | None:
        """The user of that attempt, if it has one."""
        return next((uid for uid, owner in self._taken() if owner == attempt), None)

    def take(self, attempt: AttemptId, alike: bool, seed: str = "", owner: int | None = None) -> int:
        """The attempt's user, now its own. alike: the attempt has other nodes, whose pools must come to the same one, so it is that
        which the seed says or none. Else a job tends to have the same user again, so that its files need not change hands: the
        `owner` of its folder, then what the seed says.

        seed: of the control plane, and known to no job: whoever chose its own user could choose one that had left files behind.
        Without one, of a control plane that is older, nodes come to the same user by the attempt's name.

        Raises SetupError where none is free, OSError.
        """
        with self._lock:
            known = self.of(attempt)
            if known is not None:
                return known
            taken, alive = {uid for uid, _ in self._taken()}, self._alive()
            for uid in self._preferred(attempt, alike, seed, owner):
                if uid not in taken and uid not in alive:
                    self._write(uid, attempt)
                    return uid
        what = "the one that all nodes of the attempt would take is in use" if alike else "all are in use"
        raise SetupError("isolation", f"users {self._first} to {self._first + self._count - 1}", what)

    def release(self, attempt: AttemptId) -> bool:
        """Once the attempt is over. False while a process of its user cannot be ended: then it stays taken."""
        with self._lock:
            uid = self.of(attempt)
            return uid is None or self._free(uid)

    def recover(self, held: Collection[AttemptId]) -> None:
        """Frees what attempts left that are not held any more."""
        with self._lock:
            for uid, owner in self._taken():
                if owner not in held:
                    self._free(uid)

    def _free(self, uid: int) -> bool:
        if not ended(uid):
            return False
        (self._folder / str(uid)).unlink(missing_ok=True)
        fsync_folder(self._folder)
        return True

    def _taken(self) -> list[tuple[int, str]]:
        if not self._folder.is_dir():
            return []
        return [(int(file.name), file.read_text(encoding="ascii")) for file in self._folder.iterdir() if file.name.isdigit()]

    def _preferred(self, attempt: AttemptId, alike: bool, seed: str, owner: int | None) -> Iterator[int]:
        if not alike and owner is not None and owner in self.all:
            yield owner
        if not alike and not seed:
            seed = secrets.token_hex(8)
        begin = int.from_bytes(hashlib.sha256((seed or attempt).encode()).digest()[:8], "big")
        for step in range(1 if alike else self._count):
            yield self._first + (begin + step) % self._count

    def _write(self, uid: int, attempt: AttemptId) -> None:
        """Whole and durable, or not at all."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = self._folder / f".{uid}"
        with staged.open("w", encoding="ascii") as out:
            out.write(attempt)
            out.flush()
            os.fsync(out.fileno())
        staged.replace(self._folder / str(uid))
        fsync_folder(self._folder)


def ended(uid: int) -> bool:
    """SIGKILLs every process of that user until none is left; False where some are after END_S_MAX."""
    until = time.monotonic() + END_S_MAX
    while found := users_alive().get(uid, []):
        for pid in found:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    if uid in _users_of(pid):  # looked at after opening, so that a reused pid is never hit
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
