"""What the scheduler is told: everything it may decide from, frozen. It has no other input."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Final

from phalanx.core.devices import DeviceRequest, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import TIERS, Policy, Tier
from phalanx.core.spec import SpotUse
from phalanx.decide.scheduler.line.attained import ServiceHistory
from phalanx.decide.scheduler.why.history import History

_CLAIM: Final = attrgetter("claim")


@dataclass(frozen=True, slots=True)
class Share:
    """What is left of a device that shares hold part of. Devices in `NodeFacts.free` are whole and have no share."""

    index: int
    free_milli: int
    free_memory_bytes: int


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One known node: what it has (`devices` as (index, type), `cpus`, `memory_bytes`) and what of it is free now.

    schedulable: connected, has reported since the control plane started, and not drained. A node that is not counts where one asks
    what could ever fit. gone: away or revoked for so long that nobody should count on it any more. drained: it is connected, and
    was drained. features: what its agent can do, see `core.features`. fenced: devices that no gang holds and on which ranks of an
    attempt that was given up still live; `free` has none of them. shares: devices held in part. device_memory_bytes: of each
    device. labels: such as domain, rack, block, cluster. spot: may be taken away. price: US dollars per device and hour.
    closing_ms: it was announced that the node goes away then (Unix time); nothing new is started there. exposed: it counts as
    drained, since teams do not trust each other and it does not keep their jobs apart.
    """

    node: NodeId
    devices: tuple[tuple[int, str], ...]
    free: tuple[int, ...]
    cpus: float
    free_cpus: float
    memory_bytes: int
    free_memory_bytes: int
    schedulable: bool
    features: frozenset[str] = frozenset()
    drained: bool = False
    fenced: tuple[int, ...] = ()
    shares: tuple[Share, ...] = ()
    device_memory_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    spot: bool = False
    price: float = 0.0
    gone: bool = False
    closing_ms: int | None = None
    exposed: bool = False


@dataclass(frozen=True, slots=True)
class PutOff:
    """The next attempt may not start before `not_before_ms` (Unix time): the last `attempts` each ended within `within_ms`, the
    last one as `detail` says."""

    not_before_ms: int
    attempts: int
    within_ms: int
    detail: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What a gang needs: `request`, `cpus` and `memory_bytes` of each of `num_nodes` nodes; jobs of one shape fit alike.

    min_nodes: as few will do; 0 is all of them. needs: features that each node must have. where: labels that each must have,
    sorted. within: the whole gang lies in one of that tier. Each `group` nodes in rank order lie in one `group_within` (0: no such
    groups). spot: whether nodes that may be taken away will do.
    """

    request: DeviceRequest
    num_nodes: int = 1
    min_nodes: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    needs: frozenset[str] = frozenset()
    where: tuple[tuple[str, str], ...] = ()
    within: Tier | None = None
    group: int = 0
    group_within: Tier = "domain"
    spot: SpotUse = "never"

    @property
    def num_devices(self) -> int:
        """Of the whole gang; a share counts as one."""
        return self.request.count * self.num_nodes

    @property
    def group_tier(self) -> Tier:
        """Where each group lies: in nothing wider than the whole gang."""
        return min(self.group_within, self.within or self.group_within, key=TIERS.index)

    @property
    def sizes(self) -> range:
        """Numbers of nodes that a gang of it may have: whole groups."""
        return range(self.fewest_nodes, self.num_nodes + 1, max(1, self.group))

    @property
    def fewest_nodes(self) -> int:
        return self.min_nodes or self.num_nodes


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What one job asks for. It does not change while the job lives. Times are Unix milliseconds; `sequence` orders equals.

    limit_ms: how long one attempt may run; None has no limit. expected_ms: how long it is known to run in all, where that is known,
    as of a trace. deadline_ms: when it should be done. preemptible: may be ended for others; one that may not be never borrows.
    window: name of the times in which it may start. after: jobs that must have succeeded. array: the array it is of, of which at
    most `array_parallel` run at once (0: no such limit).
    """

    job: JobId
    shape: Shape
    queue: str = "default"
    priority: int = 50
    submitted_ms: int = 0
    sequence: int = 0
    user: str = ""
    limit_ms: int | None = None
    expected_ms: int | None = None
    deadline_ms: int | None = None
    preemptible: bool = True
    window: str = ""
    after: tuple[JobId, ...] = ()
    array: str = ""
    array_parallel: int = 0


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job that waits. since_ms: when it began to wait this time (0: when it was submitted). avoids: nodes where ranks of an
    attempt of it that was given up still live, which would write into the same folder. claim: devices that gangs are ended for to
    make room for it; nobody else gets them. repair: it runs again because a node failed it, and goes before its equals. evictions:
    times it was ended for others in the last day. served_ms: device-milliseconds it has had. done_ms: how much of `expected_ms` is
    saved. unmet: those of `after` that have not succeeded yet; failed: those that never will. last: where it ran last.
    """

    facts: JobFacts
    since_ms: int = 0
    put_off: PutOff | None = None
    avoids: frozenset[NodeId] = frozenset()
    claim: Placement | None = None
    repair: bool = False
    evictions: int = 0
    served_ms: int = 0
    done_ms: int = 0
    unmet: tuple[JobId, ...] = ()
    failed: tuple[JobId, ...] = ()
    last: Placement | None = None


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A gang that holds devices. Times are Unix milliseconds.

    saved_ms: when its last checkpoint was committed; 0 if this attempt has none. restart_ms: what a restart costs it. stopping: it
    has been asked to end. evicted_for: the job that gets its room; keeps: what of it the gang itself starts again on. since_ms,
    evictions, served_ms, done_ms: as of a pending job, up to the start of this attempt.
    """

    facts: JobFacts
    attempt: AttemptId
    placement: Placement
    placed_ms: int
    saved_ms: int = 0
    restart_ms: int = 60_000
    stopping: bool = False
    evicted_for: JobId | None = None
    keeps: Placement | None = None
    evictions: int = 0
    served_ms: int = 0
    done_ms: int = 0
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a queue itself, without those below it, has had. decayed: device-milliseconds, by the policy's half-life, as of
    the snapshot. spent_ms: device-milliseconds in the budget's period, and `money` their price in US dollars."""

    decayed: float = 0.0
    spent_ms: int = 0
    money: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """The fleet and the line at `now_ms` (Unix time). The order of the tuples means nothing. usage: by queue; where that is known
    also by 'queue/user', which counts among that queue's users alone. history: of earlier waits and runs, from which starts are
    predicted. service: what jobs that ended took, for the order `blind`."""

    now_ms: int
    nodes: tuple[NodeFacts, ...]
    running: tuple[RunningJob, ...]
    pending: tuple[PendingJob, ...]
    policy: Policy = field(default_factory=Policy)
    usage: Mapping[str, Usage] = field(default_factory=dict)
    history: History = field(default_factory=History)
    service: ServiceHistory = field(default_factory=ServiceHistory)

    @cached_property
    def claimants(self) -> tuple[PendingJob, ...]:
        """Waiting jobs that have a claim: every step of a decision begins with them."""
        return tuple(compress(self.pending, map(_CLAIM, self.pending)))
