"""A property over any sequence of silences, stalls, reboots, wishes and restarts: no device is ever in two attempts' hands.

The real controller and store; agents in memory whose ranks live on for ever when nobody reaches them, over connections that may
stall: what is on its way arrives later, in either order, unless the agent dials again. At the end everything heals, and every job
gets to its end.
"""

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.errors import UserError
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import Command, Hello, Renew, Report, StopRanks
from phalanx.core.states import Finished, Paused
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.ports import NodeLink
from phalanx.operate.control.store import Store
from tests.drawn import examples
from tests.operate.control.control_bench import Agent, Bench, ManualClock, Say, a_spec, no_outbox, plain_lineage

NODES = ("a", "b", "c")


class StallingAgent(Agent):
    """Its connection may stall. A new Hello is a new connection: nothing of the old one arrives any more."""

    def __init__(self, node: str, clock: ManualClock, say: Say, count: int) -> None:
        super().__init__(node, clock, self._post, count)
        self.stalled = False
        self.late: Sequence[Command] = ()
        self._really_say = say
        self._coming: list[Command] = []
        self._going: list[Hello | Report | Renew] = []

    def _post(self, node: NodeId, message: Hello | Report | Renew) -> None:
        if isinstance(message, Hello):
            self.stalled = False
            self._coming, self._going, self.late = [], [], ()
        if self.stalled:
            self._going.append(message)
        else:
            self._really_say(node, message)

    def send(self, commands: Sequence[Command]) -> None:
        if self.stalled:
            self._coming += commands
        else:
            super().send(commands)

    def flow(self, going_first: bool) -> None:
        """The stall is over."""
        self.stalled = False
        coming, self._coming = self._coming, []
        going, self._going = self._going, []
        if not going_first:
            super().send(coming)
        for message in going:
            self._really_say(self.node, message)
        if going_first:
            self.late = coming

    def arrive(self) -> None:
        """What was sent during the stall arrives only now."""
        late, self.late = self.late, ()
        super().send(late)

    def _obey(self, command: Command) -> None:
        """Stopping takes as long as it takes: until a step ends the ranks."""
        held = self.held.get(command.attempt) if isinstance(command, StopRanks) else None
        if held is None or held.phase == "ended" or command.epoch < self.epoch:
            super()._obey(command)
        elif held.phase != "stopping":
            self.epoch = command.epoch
            self._now(held.attempt, phase="stopping")
        self.check()

    def check(self) -> None:
        """No device is in two attempts' hands."""
        devices = [device for attempt in self.living() for device in self.launches[attempt].devices]
        assert len(devices) == len(set(devices)), f"{self.node}: {self.living()} on {devices}"

    def reboot(self) -> None:
        """Its ranks are gone, and it knows of none of them."""
        self.held.clear()
        self.boot += "+"
        self.hello()

    def living(self) -> list[AttemptId]:
        return [attempt for attempt, report in self.held.items() if report.phase != "ended"]


@contextmanager
def fleet() -> Iterator[Bench]:
    """Three nodes of two devices over a database in memory."""
    with tempfile.TemporaryDirectory() as folder:
        home, clock, links = Path(folder), ManualClock(), dict[NodeId, NodeLink]()
        terms = Settings(home=home, lineage=plain_lineage, outbox_for=no_outbox, resend_ms=0)
        store = Store("", connect=lambda: sqlite3.connect(":memory:", check_same_thread=False))
        bench = Bench(home, clock, terms, links, {}, store, Controller(store, clock, links, terms))
        for node in NODES:
            bench.agents[node] = links[NodeId(node)] = StallingAgent(node, clock, bench._say, 2)
            bench.agents[node].hello()
        try:
            yield bench
        finally:
            store.close()


Step = tuple[str, int, int]
NODE_THINGS = ["cut", "back", "renew", "stall", "flow", "late", "reboot", "deaf", "run", "exit", "end"]
WISHES = ["submit", "submit", "cancel", "pause", "resume", "retry", "drain", "undrain"]
THINGS = ["time", "time", "time", "silence", "silence", "gap", "restart", *NODE_THINGS, *WISHES]
STEPS = st.tuples(st.sampled_from(THINGS), st.integers(0, 11), st.integers(0, 3))


def take(bench: Bench, step: Step) -> None:
    """One thing happens, and perhaps a tick."""
    what, which, how = step
    agent = bench.agents[NODES[which % 3]]
    assert isinstance(agent, StallingAgent)
    match what:
        case "time":
            bench.pass_time(1_000 * (1 + how), *NODES)
        case "silence":
            agent.cut = True
            bench.pass_time((3_000, 16_000, 27_000, 27_000)[how], *NODES)
        case "gap":
            bench.clock.sleep(40_000)
        case "restart":
            _restart(bench, all_return=how != 3)
        case "submit":
            with suppress(UserError):
                bench.submit(a_spec(f"j{which}", gpus=str(1 + how % 2), num_nodes=1 + how // 2, max_restarts=which % 2))
        case "run" | "exit" | "end":
            _live(bench, agent, what, which, how)
        case "cut" | "back" | "renew" | "stall" | "flow" | "late" | "reboot" | "deaf":
            _connect(agent, what, how)
        case _:
            _ask(bench, what, which, how)
    if how % 2:
        bench.tick()


def _restart(bench: Bench, all_return: bool) -> None:
    bench.control = Controller(bench.store, bench.clock, bench.links, bench.settings)
    for agent in bench.agents.values():
        if all_return and not agent.cut:
            agent.hello()


def _live(bench: Bench, agent: StallingAgent, what: str, which: int, how: int) -> None:
    living = agent.living()
    if not living:
        return
    attempt = living[which % len(living)]
    match what:
        case "run" if agent.held[attempt].phase == "starting":
            agent.run(attempt)
        case "exit" if not agent.held[attempt].exits:
            agent.exit(attempt, {agent.launches[attempt].first_rank: how % 2})
        case "end":
            agent.end(attempt, how % 2)


def _connect(agent: StallingAgent, what: str, how: int) -> None:
    match what:
        case "cut":
            agent.cut = True
        case "back":
            agent.cut = agent.deaf = False
            agent.hello()
        case "renew":
            agent.cut = False
            agent.renew()
        case "stall":
            agent.stalled = True
        case "flow":
            agent.flow(going_first=bool(how % 2))
        case "late":
            agent.arrive()
        case "reboot":
            agent.reboot()
        case _:
            agent.deaf = not agent.deaf


def _ask(bench: Bench, what: str, which: int, how: int) -> None:
    jobs, node = list(bench.world.jobs), NodeId(NODES[which % 3])
    with suppress(UserError):
        if what == "drain":
            bench.control.drain(node, "disk", "ada", now=bool(how % 2))
        elif what == "undrain":
            bench.control.undrain(node, "ada")
        elif jobs:
            getattr(bench.control, what)(jobs[which % len(jobs)], "ada")


def no_device_twice(bench: Bench) -> None:
    for agent in bench.agents.values():
        assert isinstance(agent, StallingAgent)
        agent.check()
    bench.world.held()


def heal(bench: Bench) -> None:
    for agent in bench.agents.values():
        assert isinstance(agent, StallingAgent)
        agent.cut = agent.deaf = False
        agent.hello()
    bench.tick()
    for node in bench.world.nodes:
        bench.control.undrain(node, "ada")
    for _ in range(120):
        bench.pass_time(1_000, *NODES)
        for agent in bench.agents.values():
            assert isinstance(agent, StallingAgent)
            for attempt in agent.living():
                agent.run(attempt) if agent.held[attempt].phase == "starting" else agent.end(attempt)
        no_device_twice(bench)
        if all(isinstance(job.state, Finished | Paused) for job in bench.world.jobs.values()):
            return
    raise AssertionError({job.id: job.state for job in bench.world.open_jobs.values()})


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=40, max_size=60))
def test_no_device_is_in_two_attempts_hands_and_everything_comes_to_its_end(steps: list[Step]) -> None:
    with fleet() as bench:
        for step in steps:
            take(bench, step)
            no_device_twice(bench)
        heal(bench)
        bench.pass_time(3_000, *NODES)
        assert all(not agent.held for agent in bench.agents.values()), "what is over is forgotten"
        assert bench.store.load() == bench.world
