"""The whole cluster of one seed: machines, networks, control planes, users, and what befalls them until it heals."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from phalanx.core.errors import Bug
from phalanx.core.ids import AttemptId
from phalanx.core.messages import Launch
from phalanx.decide.scheduler import Plan, Snapshot, schedule
from phalanx.decide.scheduler.memory import Memory
from phalanx.operate.control.controller import Settings
from phalanx.operate.control.tracked import lineage_of, outbox_entries
from phalanx.operate.sim.agent import SimAgent
from phalanx.operate.sim.control import ControlWitness, Life, SimServer
from phalanx.operate.sim.database import Database
from phalanx.operate.sim.faults import CALM, Faults, Swarm, draw_swarm
from phalanx.operate.sim.gangs import Gangs
from phalanx.operate.sim.lies import Liar
from phalanx.operate.sim.machine import Machine, Program, Witness
from phalanx.operate.sim.network import Direction, Line, LineEnd, Network
from phalanx.operate.sim.timeline import SimClock, Timeline
from phalanx.operate.sim.users import FAILS, RUN_MS, STUBBORN, Users, UserWitness

SECOND_MS: Final = 1_000
HOUR_MS: Final = 3_600_000
CALM_RUN_MS: Final = 5_000
"""What starts once the world has healed runs no longer: the line is short then, and the calm as well."""


class Watcher(Witness, ControlWitness, UserWitness):
    """Everything that a cluster tells about itself."""

    def committed(self) -> None:
        """The database has something new."""

    def ended(self, server: SimServer, why: BaseException) -> None:
        """A control plane's process is over."""


@dataclass(slots=True)
class Node:
    """A machine and its network."""

    machine: Machine
    network: Network


class Cluster:
    """One history. `second` lets one second of it pass; the rest is what a test looks at.

    swarm, devices: how likely which faults are, and of each node how many devices it has; drawn from the seed where not given.
    """

    def __init__(self, seed: int, watcher: Watcher, swarm: Swarm | None = None, devices: Sequence[int] | None = None) -> None:
        self.random = Random(seed)  # noqa: S311 - histories, not secrets
        self.faults = Faults(self.random, draw_swarm(self.random) if swarm is None else swarm)
        self.timeline = Timeline()
        self.clock = SimClock(self.timeline)
        self.watcher = watcher
        self.healed = False
        self.servers: list[SimServer] = []
        self.gangs: Gangs = {}
        self.liar: Machine | None = None
        self.settings = Settings(
            home=Path("/phalanx"),
            lineage=lineage_of,
            outbox_for=outbox_entries,
            lease_ms=self.random.choice((15_000, 6_000)),
            kill_grace_ms=self.random.choice((10_000, 6_000)),
        )
        self.database = Database(self.faults.database_point, watcher.committed)
        self.life = Life(
            store=self.database.store,
            clock=self.clock,
            timeline=self.timeline,
            faults=self.faults,
            settings=self.settings,
            decide=self._decide,
            witness=watcher,
        )
        counts = devices or [self.random.randint(1, 4) for _ in range(self.random.choice((1, 2, 3, 3, 4)))]
        self.nodes = [self._node(number, count) for number, count in enumerate(counts)]
        self._give_away_roles()
        jobs_max = self.random.randint(4, 14)
        self.users = Users(self.faults, [node.machine for node in self.nodes], lambda: self.leader, watcher, jobs_max)
        self.timeline.after(self.random.randint(0, 500), self.start_server)
        for node in self.nodes:
            self.agent_in(node, self.random.randint(0, 2_000))

    @property
    def leader(self) -> SimServer | None:
        """The newest control plane that users reach."""
        newest = next((server for server in reversed(self.servers) if server.alive), None)
        return newest if newest is not None and newest.ready else None

    def second(self) -> None:
        """Users act, faults strike, a second passes."""
        if not self.healed:
            self._strike()
        self.users.second()
        until_ms = self.timeline.now_ms + SECOND_MS
        while self.timeline.step(until_ms):
            pass

    def heal(self) -> None:
        """From here on nothing goes wrong any more; what went wrong before is put right as a person would, no further."""
        self.watcher.note("world", "heals")
        self.healed = True
        self.users.calm = True
        self.faults.heal()
        for node in self.nodes:
            node.network.mend()
            node.network.slow_ms = 0
            node.machine.disk.full = False
            node.machine.tongue = lambda message: (message,)
            if node.machine is self.liar:
                for line in node.network.lines:
                    line.breaks()
            if node.machine.agent is None:
                self.agent_in(node, self.random.randint(0, 3_000))
        for server in list(self.servers):
            if server.paused:
                server.go_on()
        if self.leader is None:
            self.timeline.after(500, self.start_server)

    def close(self) -> None:
        self.database.close()

    def _decide(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """Now and then it is looked whether what is remembered changes a decision."""
        plan = schedule(snapshot, memory)
        if len(snapshot.pending) % 4 == 3 and plan != schedule(snapshot):
            raise Bug("a scheduler that remembers decides otherwise than one that does not")
        return plan

    # Parts

    def _node(self, number: int, devices: int) -> Node:
        random = self.random
        slow_ms = random.choice((0, 0, 0, 0, 300, 3_000)) if self.faults.swarm.delayed else 0
        skew_ms = random.choice((0, 0, -5_000, 3 * HOUR_MS))
        machine = Machine(f"n{number + 1}", devices, self.timeline, random, self._program, self.watcher, skew_ms)
        network = Network(self.timeline, self.faults, slow_ms)
        machine.on_network, machine.gangs = (lambda: network.whole), self.gangs
        return Node(machine, network)

    def _give_away_roles(self) -> None:
        """One node may lie; one may run an old agent, which knows no features and tells no devices."""
        if self.faults.swarm.lies and len(self.nodes) > 1:
            self.liar = self.random.choice(self.nodes).machine
            self.liar.tongue = Liar(self.liar, self.faults, self._attempts).say
        if self.faults.swarm is not CALM and self.random.random() < 0.3:
            old = self.random.choice(self.nodes).machine
            old.features, old.tells_devices = (), False

    def _attempts(self) -> Sequence[AttemptId]:
        return list(self.leader.world.attempts) if self.leader else ()

    def _program(self, launch: Launch, rank: int) -> Program:
        """What a rank does, as its job's variables say; once the world has healed nothing fails any more."""
        random = self.random
        forever = RUN_MS not in launch.env
        run_ms = min(int(launch.env.get(RUN_MS, "0")), CALM_RUN_MS if self.healed else HOUR_MS)
        fails = not self.healed and random.randint(1, 100) <= int(launch.env.get(FAILS, "0"))
        return Program(
            run_ms=(2_000 if fails else None) if forever else random.randint(run_ms // 2, run_ms),
            code=random.choice((1, 2, -11)) if fails else 0,
            stubborn=random.randint(1, 100) <= int(launch.env.get(STUBBORN, "0")),
            polite=random.random() < 0.3,
            saves_ms=random.randint(100, 5_000) if rank == 0 and launch.checkpoint_every else None,
            model=rank == 0 and not fails,
        )

    # Processes

    def start_server(self) -> None:
        """A control plane's process, unless one is there that people would leave alone."""
        if self.leader is None or self.leader.paused:
            server = SimServer(len(self.servers) + 1, self.life, self._server_ended)
            self.servers.append(server)
            self.watcher.note("control", f"process {server.number} starts")
            server.start()

    def _server_ended(self, server: SimServer, why: BaseException) -> None:
        self.watcher.note("control", f"process {server.number} ends", f"{type(why).__name__}: {why}")
        self.watcher.ended(server, why)
        longest_ms = 1_000 if self.healed else self.random.choice((1_000, 1_000, 40_000))
        self.timeline.after(self.random.randint(50, longest_ms), self.start_server)

    def agent_in(self, node: Node, delay_ms: int) -> None:
        """The machine's agent starts after that time, unless one runs."""

        def start() -> None:
            if node.machine.agent is None:
                SimAgent(node.machine, lambda end: self._dial(node, end)).start()

        self.timeline.after(delay_ms, start)

    def _dial(self, node: Node, at_agent: LineEnd) -> Line | None:
        server = next((one for one in reversed(self.servers) if one.alive), None)
        if server is None or not server.ready or not node.network.whole:
            return None
        line = node.network.open(at_agent, LineEnd(server.hear, lambda line, _: server.closed(line)))
        server.accepted(line)
        return line

    # Faults

    def _strike(self) -> None:
        """What happens by the second."""
        for node in self.nodes:
            self._strike_node(node)
        faults = self.faults
        if faults.happens("pauses") and self.leader is not None and not self.leader.paused:
            self._pause(self.leader)
        if faults.happens("jumps"):
            jumped = self.random.choice([self.clock, *(node.machine.clock for node in self.nodes)])
            jumped.jump(self.random.choice((-HOUR_MS, -10_000, 10_000, HOUR_MS)))
            self.watcher.note("world", "a wall clock jumps")

    def _strike_node(self, node: Node) -> None:
        faults, machine, random = self.faults, node.machine, self.random
        if faults.happens("cut") and node.network.whole:
            self._cut(node)
        if faults.happens("breaks"):
            for line in node.network.lines:
                line.breaks()
        if faults.happens("agent_dies") and machine.agent is not None:
            self.watcher.note(f"agent {machine.node}", "dies")
            machine.agent.die()
            self.agent_in(node, random.randint(100, random.choice((2_000, 90_000))))
        if faults.happens("reboots"):
            machine.reboot(wiped=random.random() < 0.4)
            self.agent_in(node, random.randint(1_000, random.choice((5_000, 90_000))))
        if faults.happens("shim_dies") and machine.shims:
            attempt = random.choice(sorted(machine.shims))
            self.watcher.note(f"shim {machine.node}", "dies", attempt)
            machine.shims[attempt].die()
        if faults.happens("disk_full") and not machine.disk.full:
            self._fill(machine)
        if faults.happens("ahead"):
            machine.disk.epoch_seen += random.choice((1, 5, 1_000))
            self.watcher.note(f"agent {machine.node}", "has seen a later epoch", machine.disk.epoch_seen)
            for line in node.network.lines:
                line.breaks()

    def _cut(self, node: Node) -> None:
        directions: set[Direction] = set(self.random.choice((("up",), ("down",), ("up", "down"), ("up", "down"))))
        lasts_ms = self.random.randint(500, self.random.choice((5_000, 90_000)))
        self.watcher.note(f"network {node.machine.node}", f"is cut for {lasts_ms} ms", sorted(directions))
        node.network.cut_off(directions)
        cuts = node.network.cuts
        self.timeline.after(lasts_ms, lambda: node.network.mend() if node.network.cuts == cuts else None)

    def _fill(self, machine: Machine) -> None:
        machine.disk.full = True
        self.watcher.note(f"disk {machine.node}", "is full")

        disk = machine.disk

        def free() -> None:
            disk.full = False

        self.timeline.after(self.random.randint(500, 30_000), free)

    def _pause(self, server: SimServer) -> None:
        lasts_ms = self.random.randint(500, self.random.choice((5_000, 60_000)))
        self.watcher.note("control", f"process {server.number} is paused for {lasts_ms} ms")
        server.pause()
        self.timeline.after(lasts_ms, lambda: server.go_on() if server.paused else None)
        if self.random.random() < 0.5:
            self.timeline.after(self.random.randint(200, lasts_ms), self.start_server)


def is_superseded(why: BaseException) -> bool:
    """Another control plane took over: what this one had to end by."""
    return isinstance(why, Bug) and "superseded" in str(why)
