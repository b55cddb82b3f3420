"""A control plane on a bench: the real controller and store, a clock set by hand, and agents that obey in memory."""

import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from phalanx.core.devices import CPU_SLOT, Device, NodeShape
from phalanx.core.errors import LinkDown
from phalanx.core.events import Event, EventBody
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import (
    PROTOCOL,
    AttemptReport,
    Command,
    Forget,
    GiveUpNode,
    Hello,
    Launch,
    RankExit,
    RankProcess,
    Renew,
    Report,
    StartRanks,
    StopRanks,
)
from phalanx.core.records import ModelSaved
from phalanx.core.spec import JobSpec, Kind, Resources
from phalanx.core.spec_parse import parse_spec
from phalanx.decide.scheduler import Plan, Snapshot, schedule
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.fold import fold_all
from phalanx.operate.control.ports import NodeLink
from phalanx.operate.control.store import Store
from phalanx.operate.control.world import AttemptRecord, JobRecord, World

LEASE_MS = 15_000
Say = Callable[[NodeId, Hello | Report | Renew], None]


def plain_lineage(job: JobRecord, attempt: AttemptRecord, saved: ModelSaved) -> Mapping[str, str]:
    """What the rank knows, and what the control plane knows, which wins."""
    ours = {"job": job.id, "attempt": attempt.id, "attempts": str(attempt.number), "code": job.code, "config": job.config}
    return {**saved.lineage, **ours}


def no_outbox(event: Event, world: World) -> Sequence[Mapping[str, Any]]:
    """Nothing is tracked."""
    return ()


class ManualClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.unix_ms = 1_700_000_000_000
        self.running_ms = 5_000

    def now_ms(self) -> int:
        return self.unix_ms

    def monotonic_ms(self) -> int:
        return self.running_ms

    def sleep(self, ms: int) -> None:
        self.unix_ms += ms
        self.running_ms += ms

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock."""
        self.unix_ms += ms


def shape(node: str, count: int = 2, kind: str = CPU_SLOT) -> NodeShape:
    devices = tuple(Device(index, kind, kind) for index in range(count))
    return NodeShape(NodeId(node), f"{node}.test", devices, 8.0, 2**34, (29_500, 29_600))


class Agent:
    """One node's agent in memory, and the link to it: obeys commands as the real one does, and keeps what it got."""

    def __init__(
        self, node: str, clock: ManualClock, say: Callable[[NodeId, Hello | Report | Renew], None], count: int = 2
    ) -> None:
        self.shape = shape(node, count)
        self.boot = "boot-1"
        self.down = False
        self.deaf = False
        self.shrinks = False  # gangs that it leads go on without a node that they are told is lost
        self.cut = False  # off the network: what it says and what it is sent is lost, and nobody is told
        self.got: list[Command] = []
        self.launches: dict[AttemptId, Launch] = {}
        self.held: dict[AttemptId, AttemptReport] = {}
        self.starts: list[AttemptId] = []
        self.epoch = 0
        self._clock = clock
        self._say_always = say

    @property
    def node(self) -> NodeId:
        return self.shape.node

    def send(self, commands: Sequence[Command]) -> None:
        if self.down:
            raise LinkDown(f"{self.node} is down")
        if self.cut:
            return
        self.got += commands
        if not self.deaf:
            for command in commands:
                self._obey(command)

    def _say(self, node: NodeId, message: Hello | Report | Renew) -> None:
        if not self.cut:
            self._say_always(node, message)

    def hello(self) -> None:
        self._say(self.node, Hello(self.shape, self.boot, PROTOCOL, "0", self.epoch, tuple(self.held.values())))

    def renew(self) -> None:
        self._say(self.node, Renew(1))

    def report(self, attempt: AttemptId) -> None:
        self._say(self.node, Report(self.held[attempt]))

    def run(self, attempt: AttemptId) -> None:
        """Every rank of this node has a process."""
        ranks = tuple(RankProcess(rank, 1000 + rank) for rank in self._ranks(attempt))
        self._now(attempt, phase="running", ranks=ranks)

    def exit(self, attempt: AttemptId, codes: dict[int, int], said: str = "") -> None:
        """These ranks exit, the first one first, with its last words; the others of this node go on."""
        old = self.held[attempt]
        exits = [RankExit(rank, code, self._clock.now_ms(), first=not old.exits, said=said) for rank, code in codes.items()]
        self._now(attempt, exits=(*old.exits, *exits))

    def end(self, attempt: AttemptId, code: int = 0) -> None:
        """Every rank that still lives exits with `code`, logs are drained."""
        gone = {item.rank for item in self.held[attempt].exits}
        self.exit(attempt, {rank: code for rank in self._ranks(attempt) if rank not in gone})
        self._now(attempt, phase="ended")

    def lose(self, attempt: AttemptId, node_rank: int) -> None:
        """The coordinator of a gang that this node leads hears that another node is lost."""
        if self.shrinks:
            self._now(attempt, without=tuple(sorted({*self.held[attempt].without, node_rank})))
        else:
            self.leave(attempt, f"node {node_rank} was given up by the control plane")

    def leave(self, attempt: AttemptId, why: str) -> None:
        """The shim ends this node's ranks, with which nothing was wrong."""
        ranks = self._ranks(attempt)
        exits = tuple(RankExit(rank, -15, self._clock.now_ms()) for rank in ranks)
        self._now(attempt, exits=exits)
        self._now(attempt, phase="ended", lost=why, interrupted=True)

    def adopt(self, attempt: AttemptId, *devices: int) -> None:
        """Holds an attempt that no control plane of this home ever placed; says on which devices when given."""
        launch = Launch(
            attempt=attempt,
            argv=("true",),
            python="",
            env={},
            code="",
            folder="/",
            first_rank=0,
            world_size=1,
            node_rank=0,
            num_nodes=1,
            devices=devices or (0,),
            cpus=0,
            master_address="a.test",
            master_port=1,
            hyperparameters={},
            checkpoint_every=0,
            checkpoint_keep_last=1,
            restarts=0,
        )
        self.launches[attempt] = launch
        ranks, now_ms = (RankProcess(0, 7),), self._clock.now_ms()
        self.held[attempt] = AttemptReport(attempt, 1, "running", ranks, (), now_ms, devices=devices)

    def _ranks(self, attempt: AttemptId) -> range:
        launch = self.launches[attempt]
        return range(launch.first_rank, launch.first_rank + len(launch.devices))

    def _now(self, attempt: AttemptId, **changes: object) -> None:
        self.held[attempt] = replace(self.held[attempt], at_ms=self._clock.now_ms(), **changes)  # type: ignore[arg-type] # a test's shorthand
        self.report(attempt)

    def _obey(self, command: Command) -> None:
        if command.epoch < self.epoch:
            return None
        self.epoch = command.epoch
        match command:
            case StartRanks(launch):
                if launch.attempt not in self.held:
                    self.starts.append(launch.attempt)
                    self.launches[launch.attempt] = launch
                    now_ms = self._clock.now_ms()
                    fresh = AttemptReport(launch.attempt, self.epoch, "starting", (), (), now_ms, devices=launch.devices)
                    self.held[launch.attempt] = fresh
                self.report(launch.attempt)
            case StopRanks(attempt):
                if attempt not in self.held:
                    self.held[attempt] = AttemptReport(attempt, self.epoch, "ended", (), (), self._clock.now_ms())
                elif self.held[attempt].phase != "ended":
                    return self.end(attempt, -15)
                self.report(attempt)
            case GiveUpNode(attempt, node_rank=node_rank) if attempt in self.held and self.held[attempt].phase != "ended":
                return self.lose(attempt, node_rank)
            case Forget(attempt):
                self.held.pop(attempt, None)
        return None


class DatabaseLock:
    """Another process in the middle of writing the same database, for as long as the block lasts."""

    def __init__(self, database: Path | str) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._holder: sqlite3.Connection | psycopg.Connection[Any]
        if isinstance(self._database, Path):
            self._holder = sqlite3.connect(self._database, isolation_level=None)
            self._holder.execute("BEGIN IMMEDIATE")
        else:
            self._holder = psycopg.connect(self._database)
            self._holder.execute("SELECT * FROM lead FOR UPDATE")

    def __exit__(self, *_: object) -> None:
        self._holder.rollback()
        self._holder.close()


@dataclass
class Bench:
    """A home, its controller, and a fleet. `restart` drops the controller and builds a new one on the same database."""

    home: Path
    clock: ManualClock
    settings: Settings
    links: dict[NodeId, NodeLink]
    agents: dict[str, Agent]
    store: Store
    control: Controller
    database: Path | str = ""

    def add(self, node: str, count: int = 2, greet: bool = True, features: tuple[str, ...] = ()) -> Agent:
        agent = Agent(node, self.clock, self._say, count)
        agent.shape = replace(agent.shape, features=features)
        self.agents[node] = agent
        self.links[agent.node] = agent
        if greet:
            agent.hello()
        return agent

    def _say(self, node: NodeId, message: Hello | Report | Renew) -> None:
        """To whichever controller is there now."""
        self.control.heard(node, message)

    def restart(self) -> None:
        """As after kill -9: memory is gone, the database is not. Nobody says Hello yet."""
        self.store.close()
        self.store = Store(self.database, busy_ms=50)
        self.control = Controller(self.store, self.clock, self.links, self.settings)

    def tick(self, times: int = 1, decide: Callable[[Snapshot], Plan] = schedule) -> World:
        for _ in range(times):
            self.control.tick(decide)
        return self.world

    def pass_time(self, ms: int, *renewing: str) -> World:
        """Time goes by as it does: a tick each second at least, these nodes renew their leases, the others are silent."""
        while ms > 0:
            step = min(ms, 1_000)
            self.clock.sleep(step)
            ms -= step
            for node in renewing:
                self.agents[node].renew()
            self.tick()
        return self.world

    def restarted(self, seconds: int = 1) -> World:
        """The world once a restart is due that was put off for so long: ticks that take in an end, the wait, and the next tick."""
        self.tick(2)
        self.clock.sleep(seconds * 1_000)
        return self.tick()

    def submit(self, spec: JobSpec | None = None, key: str = "") -> JobId:
        return self.control.submit(spec or a_spec(), "", key, "ada")

    def submit_as(self, written: Mapping[str, Any], key: str) -> JobId:
        """As the API does of a spec that somebody wrote."""
        return self.control.submit(parse_spec(dict(written)), "", key, "admin")

    @property
    def world(self) -> World:
        return self.control.world

    def job(self, job: JobId) -> JobRecord:
        return self.world.jobs[job]

    def state(self, job: JobId) -> str:
        return self.world.jobs[job].state.name

    def attempt(self, job: JobId) -> AttemptRecord:
        newest = self.world.jobs[job].attempt
        assert newest is not None
        return self.world.attempts[newest]

    def log(self, kind: type | None = None) -> list[EventBody]:
        return [event.body for event in self.events() if kind is None or isinstance(event.body, kind)]

    def events(self) -> list[Event]:
        return self.store.events(limit=1_000_000)

    def check(self) -> None:
        """What must hold at any time: the log folds into the world, which the tables hold, and no device is held twice."""
        assert fold_all(World(), self.events()) == self.world
        assert self.store.load() == self.world
        self.world.held()


def lay_migrated(database: Path) -> None:
    """An empty database of the newest schema, unless there is one: migrated once a process, and known by a number of its own."""
    if database.exists():
        return
    database.write_bytes(_migrated())
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("PRAGMA synchronous=OFF")
        opened.execute("UPDATE meta SET value = ? WHERE key = 'identity'", (secrets.randbits(62),))


@cache
def _migrated() -> bytes:
    with TemporaryDirectory() as folder:
        Store(Path(folder) / "phalanx.db").close()
        return (Path(folder) / "phalanx.db").read_bytes()


def new_bench(home: Path, database: Path | str = "", **changes: object) -> Bench:
    """An empty home with its first controller, on its own SQLite or the database that is named."""
    home.mkdir(parents=True, exist_ok=True)
    clock, links = ManualClock(), dict[NodeId, NodeLink]()
    plain = Settings(home=home, lineage=plain_lineage, outbox_for=no_outbox, lease_ms=LEASE_MS, resend_ms=0)
    settings = replace(plain, **changes)  # type: ignore[arg-type] # as above
    database = database or home / "phalanx.db"
    if isinstance(database, Path):
        lay_migrated(database)
    store = Store(database, busy_ms=50)
    return Bench(home, clock, settings, links, {}, store, Controller(store, clock, links, settings), database)


def a_spec(
    name: str = "tiny",
    gpus: str = "2",
    num_nodes: int = 1,
    kind: Kind = "batch",
    max_restarts: int = 1,
    max_duration: str = "",
    priority: int = 50,
) -> JobSpec:
    return JobSpec(
        name=name,
        kind=kind,
        entrypoint="python train.py --fast",
        env={"SEED": "1"},
        num_nodes=num_nodes,
        resources=Resources(gpus=gpus),
        max_restarts=max_restarts,
        max_duration=max_duration,
        priority=priority,
        hyperparameters={"lr": 0.5, "steps": 3, "name": "x", "flag": True},
    )
