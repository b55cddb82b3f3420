"""People at work: they submit, cancel, pause, resume, retry, drain, share the fleet anew; and ask again with the same key when they
got no answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from phalanx.core.errors import UserError
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import DEFAULT, Policy, Preemption, Queue
from phalanx.core.spec import Array, CheckpointPolicy, JobSpec, Kind, Recovery, Resources
from phalanx.core.states import Finished, Paused, Stopping
from phalanx.operate.control.controller import Controller
from phalanx.operate.sim.control import SimServer
from phalanx.operate.sim.faults import Faults
from phalanx.operate.sim.machine import Machine

RUN_MS: Final = "RUN_MS"
FAILS: Final = "FAILS_PERCENT"
STUBBORN: Final = "STUBBORN_PERCENT"
"""What a job's ranks will be like, as variables of its `env`. Without RUN_MS they run for ever."""


MEDDLING: Final = (
    "cancel", "pause", "pause", "resume", "resume", "retry", "drain", "drain now", "undrain", "undrain", "share", "share",
)  # fmt: skip
QUEUES: Final = ("default", "left", "right")


@dataclass(frozen=True, slots=True)
class Asked:
    """A submit that was not answered yet; '' as key: it is asked once, whatever comes of it."""

    key: str
    spec: JobSpec


class UserWitness(Protocol):
    """Who is told what users were promised."""

    def asked(self, key: str, spec: JobSpec) -> None: ...
    def acknowledged(self, key: str, job: JobId, spec: JobSpec) -> None: ...
    def note(self, who: str, what: str, about: object = "") -> None: ...


class Users:
    """All of them. `server` is whichever control plane answers now; `usual` the policy that they set once it is calm."""

    def __init__(
        self, faults: Faults, machines: list[Machine], server: Callable[[], SimServer | None], witness: UserWitness, jobs_max: int
    ) -> None:
        self._faults = faults
        self._random = faults.random
        self._machines = machines
        self._server = server
        self._witness = witness
        self._jobs_max = jobs_max
        self._asked = 0
        self.unanswered: list[Asked] = []
        self.calm = False
        self.usual = DEFAULT

    def second(self) -> None:
        """A second passes."""
        for asked in list(self.unanswered):
            if self._random.random() < 0.5:
                self._submit(asked)
        if self.calm:
            self._tidy()
            return
        if self._asked < self._jobs_max and self._random.random() < 0.5:
            self._submit_new()
        if self._random.random() < 0.15:
            self._meddle()

    def _tidy(self) -> None:
        """Every node is opened again, limits on queues are lifted; services end; what is paused goes on, or stays paused."""
        server = self._server()
        if server is None:
            return
        if server.world.policy != self.usual:
            self._ask("set the usual policy", lambda control: control.set_policy(self.usual, "eve"))
        for node in [node for node, record in server.world.nodes.items() if record.drained]:
            self._undrain(node)
        for job in list(server.world.open_jobs.values()):
            if job.spec.kind == "service" and not (isinstance(job.state, Stopping) and job.state.cause == "cancel"):
                self._cancel(job.id)
            elif isinstance(job.state, Paused) and self._random.random() < 0.02:
                self._resume(job.id)

    def _undrain(self, node: NodeId) -> None:
        self._ask(f"undrain {node}", lambda control: control.undrain(node, "eve"))

    def _cancel(self, job: JobId) -> None:
        self._ask(f"cancel {job}", lambda control: control.cancel(job, "eve"))

    def _resume(self, job: JobId) -> None:
        self._ask(f"resume {job}", lambda control: control.resume(job, "eve"))

    def _submit_new(self) -> None:
        self._asked += 1
        asked = Asked(f"key-{self._asked}" if self._random.random() < 0.8 else "", self._spec(self._asked))
        self._witness.asked(asked.key, asked.spec)
        if asked.key:
            self.unanswered.append(asked)
        self._submit(asked)

    def _submit(self, asked: Asked) -> None:
        def submit(control: Controller) -> None:
            try:
                job = control.submit(asked.spec, "", asked.key, "ada")
            except UserError:
                self._answered(asked)
                raise
            self._answered(asked)
            self._witness.acknowledged(asked.key, job, asked.spec)

        self._ask(f"submit {asked.spec.name} {asked.key}", submit)

    def _answered(self, asked: Asked) -> None:
        self.unanswered = [one for one in self.unanswered if one is not asked]

    def _ask(self, what: str, act: Callable[[Controller], object]) -> None:
        """The control plane does it now, when it goes on, or never; a database that is away is no answer."""
        server = self._server()
        if server is None:
            return
        self._witness.note("user", what)

        def do() -> None:
            try:
                act(server.controller)
            except UserError as error:
                self._witness.note("user", "is refused", error)

        server.quietly(do)

    def _meddle(self) -> None:
        server = self._server()
        if server is None or not server.world.jobs:
            return
        world, random = server.world, self._random
        job = random.choice(list(world.open_jobs or world.jobs))
        over = [one.id for one in world.jobs.values() if isinstance(one.state, Finished)]
        node = random.choice(self._machines).node
        kind = random.choice(MEDDLING)
        policy = self._policy() if kind == "share" else DEFAULT
        acts: dict[str, Callable[[Controller], object]] = {
            "cancel": lambda control: control.cancel(job, "eve"),
            "pause": lambda control: control.pause(job, "eve"),
            "resume": lambda control: control.resume(job, "eve"),
            "retry": lambda control: control.retry(random.choice(over) if over else job, "eve"),
            "drain": lambda control: control.drain(node, "new fans", "eve"),
            "drain now": lambda control: control.drain(node, "smoke", "eve", now=True),
            "undrain": lambda control: control.undrain(node, "eve"),
            "share": lambda control: control.set_policy(policy, "eve"),
        }
        self._ask(f"{kind} {node if 'drain' in kind else job}", acts[kind])

    def _after(self) -> tuple[str, ...]:
        """Now and then one of those that are there."""
        server, random = self._server(), self._random
        if server is None or not server.world.jobs or random.random() > 0.1:
            return ()
        return (random.choice(list(server.world.jobs)),)

    def _policy(self) -> Policy:
        """Mostly one under which gangs are ended at once, since a history is short."""
        random = self._random
        limit = {"*": random.randint(1, 3)} if random.random() < 0.3 else {}
        return Policy(
            order=random.choice(("fair", "fair", "fifo", "blind")),
            heads=random.choice((0, 1, 1, 2)),
            backfill=random.random() < 0.8,
            queues={"left": Queue(quota={"*": 1}), "right": Queue(weight=3.0, limit=limit)} if random.random() < 0.6 else {},
            preemption=Preemption(min_runtime=random.choice(("0s", "0s", "5s")), max_evictions=random.choice((2, 8))),
        )

    def _spec(self, number: int) -> JobSpec:
        random = self._random
        kind: Kind = random.choice(("batch", "batch", "batch", "train", "service", "interactive"))
        devices = max(machine.devices for machine in self._machines)
        ends = {} if kind == "service" else {RUN_MS: str(random.choice((500, 10_000, 60_000, 90_000)))}
        num_nodes = min(random.choice((1, 1, 1, 2, 2, 3)), random.randint(1, len(self._machines) + 1))
        gpus = str(random.randint(1, devices))
        if num_nodes == 1 and random.random() < 0.25:
            gpus = random.choice(("0.25", "0.5", "0.75"))
        return JobSpec(
            name=f"job{number}",
            kind=kind,
            entrypoint="python train.py",
            env={
                **ends,
                FAILS: str(random.choice((0, 0, 0, 50))),
                STUBBORN: str(random.choice((0, 0, 50, 100))),
            },
            num_nodes=num_nodes,
            min_nodes=random.choice((0, 1)) if num_nodes > 1 else 0,
            resources=Resources(gpus=gpus),
            queue=random.choice(QUEUES),
            priority=random.choice((10, 50, 50, 80)),
            preemptible=random.random() < 0.85,
            after=self._after(),
            array=Array(count=2, parallel=random.choice((0, 1))) if random.random() < 0.1 else None,
            max_restarts=random.choice((0, 1, 3)),
            max_duration=random.choice(("", "", "", "20s")),
            on_partition=random.choice(("keep", "keep", "stop")),
            checkpoint=CheckpointPolicy(every=random.choice((0, 10))),
            recovery=_recovery(kind, num_nodes, number),
        )


def _recovery(kind: Kind, num_nodes: int, number: int) -> Recovery:
    """Most gangs of several nodes recover inside, two of three with fewer ranks; what kind of work they do is nothing that their
    coordinator sees."""
    if kind not in ("batch", "train") or num_nodes == 1 or number % 4 == 0:
        return Recovery()
    return Recovery(in_gang=True, min_ranks=0 if number % 4 == 1 else 1)
