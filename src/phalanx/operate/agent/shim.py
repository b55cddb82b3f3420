"""The parent of one attempt's ranks on one node: starts them, records how they end, stops them, sweeps up after them.

Run as `python -I -S shim.py ATTEMPT_FOLDER`. Standard library only, single-threaded, in a session of its own: it outlives the
agent that started it. When the shim itself dies, the kernel kills its ranks (PDEATHSIG fires when the thread that forked them
ends, hence one thread) and the agent sweeps what is left. Files are the truth; the control socket only says that they changed.

shim.json: {"ranks": [{"rank", "argv", "env", "log"}], "cwd", "socket", "marks": ["NAME=value", ...], "grace_ms"}
"""

import contextlib
import ctypes
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER: Final = 36
CANNOT_START: Final = 127  # what a shell answers for a command it cannot find
LINE_BYTES_MAX: Final = 4096
SWEEP_S_MAX: Final = 5.0
RETRY_S: Final = 0.5

_libc = ctypes.CDLL(None, use_errno=True)


def write_durable(path: Path, fact: object) -> None:
    """`fact` as JSON at `path`, whole or not at all, there after a power cut. Raises OSError."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with staged.open("w") as out:
        json.dump(fact, out)
        out.flush()
        os.fsync(out.fileno())
    staged.replace(path)
    _fsync_folder(path.parent)


def claim(folder: Path) -> bool:
    """Makes this process the attempt's only shim, ever: False when another one was there before."""
    staged = folder / f".claim.{os.getpid()}"
    staged.write_text(json.dumps({"pid": os.getpid(), "start": start_ticks(os.getpid()), "boot": boot_id()}))
    try:
        os.link(staged, folder / "shim-pid.json")
    except FileExistsError:
        return False
    finally:
        staged.unlink()
    _fsync_folder(folder)
    return True


def _fsync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; with the pid and the boot it names one process. None when gone,
    be it that nobody has collected it yet.

    Raises OSError when that cannot be known, as with no file descriptor left: a process is not gone for that.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()  # from field 3 of proc(5) on; the name before may hold anything
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def sweep(marks: Sequence[str], reap: Callable[[], object] = lambda: None) -> set[int]:
    """SIGKILLs every process that carries all `marks` in its environment until none is left; the pids it killed."""
    wanted = [mark.encode() for mark in marks]
    killed: set[int] = set()
    until = time.monotonic() + SWEEP_S_MAX
    quiet = 0  # an empty pass may have met a process in the middle of exec, so it takes two
    while quiet < 2 and time.monotonic() < until:
        found = [pid for pid in _pids() if _carries(pid, wanted) and _kill_marked(pid, wanted)]
        killed.update(found)
        quiet = 0 if found else quiet + 1
        if found:
            time.sleep(0.01)
        reap()
    return killed


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and int(entry.name) != os.getpid()]


def _carries(pid: int, wanted: Sequence[bytes]) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(mark in words for mark in wanted)


def _kill_marked(pid: int, wanted: Sequence[bytes]) -> bool:
    """Kills through a pidfd and looks again after opening it, so that a reused pid is never hit."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _carries(pid, wanted):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def _die_with(parent: int) -> None:
    """In the forked child: die when the shim does, and at once when it already has."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(CANNOT_START)


def _say(line: str) -> None:
    """To shim.log, where the disk takes it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Shim:
    """One attempt's ranks. `run` returns when all are gone and everything is written."""

    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        self.folder = folder
        self.order = order
        self.alive: dict[int, int] = {}  # pid -> rank
        self.started: list[subprocess.Popen[bytes]] = []
        self.unwritten: list[tuple[str, object, str]] = []  # (file, fact, what to announce), oldest first
        self.starting = True  # not every rank was started yet
        self.interrupted = False  # the ranks did not end by themselves: the platform was stopped
        self.fell: int | None = None  # exit code of the rank that ended the others
        self.stop_grace_ms: int | None = None  # asked for, not yet carried out
        self.kill_at: float | None = None
        self.agents: dict[socket.socket, bytes] = {}
        self.hung_up: list[socket.socket] = []  # in this turn, so that an event waiting for it is not served
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphaned grandchildren come to us instead of init
        self._listen()
        self._start()
        while self.alive or self.unwritten:
            self._turn()
        self._end()

    def hear_signals(self) -> None:
        """Before the claim: from there on a SIGTERM ends the attempt, with records, and not only this process."""
        heard, told = socket.socketpair()
        heard.setblocking(False)
        told.setblocking(False)
        signal.set_wakeup_fd(told.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end_with_platform())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.selector.register(heard, selectors.EVENT_READ, lambda: heard.recv(4096))

    def _end_with_platform(self) -> None:
        """Nobody stopped the job: ranks that leave politely with code 0 have not done what they were started for. Not so once
        they end by themselves or on request; one that fell by SIGTERM a moment ago met the same end of the platform."""
        told = self.kill_at is not None or self.stop_grace_ms is not None
        if (self.alive or self.starting) and (not told or self.fell == -signal.SIGTERM):
            self.interrupted = True
        self._ask_stop(self.order["grace_ms"])

    def _listen(self) -> None:
        path = Path(self.order["socket"])
        path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(path))
        server.listen(8)
        server.setblocking(False)
        self.selector.register(server, selectors.EVENT_READ, functools.partial(self._accept, server))

    def _accept(self, server: socket.socket) -> None:
        try:
            agent = server.accept()[0]
        except OSError:
            return
        agent.setblocking(False)
        self.agents[agent] = b""
        self.selector.register(agent, selectors.EVENT_READ, functools.partial(self._hear, agent))
        self._announce("agents")  # it may have connected, and read the files, long before we came to accept it

    def _hear(self, agent: socket.socket) -> None:
        try:
            got = agent.recv(LINE_BYTES_MAX)
        except OSError:
            got = b""
        *lines, rest = (self.agents[agent] + got).split(b"\n")
        if not got or len(rest) > LINE_BYTES_MAX:
            self._hang_up(agent)
            return
        self.agents[agent] = rest
        for line in lines:
            self._obey(line)

    def _obey(self, line: bytes) -> None:
        try:
            grace_ms = json.loads(line)["stop"]
        except (ValueError, KeyError, TypeError):
            return  # a newer agent may know commands that we do not
        if isinstance(grace_ms, int) and grace_ms >= 0:
            self._ask_stop(grace_ms)

    def _hang_up(self, agent: socket.socket) -> None:
        self.selector.unregister(agent)
        del self.agents[agent]
        self.hung_up.append(agent)
        agent.close()

    def _announce(self, what: str) -> None:
        for agent in list(self.agents):
            try:
                agent.send(json.dumps({"changed": what}).encode() + b"\n")
            except OSError:
                self._hang_up(agent)  # it reads the files when it comes again

    def _start(self) -> None:
        processes = []
        for entry in self.order["ranks"]:
            if self.interrupted:
                self._cannot_start(entry, "not started, since the platform was stopped", -signal.SIGTERM)
                continue
            if self.stop_grace_ms is not None:
                self._cannot_start(entry, "not started, since another rank of this attempt could not be")
                continue
            try:
                child = self._spawn(entry)
            except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:  # ValueError: a NUL in argv or env
                named = repr(entry["argv"][0]) if entry["argv"] else "an empty command"
                self._cannot_start(entry, f"cannot start {named}: {getattr(error, 'strerror', None) or error}")
                continue
            self.started.append(child)
            self.alive[child.pid] = entry["rank"]
            processes.append({"rank": entry["rank"], "pid": child.pid})
        self.starting = False
        self.unwritten.insert(0, ("ranks.json", processes, "ranks"))
        self._write()

    def _spawn(self, entry: dict[str, Any]) -> subprocess.Popen[bytes]:
        log = os.open(entry["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return subprocess.Popen(
                entry["argv"],
                cwd=self.order["cwd"],
                env=entry["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=functools.partial(_die_with, os.getpid()),  # noqa: PLW1509 - this process has one thread
            )
        finally:
            os.close(log)

    def _cannot_start(self, entry: dict[str, Any], why: str, code: int = CANNOT_START) -> None:
        with contextlib.suppress(OSError), Path(entry["log"]).open("a", errors="backslashreplace") as log:
            log.write(f"phalanx: {why}\n")
        self._exited(entry["rank"], code)

    def _turn(self) -> None:
        for key, _ in self.selector.select(self._patience_s()):
            if key.fileobj not in self.hung_up:
                key.data()
        self.hung_up.clear()
        self._reap()
        self._write()
        if self.stop_grace_ms is not None:
            self._stop(self.stop_grace_ms)
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self._signal_groups(signal.SIGKILL)

    def _patience_s(self) -> float | None:
        if self.stop_grace_ms is not None:
            return 0.0  # asked for before this turn
        if self.unwritten:
            return RETRY_S
        return None if self.kill_at is None else max(0.05, self.kill_at - time.monotonic())

    def _reap(self) -> None:
        """Collects the dead. Those found in one pass died too close to tell apart: one ended by a signal counts as the first."""
        dead = sorted(_dead_children(), key=lambda exited: exited[1] >= 0)
        for pid, code in dead:
            if pid in self.alive:
                self._exited(self.alive.pop(pid), code)

    def _exited(self, rank: int, code: int) -> None:
        told = self.kill_at is not None or self.stop_grace_ms is not None  # then it did not fall, it was ended
        first = code != 0 and not told
        record = {"rank": rank, "code": code, "at_ms": _now_ms(), "first": first}
        self.unwritten.append((f"exits/rank-{rank}.json", record, "exit"))
        if first:
            self.fell = code
            self._ask_stop(self.order["grace_ms"])

    def _write(self) -> None:
        """Facts in their order, as far as the disk takes them: what is left waits for the next turn."""
        while self.unwritten:
            file, fact, what = self.unwritten[0]
            try:
                write_durable(self.folder / file, fact)
            except OSError as error:
                _say(f"cannot write {file} yet: {error}")
                return
            self.unwritten.pop(0)
            self._announce(what)

    def _ask_stop(self, grace_ms: int) -> None:
        self.stop_grace_ms = grace_ms if self.stop_grace_ms is None else min(grace_ms, self.stop_grace_ms)

    def _stop(self, grace_ms: int) -> None:
        """The first ask sends SIGTERM; a later one only shortens the grace, since many programs give up at a second SIGTERM."""
        self.stop_grace_ms = None
        kill_at = time.monotonic() + grace_ms / 1000
        if self.kill_at is not None:
            self.kill_at = min(kill_at, self.kill_at)
            return
        self.kill_at = kill_at
        self._signal_groups(signal.SIGTERM)
        self._announce("stopping")

    def _signal_groups(self, number: signal.Signals) -> None:
        for pid in self.alive:  # not reaped yet, so the number still names this rank's group
            try:
                os.killpg(pid, number)
            except OSError:
                continue

    def _end(self) -> None:
        """An end that the disk does not take yet is no end: every rank has an exit record, so they must not count as lost."""
        swept: set[int] = set()
        cleanings: list[Callable[[], set[int]]] = [
            functools.partial(sweep, self.order["marks"], _dead_children),
            self._kill_orphans,
        ]
        for clean in cleanings:
            try:
                swept |= clean()
            except OSError as error:
                _say(f"cannot look for what the ranks left: {error}")  # they themselves are dead and collected
        lost = "they were stopped with the platform" if self.interrupted else ""
        ended = {"at_ms": _now_ms(), "lost": lost, "interrupted": self.interrupted, "swept": len(swept)}
        self.unwritten.append(("ended.json", ended, "ended"))
        self._write()
        while self.unwritten:
            self._turn()
        with contextlib.suppress(OSError):
            Path(self.order["socket"]).unlink(missing_ok=True)

    def _kill_orphans(self) -> set[int]:
        """What hid from the marks by clearing its environment is our child by now, since we are its subreaper."""
        killed: set[int] = set()
        until = time.monotonic() + SWEEP_S_MAX
        while time.monotonic() < until:
            _dead_children()
            left = [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
            if not left:
                break
            for pid in left:
                with contextlib.suppress(PermissionError):  # it has become another user's, as with sudo
                    os.kill(pid, signal.SIGKILL)  # a child that nobody else can reap: the number is still its own
                    killed.add(pid)
            time.sleep(0.01)
        return killed


def _dead_children() -> list[tuple[int, int]]:
    """(pid, exit code) of every child that has ended and was not collected; orphans given to us are among them."""
    dead: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if pid == 0:
            return dead
        dead.append((pid, os.waitstatus_to_exitcode(status)))


def main() -> None:
    folder = Path(sys.argv[1])
    order = json.loads((folder / "shim.json").read_text())
    made = Shim(folder, order)
    made.hear_signals()
    if claim(folder):
        made.run()


if __name__ == "__main__":
    main()
