"""One attempt on this node's disk. What is written here is what happened: it survives the agent, the shim and a power cut."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.chaos import PLAN, Plan, PlannedFault
from phalanx.core.devices import NodeShape
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.core.messages import AttemptReport, Launch, Phase, RankExit, RankProcess, Stream
from phalanx.core.trace_request import TRACES, UNASKABLE, TraceRequest
from phalanx.operate.agent import lease
from phalanx.operate.agent.durable import write_durable
from phalanx.operate.agent.images import Container, contained_starts
from phalanx.operate.agent.launch_env import GangPlace, Paths, marks, rank_starts
from phalanx.operate.agent.processes import boot_id, start_ticks
from phalanx.operate.agent.sockets import door_gang, gang_socket, terminal_socket
from phalanx.operate.agent.terminal import notebook
from phalanx.operate.agent.told import tell, told
from phalanx.storage.atomic import fsync_folder, refused, write_atomic

FAILURE_GRACE_MS: Final = 5_000
"""From SIGTERM to SIGKILL for the ranks that are left when one falls, and for a shim told to end by a signal."""
STOPPED_EARLY: Final = -15  # as if SIGTERM had met the rank
NO_PLAN: Final = Plan((), 0)


@dataclass(frozen=True, slots=True)
class Accepted:
    """launch.json: the promise to run this."""

    launch: Launch
    epoch: int


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """One process of this machine, that no other can be taken for."""

    pid: int
    start: int
    boot: str

    def lives(self) -> bool:
        return self.boot == boot_id() and self.start == start_ticks(self.pid)


@dataclass(frozen=True, slots=True)
class ShimProcess(NodeProcess):
    """The one shim an attempt has ever had. `init`: of the PID namespace of its ranks, where it has one."""

    init: NodeProcess | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the files say now."""

    ranks: tuple[RankProcess, ...] = ()
    exits: tuple[RankExit, ...] = ()
    ended: bool = False
    lost: str = ""
    stop_grace_ms: int | None = None
    interrupted: bool = False
    ended_ms: int = 0
    orphaned: bool = False  # the shim is gone without an end, and the ranks with it
    refused: str = ""
    faults: int = 0
    traces: int = UNASKABLE
    without: tuple[int, ...] = ()
    awaits: tuple[int, ...] = ()

    def phase(self, drained: bool) -> Phase:
        """`drained`: everything the ranks wrote is with the control plane."""
        if self.ended:
            return "ended" if drained else "stopping"
        if self.stop_grace_ms is not None or self.orphaned or any(exited.code for exited in self.exits):
            return "stopping"
        return "running" if self.ranks else "starting"


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """node/attempts/<attempt id>."""

    path: Path
    accepted: Accepted

    @property
    def attempt(self) -> AttemptId:
        return self.accepted.launch.attempt

    @property
    def ranks(self) -> range:
        launch = self.accepted.launch
        return range(launch.first_rank, launch.first_rank + len(launch.devices))

    @property
    def code(self) -> Path:
        """Where the packed workdir is unpacked, whole, before it goes over `work`."""
        return self.path / "code"

    @property
    def work(self) -> Path:
        """Where ranks start. The job's, not the attempt's: what a script wrote is there when it is started again."""
        launch = self.accepted.launch
        return Path(launch.folder) / ("work" if launch.num_nodes == 1 else f"work-{launch.node_rank}")

    @property
    def artifacts(self) -> Path:
        """Where this node's ranks leave what shall be kept."""
        return self.path / "artifacts"

    @property
    def chaos(self) -> Path:
        """Where the plan of faults lies, and the marks of those that were met."""
        return self.path / "chaos"

    @property
    def requests(self) -> Path:
        """Where its ranks hear of what somebody asks of them. Not there where they were started by an agent that knew of no such
        thing."""
        return self.path / "requests"

    def stream(self, stream: Stream, rank: int) -> Path:
        return self.path / f"rank-{rank}.{stream}"

    def read(self) -> Seen:
        """The present truth. Cheap; does file I/O."""
        stop = _read_json(self.path / "stop.json")
        ended = _read_json(self.path / "ended.json")
        ranks = _read_json(self.path / "ranks.json") or []
        gang = self._gang()
        return Seen(
            ranks=tuple(RankProcess(entry["rank"], entry["pid"]) for entry in ranks),
            exits=tuple(self._exits()),
            ended=ended is not None,
            lost=ended["lost"] if ended else "",
            stop_grace_ms=stop["grace_ms"] if stop else None,
            interrupted=bool(ended and ended.get("interrupted")),
            ended_ms=ended["at_ms"] if ended else 0,
            orphaned=ended is None and self._is_orphaned(),
            refused=ended.get("refused", "") if ended else "",
            faults=self.plan().last if self.accepted.launch.chaos else 0,
            traces=self._newest_traces(),
            without=tuple(gang.get("without", ())),
            awaits=tuple(gang.get("awaits", ())),
        )

    def report(self, seen: Seen, drained: bool, at_ms: int) -> AttemptReport:
        phase = seen.phase(drained)
        return AttemptReport(
            self.attempt,
            self.accepted.epoch,
            phase,
            seen.ranks,
            seen.exits,
            at_ms,
            seen.lost,
            seen.interrupted,
            seen.ended_ms,
            self.accepted.launch.devices,
            refused=seen.refused,
            faults=seen.faults,
            traces=seen.traces,
            without=seen.without,
            awaits=seen.awaits,
        )

    def _gang(self) -> dict[str, list[int]]:
        """What the coordinator says of the gang that this node leads: nodes without which it goes on, and those that it awaits."""
        known: dict[str, list[int]] | None = _read_json(self.path / "gang.json") if self.accepted.launch.recovery else None
        return known or {}

    def shim_process(self) -> ShimProcess | None:
        found = _read_json(self.path / "shim-pid.json")
        if found is None:
            return None
        init = found.get("init")
        inside = NodeProcess(init["pid"], init["start"], found["boot"]) if init else None
        return ShimProcess(found["pid"], found["start"], found["boot"], inside)

    def ask_stop(self, grace_ms: int) -> None:
        """Durable, so that an agent after this one still knows; the shortest grace asked for holds."""
        known = _read_json(self.path / "stop.json")
        grace_ms = min(grace_ms, known["grace_ms"]) if known else grace_ms
        write_atomic(self.path / "stop.json", json.dumps({"grace_ms": grace_ms}).encode())

    def plan(self) -> Plan:
        """The faults that its ranks may meet."""
        found: Plan | None = told("plan_of_faults", Plan, self.chaos / PLAN)
        return found or NO_PLAN

    def plan_faults(self, faults: tuple[PlannedFault, ...], last: int) -> None:
        """The faults from now on; an older plan that comes late changes nothing. Raises StoreUnavailable."""
        if last > self.plan().last:
            tell("plan_of_faults", self.chaos / PLAN, wire.dumps(Plan, Plan(faults, last)).encode())

    def request_traces(self, request: TraceRequest) -> None:
        """From now on the newest; an older one that comes late changes nothing, and ranks that cannot hear of any are let alone.
        Raises StoreUnavailable."""
        if UNASKABLE < self._newest_traces() < request.number:
            tell("request_for_traces", self.requests / TRACES, wire.dumps(TraceRequest, request).encode())

    def _newest_traces(self) -> int:
        found: TraceRequest | None = told("request_for_traces", TraceRequest, self.requests / TRACES)
        if found is None:
            return 0 if self.requests.is_dir() else UNASKABLE
        return max(0, found.number)

    def order_shim(
        self,
        shape: NodeShape,
        agent_socket: Path,
        shim_socket: Path,
        python: str,
        outer: Mapping[str, str],
        container: Container | None = None,
        lease_ends_ms: int | None = None,
        origin: str = "",
        given: Sequence[str] = (),
        apart: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes what the shim reads. `lease_ends_ms`: of the node's lease, where the ranks must not outlive it. `origin`: of the
        environment that was built for them. `given`: names of variables whose values the shim hears, so that no file has them.
        `apart`: as `isolation.inside` reads it, of ranks that are kept apart; then `agent_socket` lies in their door."""
        paths, launch = Paths(str(self.path), str(agent_socket), python, origin), self.accepted.launch
        place, uid = (door_gang(agent_socket.parent), apart["uid"]) if apart else (gang_socket(shim_socket), None)
        gang = GangPlace.of(launch, launch.recovery, place, uid) if launch.recovery else None
        if container is None:
            starts = rank_starts(launch, shape, paths, outer, gang)
        else:
            starts = contained_starts(launch, shape, paths, outer, container)
        order: dict[str, Any] = {
            "ranks": [asdict(start) | {"env": dict(start.env)} for start in starts],
            "cwd": str(self.work),
            "socket": str(shim_socket),
            "marks": marks(self.accepted.launch, str(agent_socket)),
            "grace_ms": FAILURE_GRACE_MS,
            "own_pids": container is None,  # a container tool writes down pids for its other calls, which come from outside
            "lease": {"ends_ms": lease_ends_ms, "grace_ms": lease.GRACE_MS} if lease_ends_ms is not None else None,
            "secrets": list(given),  # their names; the values go through the shim's standard input
        }
        if gang is not None:
            order["gang"] = gang.order()
        if apart is not None:
            order["isolation"] = dict(apart)
        if launch.session:
            order["stands_for"] = list(self.ranks)
            self._prepare_session(order["ranks"][0], shim_socket)
        (self.path / "execs").mkdir(mode=0o700, exist_ok=True)
        (self.path / "exits").mkdir(exist_ok=True)
        self.artifacts.mkdir(mode=0o700, exist_ok=True)
        self.chaos.mkdir(mode=0o700, exist_ok=True)
        self.requests.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self.path / "shim.json", json.dumps(order).encode(), mode=0o600)

    def _prepare_session(self, entry: dict[str, Any], shim_socket: Path) -> None:
        if self.accepted.launch.session == "shell":
            entry["listen"] = str(terminal_socket(shim_socket))
        else:
            notebook.prepare(self.path)

    def fail(self, why: str, code: int, at_ms: int, refused: bool = False) -> None:
        """Ends an attempt whose ranks never started: an exit record for each, and `why` in each log. May be tried again.
        `refused`: the next attempt would meet the same. Begun once it is carried to its end, by an agent after this one too:
        ranks that have an exit record must not be started."""
        (self.path / "exits").mkdir(exist_ok=True)
        write_durable(self.path / "failing.json", {"why": why, "code": code, "at_ms": at_ms, "refused": refused})
        for rank in self.ranks:
            _last_line(self.stream("log", rank), f"phalanx: {why}\n".encode(errors="backslashreplace"))
            record = RankExit(rank, code, at_ms, first=code != STOPPED_EARLY and rank == self.ranks[0])
            write_durable(self.path / "exits" / f"rank-{rank}.json", asdict(record))
        ended = {"at_ms": at_ms, "lost": "" if self.ranks else why, "refused": why if refused else ""}
        write_durable(self.path / "ended.json", ended)

    def failing(self) -> dict[str, Any] | None:
        """The arguments of a `fail` that was begun."""
        found: dict[str, Any] | None = _read_json(self.path / "failing.json")
        return found

    def lose(self, why: str, at_ms: int) -> None:
        """Ends an attempt whose shim died before it could say how."""
        write_durable(self.path / "ended.json", {"at_ms": at_ms, "lost": why})

    def _is_orphaned(self) -> bool:
        found = self.shim_process()
        return found is not None and not found.lives()

    def _exits(self) -> Iterator[RankExit]:
        for rank in self.ranks:
            found = _read_json(self.path / "exits" / f"rank-{rank}.json")
            if found is not None:
                yield RankExit(found["rank"], found["code"], found["at_ms"], found["first"])


def accept(attempts: Path, launch: Launch, epoch: int) -> AttemptFolder:
    """Promises durably to run `launch`. Raises ValueError for an attempt id that cannot be one of ours, SetupError,
    StoreUnavailable, OSError; then there may be half a promise, see `discard`."""
    split_attempt(launch.attempt)  # it becomes a folder name
    folder = AttemptFolder(attempts / launch.attempt, Accepted(launch, epoch))
    try:
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise refused(folder.path, error) from error
    write_atomic(folder.path / "launch.json", wire.dumps(Accepted, folder.accepted).encode(), mode=0o600)
    fsync_folder(attempts)
    return folder


def discard(attempts: Path, attempt: AttemptId) -> bool:
    """Takes back whatever is promised under that name: away at once, then bit by bit. False when files could not be removed;
    `held` tries them again. Raises OSError while the promise stands."""
    try:
        split_attempt(attempt)
    except ValueError:
        return True  # never promised
    path = attempts / attempt
    doomed = attempts / f".{attempt}.forgotten"
    if not os.path.lexists(path):
        return True
    clear(doomed)
    path.rename(doomed)
    try:
        fsync_folder(attempts)
    except OSError:
        return False  # the name is gone for us all the same, and what comes back after a power cut is reported again
    return clear(doomed)


def clear(path: Path) -> bool:
    """Removes a tree of a rank's, who may have taken our right to write in it. True when nothing is left; never raises."""
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return True
    with contextlib.suppress(OSError):
        path.chmod(0o700)
        for folder, names, _ in os.walk(path):
            for name in names:
                inner = Path(folder, name)
                if not inner.is_symlink():
                    inner.chmod(0o700)  # before the walk goes into it
    shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def held(attempts: Path) -> list[AttemptFolder]:
    """Every attempt promised and not forgotten; clears leftovers of crashes."""
    attempts.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = []
    for path in sorted(attempts.iterdir()):
        promise = path / "launch.json"
        if not promise.exists() or path.name.startswith("."):
            clear(path)
            continue
        found.append(AttemptFolder(path, wire.loads(Accepted, promise.read_bytes())))
    return found


def _last_line(log: Path, line: bytes) -> None:
    """Makes `line` the log's last, once: before it is what was said while the environment was built, and may be sent already."""
    with log.open("ab+") as out:
        out.seek(max(0, out.tell() - len(line)))
        if out.read() != line:
            out.write(line)


def _read_json(path: Path) -> Any:
    """None when absent. Every file here was renamed into place whole, so anything else that is wrong is a bug."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
