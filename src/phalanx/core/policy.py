"""How the fleet is shared: queues, classes, preemption, bookings, windows, topology, spot. Frozen; `policy_parse` is the way in.

Texts such as '30m' or 'H100' are as in a job's spec. The empty policy is first come, first served by priority and age, with fair
shares among queues, preemption by priority, and backfill behind the head of each pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import ConfigDict

from phalanx.core import week
from phalanx.core.units import duration_ms

Order = Literal["fair", "fifo", "shortest", "blind"]
PackingRule = Literal["tight", "expected_idle"]
Tier = Literal["domain", "rack", "block"]
TIERS: Final[tuple[Tier, ...]] = ("domain", "rack", "block")
"""From the nearest to the widest: an NVLink domain, a rack (one leaf of each rail), a block (one spine)."""

PRIORITY_MAX: Final = 100
EVICTIONS_MAX: Final = 64
"""Of one job in a day: so many are remembered."""

ANY: Final = "*"
"""In a quota or limit: every device type that it does not name."""

DEFAULT_QUEUE: Final = "default"
"""Of a job that names none; it need not be in the policy."""

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a queue and those below it may use in a period.

    gpu_hours: device-hours. money: US dollars, at the catalogue's or the policy's prices. period: day, week (from Monday), month or
    total, in UTC. at: `stop` starts nothing once it is used up, `warn` only says so.
    """

    __pydantic_config__ = _STRICT

    gpu_hours: float | None = None
    money: float | None = None
    period: Literal["day", "week", "month", "total"] = "month"
    at: Literal["warn", "stop"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Guaranteed whole cells, so that others' small jobs cannot scatter what is guaranteed: `count` nodes, or `count` of a tier."""

    __pydantic_config__ = _STRICT

    type: str
    count: int
    tier: Literal["node", "domain", "rack", "block"] = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A team's line. A queue that nobody configured is one of the root, of weight 1, without quota or limit.

    parent: the queue it is part of; '' for the root. weight: of its share among its siblings.
    quota: devices guaranteed, by type ('*': of all types that are not named), to it and those below it. While it is not used others
        borrow it, and give it back when asked.
    limit: devices at most, by type or '*'.
    borrow: whether its jobs may use more than its quota. lend: whether others may use its own while it is idle.
    team: whose jobs alone may stand in it and in those below it; '' is the parent's, and of a root everybody's.
    budget: what it may spend. cells: guaranteed whole cells, instead of a quota in devices.
    """

    __pydantic_config__ = _STRICT

    parent: str = ""
    weight: float = 1.0
    quota: Mapping[str, int] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)
    borrow: bool = True
    lend: bool = True
    budget: Budget | None = None
    cells: Cells | None = None
    team: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClass:
    """Jobs of `priority` and above, up to the next class. wait_target: they should start within it; a job that has waited longer
    goes before those of its priority, as long as its queue has no more than its share, and may take from those below it."""

    __pydantic_config__ = _STRICT

    priority: int
    wait_target: str = ""

    @property
    def wait_target_ms(self) -> int | None:
        return duration_ms(self.wait_target) if self.wait_target else None


DEFAULT_CLASSES: Final[Mapping[str, JobClass]] = {
    "low": JobClass(priority=0),
    "standard": JobClass(priority=50, wait_target="30m"),
    "high": JobClass(priority=75, wait_target="5m"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """When running gangs make room.

    enabled: for higher classes, and in the orders shortest and blind for whose turn it is. reclaim: for queues of the policy
        that have less than their quota, or, where they have none, than their share. max_victims: gangs ended for one job.
    min_runtime: an attempt younger than this is not ended, so that nothing is started only to be stopped.
    max_evictions: times one job is evicted in a day before it is left alone, but by reclaim and bookings, which are guarantees.
    """

    __pydantic_config__ = _STRICT

    enabled: bool = True
    reclaim: bool = True
    max_victims: int = 64
    min_runtime: str = "2m"
    max_evictions: int = 8

    @property
    def min_runtime_ms(self) -> int:
        return duration_ms(self.min_runtime)


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Devices kept for a queue from `start` to `end`, UTC times such as '2026-12-01T09:00Z'. devices: 'H100:64'. Before it begins
    only what ends in time is started on them."""

    __pydantic_config__ = _STRICT

    queue: str
    devices: str
    start: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Times of the week in UTC. days: 'mon-fri', 'sat,sun' or 'all'. hours: '20:00-06:00', over midnight too."""

    __pydantic_config__ = _STRICT

    days: str = "all"
    hours: str = "00:00-24:00"

    @property
    def weekdays(self) -> frozenset[int]:
        return week.weekdays(self.days)

    @property
    def minutes(self) -> tuple[int, int]:
        return week.minutes(self.hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """What is known of nodes whose name matches the glob `match`; later rules win. labels: such as domain, rack, block, cluster, or
    any other that jobs ask for by `where`. spot: may be taken away at any time. price: US dollars per device and hour."""

    __pydantic_config__ = _STRICT

    match: str
    labels: Mapping[str, str] = field(default_factory=dict)
    spot: bool | None = None
    price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is done about what is found wrong with nodes. stragglers: `tell` of ranks that are slower than their peers, or
    `quarantine`: also drain the node and have the job start again elsewhere. corruption: the
    same of a rank that is known to be corrupt."""

    __pydantic_config__ = _STRICT

    stragglers: Literal["tell", "quarantine"] = "tell"
    corruption: Literal["tell", "quarantine"] = "tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All of it. `order`: fair (priority, deadline, fair share, age), fifo (priority, age), shortest (least remaining device time
    first, of jobs whose time is known), blind (by service attained and what finished jobs taught; knows no durations).

    half_life: after which used device time counts half in the fair share. backfill: jobs behind the head may start where that does
    not delay it. heads: reservations per device type. spares: nodes by device type that are kept free for repairs.
    spot_fallback: how long a job that prefers spot waits for it. windows: by name, for jobs that ask for one.
    packing: where a job on one node lies: tight (on the fullest that holds it), expected_idle (where least will be idle at last).
    region: where this fleet is; jobs whose `placing.regions` do not name it are refused. '' says nothing, and takes none of these.
    health: what is done about nodes on which ranks are slower than their peers.
    checkpoint_store: where jobs save whose `checkpoint.store` says nothing; '' is the job's folder.
    idle_timeout_max: the longest that a shell or notebook may be idle; one that asks for more, or for never, is refused. '' is any.
    """

    __pydantic_config__ = _STRICT

    order: Order = "fair"
    half_life: str = "7d"
    backfill: bool = True
    heads: int = 1
    classes: Mapping[str, JobClass] = field(default_factory=lambda: dict(DEFAULT_CLASSES))
    queues: Mapping[str, Queue] = field(default_factory=dict)
    preemption: Preemption = field(default_factory=Preemption)
    bookings: Mapping[str, Booking] = field(default_factory=dict)
    windows: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    spares: Mapping[str, int] = field(default_factory=dict)
    spot_fallback: str = "10m"
    packing: PackingRule = "tight"
    nodes: tuple[NodeRule, ...] = ()
    region: str = ""
    health: Health = field(default_factory=Health)
    checkpoint_store: str = ""
    idle_timeout_max: str = ""

    @property
    def idle_max_ms(self) -> int | None:
        return duration_ms(self.idle_timeout_max) if self.idle_timeout_max else None

    def team_of(self, queue: str) -> str:
        """Whose queue it is: its own word, else that of the nearest above it; '' is everybody's."""
        seen: set[str] = set()
        while queue in self.queues and queue not in seen:
            if self.queues[queue].team:
                return self.queues[queue].team
            seen.add(queue)
            queue = self.queues[queue].parent
        return ""

    @property
    def shares_in_time(self) -> bool:
        """Whether the order gives devices now to one job and now to another, by the service that each has had or still takes."""
        return self.order in ("shortest", "blind")

    @property
    def half_life_ms(self) -> int:
        return duration_ms(self.half_life)

    @property
    def spot_fallback_ms(self) -> int:
        return duration_ms(self.spot_fallback)


DEFAULT: Final = Policy()
