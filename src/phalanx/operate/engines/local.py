"""This machine as an engine: `up` starts what is missing, `down` ends it and leaves nothing behind.

Daemons are detached processes that outlive the command that started them; their records in the home's `run/` say which they are.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from phalanx.core.errors import Conflict, Exit, PhalanxError, ServerUnreachable, SetupError
from phalanx.core.views import DownView
from phalanx.operate import daemons
from phalanx.operate.daemons import Daemon
from phalanx.operate.engines import leftovers
from phalanx.operate.home import node_name, open_home
from phalanx.storage.atomic import write_atomic

START_S_MAX: Final = 60.0
"""A server that imports, migrates and reads its log on a busy small machine; 3 s is usual. It counts from the last progress that
the daemon noted: one with gigabytes of series to read takes minutes, and killing it would only make it start over."""

END_S_MAX: Final = 20.0
POLL_S: Final = 0.05
LOG_LINES: Final = 12
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
_HOLDING: Final = ("starting", "running", "stopping")


@dataclass(frozen=True, slots=True)
class Machine:
    """What `up` and `down` need to know of the world: how a daemon is started, and time.

    command: the argument vector of 'server' or 'agent' with its options.
    """

    command: Callable[[Daemon, Path, Sequence[str]], Sequence[str]]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def up(machine: Machine, home: Path, port: int | None = None, cpu_slots: int | None = None, store: str = "") -> bool:
    """Starts what is not running: the server, then this machine's agent. Returns once both answer; True when any was started.

    port: None for the usual one, 0 for any free one; either way a server that was killed comes back where it was.
    store: where a fresh server shall keep the blobs from now on; '' where they are.

    Raises SetupError, with the last lines of its log, when one neither comes up nor gets on for START_S_MAX.
    """
    home = home.expanduser().resolve()
    open_home(home)
    with daemons.only_one(home, "up", "another `phalanx up` or `down` is at work on it; wait for it to end"):
        fresh_server = _ensure_server(machine, home, port, store)
        fresh_agent = _ensure_agent(machine, home, cpu_slots)
        return fresh_server or fresh_agent


def up_standby(machine: Machine, home: Path, port: int | None = None, store: str = "") -> bool:
    """Starts a standby of the home's database, in this home or another; True when it was started. Returns once it waits, or leads
    already since nobody else does. Raises SetupError as `up` does, also for what it lacks to lead."""
    home = home.expanduser().resolve()
    open_home(home)
    with daemons.only_one(home, "up", "another `phalanx up` or `down` is at work on it; wait for it to end"):
        if daemons.alive(home, "standby") is not None:
            return False
        options = ["--standby", "--port", str(port or 0), *(["--store", store] if store else [])]
        child = _start(machine, "server", home, options)
        _until(machine, home, "server", child, lambda: _waits_or_leads(home, child.pid))
        return True


def _waits_or_leads(home: Path, pid: int) -> bool:
    records = (daemons.read(home, daemon) for daemon in ("standby", "server") if daemons.alive(home, daemon) is not None)
    return any(record is not None and record.pid == pid for record in records)


def _ensure_server(machine: Machine, home: Path, port: int | None, store: str) -> bool:
    if _answers(home) and daemons.alive(home, "server"):
        _refuse_other_port(home, port)
        return False
    hung = daemons.alive(home, "server")
    if hung is not None and not _wait(machine, START_S_MAX, lambda: _answers(home) or not hung.is_running()):
        raise SetupError("server", hung.pid, f"runs and does not answer; end it with `kill {hung.pid}` and start again")
    if hung is not None and _answers(home):
        return False
    leftovers.end_children(home)
    port = _port(home, port)
    daemons.listen("127.0.0.1", port).close()
    child = _start(machine, "server", home, ["--port", str(port), *(["--store", store] if store else [])])
    _until(machine, home, "server", child, lambda: daemons.alive(home, "server") is not None and _answers(home))
    _note_port(home)
    return True


def _refuse_other_port(home: Path, asked: int | None) -> None:
    """A port that was asked for and is not the one it has must not look as if it were."""
    record = daemons.read(home, "server")
    has = httpx.URL(record.url).port if record else None
    if asked and has and asked != has:
        fix = f"the platform of this home runs on {has} already; `phalanx down` first, or leave --port and PHALANX_PORT out"
        raise SetupError("port", asked, fix)


def _refuse_other_slots(home: Path, asked: int | None) -> None:
    """Likewise the devices of an agent that runs already."""
    nodes = _ask(home, "GET", "/status")["nodes"] if asked else []
    has = next((len(node["devices"]) for node in nodes if node["node"] == node_name(home)), asked)
    if asked and has != asked:
        fix = f"the agent of this home runs with {has} devices already; `phalanx down` first, or leave --cpu-slots out"
        raise SetupError("cpu-slots", asked, fix)


def _port(home: Path, asked: int | None) -> int:
    """A server that comes back where it was is found by its clients at once, so a free choice falls on the port before."""
    before = _port_before(home)
    if asked or before is None:
        return daemons.DEFAULT_PORT if asked is None else asked
    try:
        daemons.listen("127.0.0.1", before).close()
    except SetupError:
        return 0
    return before


def _port_before(home: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((home / "run" / "port").read_text())
    return None


def _note_port(home: Path) -> None:
    record = daemons.read(home, "server")
    if record is not None and (port := httpx.URL(record.url).port):
        write_atomic(home / "run" / "port", str(port).encode())


def _ensure_agent(machine: Machine, home: Path, cpu_slots: int | None) -> bool:
    """An agent that is there finds a server that came back by itself: it reads the server's record at each dial."""
    fresh = daemons.alive(home, "agent") is None
    options = ["--cpu-slots", str(cpu_slots)] if cpu_slots else []
    child = _start(machine, "agent", home, options) if fresh else None
    _until(machine, home, "agent", child, lambda: _has_agent(home))
    if not fresh:
        _refuse_other_slots(home, cpu_slots)
    return fresh


def _start(machine: Machine, daemon: Daemon, home: Path, options: Sequence[str]) -> "subprocess.Popen[bytes]":
    """A process of its own session, so that no terminal's Ctrl-C or hang-up reaches it."""
    log = home / "run" / f"{daemon}.log"
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as out:
        return subprocess.Popen(
            machine.command(daemon, home, options),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=home,
            start_new_session=True,
        )


def _until(
    machine: Machine, home: Path, daemon: Daemon, child: "subprocess.Popen[bytes] | None", ready: Callable[[], bool]
) -> None:
    """Waits until `ready`. Raises SetupError with the log's last lines when the child ends before, or time does."""
    over, before = False, -1
    try:
        while not over and (now := daemons.progress(home, daemon)) != before:
            before = now
            over = _wait(machine, START_S_MAX, lambda: ready() or (child is not None and child.poll() is not None))
    except KeyboardInterrupt:  # it has left no record yet by which `down` could find it
        if child is not None:
            child.terminate()
        raise
    if over and ready():
        return
    if child is not None and child.poll() is None:
        child.terminate()
    log = home / "run" / f"{daemon}.log"
    if child is not None and child.returncode == Exit.BAD_INPUT and (refused := _refusal(log)) is not None:
        raise refused
    ended = f"ended with code {child.returncode}" if child and child.returncode is not None else "did not answer in time"
    raise SetupError(daemon, str(home), f"{ended}; the last lines of {log}:\n{_tail(log)}")


def _refusal(log: Path) -> SetupError | None:
    """What the daemon said last, when that is something to repair."""
    try:
        said = json.loads(log.read_bytes().splitlines()[-1])
        return SetupError(said["field"], said["value"], said["fix"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16_384))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(f"  {line[:500]}" for line in lines[-LOG_LINES:]) or "  (empty)"


def down(machine: Machine, home: Path, force: bool = False) -> DownView:
    """Ends agent and server. Pending jobs wait in the home for the next `up`.

    Raises Conflict while jobs hold devices, unless `force`: then their ranks are stopped, on joined nodes by their agents while
    these are heard, and the jobs go on from their last checkpoint at the next `up`; it costs them no restart.
    """
    home = home.expanduser().resolve()
    if not (home / "run").is_dir():
        return DownView(home=str(home), stopped=False)
    with daemons.only_one(home, "up", "another `phalanx up` or `down` is at work on it; wait for it to end"):
        standby = daemons.alive(home, "standby")
        server, agent = daemons.alive(home, "server"), daemons.alive(home, "agent")
        held = _held(home) or leftovers.attempts(home)
        if held and not force:
            fix = "hold devices; wait for them, cancel them, or use --force: it stops their ranks, and the next `up` restarts them"
            raise Conflict("jobs", ", ".join(held), fix)
        if standby is not None:  # else it would lead as soon as the server has ended
            _end(machine, standby)
        left = _halted(machine, home, server) if force else ()
        for process in (server, agent):  # an agent may take longer to end than the server starts nothing on joined nodes
            if process is not None:
                _end(machine, process)
        leftovers.end_children(home)
        swept = leftovers.sweep(home, machine.clock, machine.sleep)
        stopped = any(process is not None for process in (standby, server, agent)) or swept
        return DownView(home=str(home), stopped=stopped, left=left if stopped else ())


def _halted(machine: Machine, home: Path, server: psutil.Process | None) -> tuple[str, ...] | None:
    """Stops what runs on joined nodes; answers with those where it does not end in time, or that are not heard. None where the
    server of the home never said: then nobody was asked to stop."""
    left = None if daemons.read(home, "server") else ()  # the home of a joined node has no server

    def over() -> bool:
        nonlocal left
        try:
            answer = _ask(home, "POST", "/halt", {"but": node_name(home)})
        except ServerUnreachable:  # one that lives may answer the next time
            return server is None or not _lives(server)
        left = tuple(answer["left"])
        return not answer["busy"]

    _wait(machine, END_S_MAX, over)
    return left


def _held(home: Path) -> list[str]:
    """Jobs that hold devices, as the server knows them; none when it does not answer."""
    with contextlib.suppress(ServerUnreachable):
        jobs = [job for state in _HOLDING for job in _ask(home, "GET", f"/jobs?state={state}&limit=1000")]
        return sorted(str(job["id"]) for job in jobs)
    return []


def _end(machine: Machine, process: psutil.Process) -> None:
    """SIGTERM, and SIGKILL for one that stays. psutil refuses when the number is somebody else's by now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
        if not _wait(machine, END_S_MAX, lambda: not _lives(process)):
            process.kill()
            if not _wait(machine, END_S_MAX, lambda: not _lives(process)):
                raise leftovers.unkillable([process])


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait(machine: Machine, limit_s: float, done: Callable[[], object]) -> bool:
    end_s = machine.clock() + limit_s
    while not done():
        if machine.clock() >= end_s:
            return False
        machine.sleep(POLL_S)
    return True


def _answers(home: Path) -> bool:
    """Whether the server of this home, and no other, accepts this home's token."""
    try:
        _ask(home, "GET", "/status")
    except PhalanxError:
        return False
    return True


def _has_agent(home: Path) -> bool:
    """Whether this home's agent has said hello to the present server, and the server has taken that in."""
    agent = daemons.alive(home, "agent")
    try:
        status = _ask(home, "GET", "/status")
    except PhalanxError:
        return False
    up = any(node["node"] == node_name(home) and node["state"] == "up" for node in status["nodes"])
    return agent is not None and status["processes"].get("agent") == agent.pid and up


def _ask(home: Path, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """One exchange with this home's server. Raises ServerUnreachable, or Conflict when it refuses."""
    record = daemons.read(home, "server")
    if record is None:
        raise ServerUnreachable("no server was started here")
    try:
        token = (home / "token").read_text(encoding="ascii").strip()
        with httpx.Client(base_url=f"{record.url}/api/v1", trust_env=False, timeout=10.0, verify=False) as client:  # noqa: S501 (plain loopback)
            answer = client.request(method, path, headers={"Authorization": f"Bearer {token}"}, json=body)
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise ServerUnreachable(f"{record.url} does not answer: {error}") from error
    if answer.status_code == 409:
        raise Conflict("job", path, "it has changed meanwhile")
    if not answer.is_success:
        raise ServerUnreachable(f"{record.url} answers {answer.status_code}")
    return json.loads(answer.content)
