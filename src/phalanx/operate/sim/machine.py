"""One machine, physically: its disk, its devices and who is on them, its clocks, its boots. This is the truth that safety is held
against; nobody in the simulation but the machine's own shims and agent sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from phalanx.core.devices import CPU_SLOT, Device, NodeShape
from phalanx.core.features import LEASE, RECOVERY, RECOVERY_NODES, SHRINK
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import Chunk, Hello, Launch, RankExit, RankProcess, Renew, Report
from phalanx.operate.sim.faults import DiskFull
from phalanx.operate.sim.timeline import SimClock, Timeline

if TYPE_CHECKING:
    from phalanx.operate.sim.agent import SimAgent
    from phalanx.operate.sim.gangs import Gangs
    from phalanx.operate.sim.shim import SimShim

PORTS: Final = (29_500, 29_600)


@dataclass(slots=True)
class Ended:
    """ended.json."""

    at_ms: int
    lost: str = ""
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class GangStands:
    """gang.json."""

    without: tuple[int, ...]
    awaits: tuple[int, ...]


@dataclass(slots=True)
class Promise:
    """One attempt's folder on the node's disk: what is in it happened. `shim_boot`: the boot in which its one shim claimed it."""

    launch: Launch
    epoch: int
    stop_grace_ms: int | None = None
    shim_boot: int | None = None
    ranks: tuple[RankProcess, ...] = ()
    exits: dict[int, RankExit] = field(default_factory=dict)
    ended: Ended | None = None
    records: dict[int, bytearray] = field(default_factory=dict)
    without: tuple[int, ...] = ()
    awaits: tuple[int, ...] = ()

    @property
    def num_ranks(self) -> range:
        first = self.launch.first_rank
        return range(first, first + len(self.launch.devices))


@dataclass(slots=True)
class Disk:
    """What outlives every process of the node. `full`: nothing can be written now."""

    epoch_seen: int = 0
    promises: dict[AttemptId, Promise] = field(default_factory=dict)
    full: bool = False

    def written(self) -> None:
        """Something is written. Raises DiskFull."""
        if self.full:
            raise DiskFull("no space left on device")


@dataclass(frozen=True, slots=True)
class Program:
    """What a rank does: runs for `run_ms` (None: for ever) and exits with `code`. `stubborn` ignores SIGTERM, `polite` leaves with
    code 0 on it. `saves_ms`: a checkpoint is committed after that time. `model`: a model is saved at a good end."""

    run_ms: int | None
    code: int = 0
    stubborn: bool = False
    polite: bool = False
    saves_ms: int | None = None
    model: bool = False


Programs = Callable[[Launch, int], Program]
"""What a rank of a launch will do, asked as it starts."""

Said = Hello | Report | Renew | Chunk


class Witness:
    """Who is told what physically happens. Here: nobody."""

    def rank_started(self, machine: "Machine", attempt: AttemptId, rank: int, device: int) -> None:
        """Before it holds the device."""

    def wiped(self, machine: "Machine") -> None:
        """Its disk is empty from now on."""

    def obeyed(self, machine: "Machine", command: object) -> None:
        """An agent carries a command out."""

    def note(self, who: str, what: str, about: object = "") -> None:
        """For a history that people read."""


class Machine:
    """A node. `lease_until_ms`: the monotonic time up to which its shims believe in the lease. `tongue`: what its agent says in
    place of a message, for a node that lies. `on_network`: whether other nodes reach it. `gangs`: of the whole cluster.
    `tells_devices`: its agent is new enough to report them. `code_away`: what ranks need cannot be fetched now."""

    def __init__(
        self, name: str, devices: int, timeline: Timeline, random: Random, programs: Programs, witness: Witness, skew_ms: int = 0
    ) -> None:
        self.node = NodeId(name)
        self.timeline = timeline
        self.random = random
        self.programs = programs
        self.witness = witness
        self.clock = SimClock(timeline, skew_ms)
        self.disk = Disk()
        self.boot = 1
        self.devices = devices
        self.features: tuple[str, ...] = (LEASE, RECOVERY, RECOVERY_NODES, SHRINK)
        self.on_network: Callable[[], bool] = lambda: True
        self.gangs: Gangs = {}
        self.tells_devices = True
        self.code_away = False
        self.tongue: Callable[[Said], Sequence[Said]] = lambda message: (message,)
        self.lease_until_ms = 0
        self.shims: dict[AttemptId, SimShim] = {}
        self.agent: SimAgent | None = None
        self.living: dict[tuple[AttemptId, int], int] = {}
        self._pids = 1_000

    @property
    def shape(self) -> NodeShape:
        devices = tuple(Device(index, CPU_SLOT, CPU_SLOT) for index in range(self.devices))
        return NodeShape(self.node, f"{self.node}.test", devices, 8.0, 2**34, PORTS, self.features)

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def start_rank(self, attempt: AttemptId, rank: int, device: int) -> int:
        """A process begins and takes its device; its pid."""
        self.witness.rank_started(self, attempt, rank, device)
        self.living[attempt, rank] = device
        self._pids += 1
        return self._pids

    def end_rank(self, attempt: AttemptId, rank: int) -> None:
        self.living.pop((attempt, rank), None)

    def lives(self, attempt: AttemptId) -> bool:
        """Whether any rank of the attempt is alive here."""
        return any(of == attempt for of, _ in self.living)

    def on_device(self, device: int) -> set[AttemptId]:
        return {attempt for (attempt, _), taken in self.living.items() if taken == device}

    def renew(self, until_ms: int) -> None:
        """The agent hands the lease on to the shims."""
        self.lease_until_ms = max(self.lease_until_ms, until_ms)

    def reboot(self, wiped: bool = False) -> None:
        """Every process is gone at once, the disk is not: unless the machine was installed anew."""
        self.witness.note(f"machine {self.node}", "is installed anew" if wiped else "reboots")
        if self.agent is not None:
            self.agent.die()
        for shim in list(self.shims.values()):
            shim.die()
        if wiped:
            self.disk = Disk()
            self.witness.wiped(self)
        self.boot += 1
        self.lease_until_ms = 0
