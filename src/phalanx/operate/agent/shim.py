"""The parent of one attempt's ranks on one node: starts them, records how they end, stops them, sweeps up after them.

Forked by `fork_server`, isolated. Standard library only, single-threaded, in a session of its own: it outlives the agent that
started it. When the shim itself dies, the kernel kills what it started: all of it in a PID namespace, see `own_pids`; elsewhere its
ranks (PDEATHSIG fires when the thread that forked them ends, hence one thread), and the agent sweeps what is left. Files are the
truth; the control socket only says that they changed.

shim.json: {"ranks": [{"rank", "argv", "env", "log"}], "cwd", "socket", "marks": ["NAME=value", ...], "grace_ms",
            "secrets": [NAME, ...], "lease": null | {"ends_ms", "grace_ms"}, "own_pids",
            "isolation": absent | as `isolation.inside` reads it, "stands_for": absent | [rank, ...],
            "gang": absent | {"socket", "token", "spares", "timeouts", "nodes": [node of each rank], "node", "sizes": [ranks, ...],
                              "host", "port", "node_token" where there are several, "uid" where only that user may call}}
isolation: of ranks that are kept apart: they are another user, in namespaces of their own, or are not started at all.
A rank's entry may name "listen", a path: it starts with a socket that listens there as its standard input.
stands_for: the only process counts as each of these ranks, as a shell does that has several devices.
own_pids: whether the ranks may have a PID namespace; not so containers, whose tool is told of their pids from outside too.
lease: the node's, on CLOCK_BOOTTIME, where ranks must not outlive it.
gang: of ranks that recover from the death of one: their coordinator is here too, see `gang`.
Where it names secrets, their values come once as a JSON object on standard input, and go into the ranks' environment alone.
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
from typing import TYPE_CHECKING, Any, Final

from phalanx.core.interruptions import WITH_LEASE, WITH_PLATFORM
from phalanx.operate.agent import boottime, own_pids
from phalanx.operate.agent.agent_calls import AgentCalls
from phalanx.operate.agent.durable import fsync_folder
from phalanx.operate.agent.processes import boot_id, dead_children, start_ticks
from phalanx.operate.agent.sweeping import end_namespace, finish_saves, kill_orphans, sweep
from phalanx.operate.agent.terminal.beside import Beside, listener
from phalanx.operate.agent.writing import Writer, Writing

if TYPE_CHECKING:
    from phalanx.operate.agent.gang.ranks import Ranks
    from phalanx.operate.agent.isolation.inside import Inside

PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
CANNOT_START: Final = 127  # what a shell answers for a command it cannot find
RETRY_S: Final = 0.5
KILL_AGAIN_S: Final = 0.05
_WHY_NOT_STARTED: Final = {WITH_PLATFORM: "the platform was stopped", WITH_LEASE: WITH_LEASE}

_libc = ctypes.CDLL(None, use_errno=True)


def command(folder: Path) -> list[str]:
    """How to start the shim of that attempt alone; agents have theirs from a `fork_server`. By import, which finds it compiled; its
    file is named for whoever looks for shims."""
    root = str(Path(__file__).parents[3])
    start = f"import sys; sys.path.append({root!r}); from phalanx.operate.agent.shim import main; main()"
    return [sys.executable, "-I", "-S", "-c", start, __file__, str(folder)]


def claim(folder: Path, init: int | None = None) -> bool:
    """Makes this process the attempt's only shim, ever: False when another one was there before. `init`: of its PID namespace."""
    claimed: dict[str, object] = {"pid": os.getpid(), "start": start_ticks(os.getpid()), "boot": boot_id()}
    if init is not None:
        claimed["init"] = {"pid": init, "start": start_ticks(init)}
    staged = folder / f".claim.{os.getpid()}"
    with staged.open("w") as out:
        json.dump(claimed, out)
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(staged, folder / "shim-pid.json")
    except FileExistsError:
        return False
    finally:
        staged.unlink()
    fsync_folder(folder)
    return True


def _die_with(parent: int, inside: bool) -> None:
    """In the forked child: die when the shim does, and at once when it already has. Inside a PID namespace the shim has no number,
    but the init, which ends with it, takes this process along at whatever point."""
    own_pids.die_with_parent()
    if inside:
        own_pids.own_proc()
    elif os.getppid() != parent:
        os._exit(CANNOT_START)


def _say(line: str) -> None:
    """To shim.log, where the disk takes it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Shim:
    """One attempt's ranks. `run` returns when all are gone and everything is written."""

    def __init__(
        self,
        folder: Path,
        order: dict[str, Any],
        init: int | None = None,
        writer: Writer | None = None,
        inside: "Inside | None" = None,
    ) -> None:
        self.folder = folder
        self.order = order
        self.init = init  # of the ranks' PID namespace
        self.inside = inside
        self.secrets: dict[str, bytes] = {}
        self.alive: dict[int, int] = {}  # pid -> rank
        self.processes: dict[int, int] = {}  # rank -> pid, the last that it had
        self.started: list[subprocess.Popen[bytes]] = []
        self.starting = True  # not every rank was started yet
        self.interrupted = ""  # why the ranks did not end by themselves
        self.fell: int | None = None  # exit code of the rank that ended the others
        self.stop_grace_ms: int | None = None  # asked for, not yet carried out
        self.kill_at_ms: int | None = None  # of CLOCK_BOOTTIME, as is the lease
        self.lease: dict[str, int] | None = order.get("lease")  # None also once it has ended
        self.gang: Ranks | None = None
        self.beside = Beside(self)
        self.alarm = boottime.Alarm()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.alarm, selectors.EVENT_READ, self.alarm.quiet)
        self.agents = AgentCalls(self.selector, self._obey)
        self.writing = Writing(folder, self.selector, self.agents.announce, writer)

    def run(self) -> None:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphaned grandchildren come to us instead of init
        self.agents.listen(Path(self.order["socket"]))
        if self.order.get("gang"):
            from phalanx.operate.agent.gang.ranks import Ranks  # 15 ms, which other attempts can do without

            self.gang = Ranks(self)
        self._start()
        while self.alive or self.writing.is_open or (self.gang and self.gang.busy()):
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
        for deaf_to in (signal.SIGINT, signal.SIGHUP):  # not SIG_IGN, which ranks would inherit
            signal.signal(deaf_to, lambda *_: None)
        self.selector.register(heard, selectors.EVENT_READ, lambda: heard.recv(4096))

    def hear_secrets(self, always: bool) -> bool:
        """Before the claim, likewise: whether every value that the order names has come, whole. always: that there are none is
        said, too; whoever asked for this shim and gave it up says nothing."""
        names, files = self.order.get("secrets") or [], self.inside.secrets if self.inside else {}
        if not names and not files and not always:
            return True
        try:
            values = json.loads(sys.stdin.buffer.read())
            self.secrets = {name: values[name].encode() for name in names}
            if self.inside is not None and self.init is not None:
                self.inside.put_secrets(self.init, {name: values[name].encode() for name in files})
        except (ValueError, KeyError):
            return False
        return True

    def _end_with_platform(self) -> None:
        self.interrupt(WITH_PLATFORM)
        self.ask_stop(self.order["grace_ms"])

    def _end_with_lease(self) -> None:
        """Once it is over, what renews it comes too late. Its grace counts from its end, however late that is seen."""
        if self.lease is None or boottime.now_ms() < self.lease["ends_ms"]:
            return
        kill_at_ms, self.lease = self.lease["ends_ms"] + self.lease["grace_ms"], None
        self.interrupt(WITH_LEASE)
        self.ask_stop(max(0, kill_at_ms - boottime.now_ms()))

    def interrupt(self, why: str) -> None:
        """Nobody stopped the job: ranks that leave politely with code 0 have not done what they were started for. Not so once
        they end by themselves or on request; one that fell by SIGTERM a moment ago met the same end of the platform."""
        heard = not self.is_told() or self.fell == -signal.SIGTERM
        if not self.interrupted and (self.alive or self.starting or (self.gang and self.gang.busy())) and heard:
            self.interrupted = why

    def is_told(self) -> bool:
        """Whether the ranks are being ended."""
        return self.kill_at_ms is not None or self.stop_grace_ms is not None

    def grace_left_ms(self) -> int | None:
        """Until they are killed; None where nobody ends them."""
        left = [] if self.kill_at_ms is None else [max(0, self.kill_at_ms - boottime.now_ms())]
        return min([*left, *([] if self.stop_grace_ms is None else [self.stop_grace_ms])], default=None)

    def _obey(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return
        match said:  # a newer agent may know commands that we do not
            case {"stop": int(grace_ms)} if grace_ms >= 0:
                self.ask_stop(grace_ms)
            case {"lose_node": int(node)} if self.gang:
                self.gang.lose(node)
            case {"gang_started": True} if self.gang:
                self.gang.all_started()
            case {"exec": str(name)}:
                self.beside.begin(name)
            case {"lease_ends_ms": int(ends_ms)}:
                self._end_with_lease()  # it may be over, and only not seen yet
                self.lease = self.lease and self.lease | {"ends_ms": ends_ms}

    def _start(self) -> None:
        for index, entry in enumerate(self.order["ranks"]):
            self._end_with_lease()
            if self.interrupted:
                self._cannot_start(entry, f"not started, since {_WHY_NOT_STARTED[self.interrupted]}", -signal.SIGTERM)
                continue
            if self.stop_grace_ms is not None:
                self._cannot_start(entry, "not started, since another rank of this attempt could not be")
                continue
            try:
                child = self.spawn(entry)
            except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:  # ValueError: a NUL in argv or env
                named = repr(entry["argv"][0]) if entry["argv"] else "an empty command"
                self._cannot_start(entry, f"cannot start {named}: {getattr(error, 'strerror', None) or error}")
                continue
            self.started.append(child)
            self.alive[child.pid] = entry["rank"]
            if self.gang:
                self.gang.started(index, child.pid)
        self.starting = False
        self.writing.first("ranks.json", self._processes(), "ranks")
        self._write()

    def note_ranks(self) -> None:
        """A rank has another process than before."""
        self.writing.newest("ranks.json", self._processes(), "ranks")

    def _processes(self) -> list[dict[str, int]]:
        """Also of ranks that have ended: what is written once may be the first that anybody reads."""
        self.processes |= {rank: pid for pid, of in self.alive.items() for rank in self._stands_for(of)}
        return [{"rank": rank, "pid": pid} for rank, pid in sorted(self.processes.items())]

    def _stands_for(self, rank: int) -> list[int]:
        return self.order.get("stands_for") or [rank]

    def say(self, line: str) -> None:
        """To shim.log."""
        self.writing.line(line)

    def spawn(self, entry: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Starts a process of the attempt. Raises OSError, ValueError, IndexError, SubprocessError."""
        log = os.open(entry["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        heard = None
        try:
            heard = listener(entry["listen"]) if "listen" in entry else None
            return subprocess.Popen(
                entry["argv"],
                cwd="/" if self.inside else self.order["cwd"],  # which may be the job's doing: it goes there by its own rights
                env={**self.secrets, **entry["env"]},  # RANK and the like are the platform's
                stdin=heard.fileno() if heard is not None else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=self._before_exec(),  # noqa: PLW1509 - one thread
            )
        finally:
            os.close(log)
            if heard is not None:
                heard.close()

    def _before_exec(self) -> Callable[[], None]:
        if self.inside is not None:
            return functools.partial(self.inside.become, self.order["cwd"])
        return functools.partial(_die_with, os.getpid(), self.init is not None)

    def _cannot_start(self, entry: dict[str, Any], why: str, code: int = CANNOT_START) -> None:
        self.writing.line(f"phalanx: {why}", entry["log"])
        self.exited(entry["rank"], code)

    def _turn(self) -> None:
        self.alarm.ring_at(self._next_moment())
        self.agents.serve(self._patience_s())
        self._reap()
        if self.gang:
            self.gang.turn()
        self._write()
        self._end_with_lease()
        if self.stop_grace_ms is not None:
            self._stop(self.stop_grace_ms)
        if self._is_time_to_kill():
            self._signal_groups(signal.SIGKILL)

    def _next_moment(self) -> int | None:
        """When the alarm must ring."""
        killing = None if self._is_time_to_kill() else self.kill_at_ms
        moments = [killing, self.lease["ends_ms"] if self.lease else None, self.gang.next_moment() if self.gang else None]
        return min((moment for moment in moments if moment is not None), default=None)

    def _is_time_to_kill(self) -> bool:
        return self.kill_at_ms is not None and boottime.now_ms() >= self.kill_at_ms

    def _patience_s(self) -> float | None:
        """How long to wait for an event, of which the alarm is one."""
        if self.stop_grace_ms is not None:
            return 0.0  # asked for before this turn
        if self._is_time_to_kill():
            return KILL_AGAIN_S
        return RETRY_S if self.writing.waits else None

    def _reap(self) -> None:
        """Collects the dead. Those found in one pass died too close to tell apart: one ended by a signal counts as the first."""
        dead = sorted(dead_children(), key=lambda exited: exited[1] >= 0)
        if dead and self.inside and self.inside.met_bound():
            self._say_bound([self.alive[pid] for pid, code in dead if pid in self.alive and code == -signal.SIGKILL])
        for pid, code in dead:
            if self.beside.took(pid) or (self.gang and self.gang.took(pid, code)):
                continue
            if pid in self.alive:
                self.exited(self.alive.pop(pid), code)

    def _say_bound(self, ranks: Sequence[int]) -> None:
        """In the log of those that were killed, where people look; else in ours, since it was a child of some rank."""
        why = "MemoryError: the kernel killed a process of this job, which has reached the memory that its spec asks for"
        for entry in (one for one in self.order["ranks"] if one["rank"] in ranks):
            self.writing.line(why, entry["log"])
        if not ranks:
            self.writing.line(why)

    def exited(self, rank: int, code: int) -> None:
        """That rank has come to its end in this attempt."""
        first = code != 0 and not self.is_told()  # else it did not fall, it was ended
        for one in self._stands_for(rank):
            record = {"rank": one, "code": code, "at_ms": _now_ms(), "first": first and one == rank}
            self.writing.fact(f"exits/rank-{one}.json", record, "exit")
        if first:
            self.fell = code
            self.ask_stop(self.order["grace_ms"])

    def _write(self) -> None:
        """As far as the disk takes it. Where a lease has ended facts wait for the last rank's end: a disk that hangs, such as one
        that is away like everybody else, must not hold it up."""
        if not (self.alive and self.interrupted == WITH_LEASE):
            self.writing.turn()

    def ask_stop(self, grace_ms: int) -> None:
        """Carried out in this turn; the shortest grace asked for holds."""
        self.stop_grace_ms = grace_ms if self.stop_grace_ms is None else min(grace_ms, self.stop_grace_ms)

    def _stop(self, grace_ms: int) -> None:
        """The first ask sends SIGTERM; a later one only shortens the grace, since many programs give up at a second SIGTERM."""
        self.stop_grace_ms = None
        kill_at_ms = boottime.now_ms() + grace_ms
        if self.kill_at_ms is not None:
            self.kill_at_ms = min(kill_at_ms, self.kill_at_ms)
            return
        self.kill_at_ms = kill_at_ms
        self._signal_groups(signal.SIGTERM)
        self.agents.announce("stopping")

    def _signal_groups(self, number: signal.Signals) -> None:
        for pid in self.alive:  # not reaped yet, so the number still names this rank's group
            try:
                os.killpg(pid, number)
            except OSError:
                continue
        self.beside.signal(number)
        if self.gang:
            self.gang.signal_spares(number)

    def _end(self) -> None:
        """An end that the disk does not take yet is no end: every rank has an exit record, so they must not count as lost."""
        swept: set[int] = set()
        self.writing.dismiss_writer()  # first: it is a child, and not of the ranks
        if self.gang:
            self.gang.close()
        for clean in self._cleanings():
            try:
                swept |= clean()
            except OSError as error:
                _say(f"cannot look for what the ranks left: {error}")  # they themselves are dead and collected
        ended = {
            "at_ms": _now_ms(),
            "lost": self.interrupted,
            "interrupted": bool(self.interrupted),
            "swept": len(swept),
        }
        self.writing.fact("ended.json", ended, "ended")
        self._write()
        while self.writing.is_open:
            self._turn()
        with contextlib.suppress(OSError):
            Path(self.order["socket"]).unlink(missing_ok=True)

    def _cleanings(self) -> list[Callable[[], set[int]]]:
        saves = functools.partial(finish_saves, self.folder / "keepers", self.order["marks"], dead_children)
        first = [saves] if self.interrupted != WITH_LEASE else []  # nothing may outlive a lease
        if self.init is not None:
            return [*first, functools.partial(end_namespace, self.init)]
        return [*first, functools.partial(sweep, self.order["marks"], dead_children), kill_orphans]


def main() -> None:
    """A shim that was started alone. `sys.argv` ends with the attempt's folder."""
    serve(Path(sys.argv[-1]))


def _build(inside: "Inside") -> None:
    """In the first process of the namespace, whose word for what is refused nobody else hears."""
    try:
        inside.build()
    except OSError as error:
        _say(f"the job's view of the machine cannot be made: {error}")
        raise


def serve(folder: Path, claimed: int | None = None) -> None:
    """Is the attempt's shim, until all is over. claimed: a descriptor that hears one byte once this process has the attempt."""
    order = json.loads((folder / "shim.json").read_text())
    inside = None
    if order.get("isolation"):
        from phalanx.operate.agent.isolation.inside import Inside

        inside = Inside(order["isolation"])
        inside.close_off()  # the writer is ours, too: we end it
    # First of all: what is open or handled here would be so in the writer, and in the init, too.
    writer = Writer() if order.get("gang") else None
    init = own_pids.enter(functools.partial(_build, inside) if inside else None) if order.get("own_pids", True) else None
    if inside is not None:
        if init is None:
            _say("the job cannot be kept apart here, so it is not started")
            return
        inside.open_spaces(init)
    made = Shim(folder, order, init, writer, inside)
    made.hear_signals()
    if not made.hear_secrets(claimed is not None):
        _say("the agent ended before all secrets had come; the next one starts another shim")
        return
    if claim(folder, init):
        if claimed is not None:
            _tell(claimed)
        made.run()


def _tell(claimed: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # an agent that has ended finds the claim by itself
        os.write(claimed, b"c")
    os.close(claimed)
