"""Jobs of a trace as jobs of ours: how many devices lie on each node of a gang, and how long it says that it runs."""

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from phalanx.core.devices import DeviceRequest
from phalanx.core.errors import SpecError
from phalanx.core.ids import JobId
from phalanx.decide.scheduler import JobFacts, NodeFacts, Shape
from phalanx.operate.sim.traces.rows import NUMBER
from phalanx.operate.sim.traces.trace import TraceJob

ESTIMATE_QUANTILE: Final = 0.9
ESTIMATE_MIN: Final = 20
"""Jobs of a tenant that must have finished before their times say anything."""

ESTIMATE_OF: Final = 500
"""The newest ones are asked."""


class Gangs:
    """Shapes of jobs on this cluster; equal jobs share one object, which the scheduler memoises by."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._per_node = max((len(node.devices) for node in nodes), default=1)
        self._num_nodes = len(nodes)
        self._shapes: dict[tuple[object, ...], Shape] = {}

    def shape(self, job: TraceJob) -> Shape:
        """As few nodes as can be, with equally many devices of each. A number that cannot be split so
        is rounded up: 11 devices on nodes of 8 are 2 x 6."""
        key = (job.devices, job.types, job.milli, job.cpus, job.memory_bytes, job.spot)
        if key not in self._shapes:
            num_nodes, count = split(job.devices, self._per_node, self._num_nodes)
            request = DeviceRequest(job.types, count, job.milli)
            cpus, memory_bytes = job.cpus / num_nodes, job.memory_bytes // num_nodes
            self._shapes[key] = Shape(request, num_nodes, cpus=cpus, memory_bytes=memory_bytes, spot=job.spot)
        return self._shapes[key]


def split(devices: int, per_node: int, num_nodes: int) -> tuple[int, int]:
    """Nodes, and devices of each. At most twice as many nodes as could be, so that none is rounded up; never more than there
    are."""
    fewest = -(-devices // per_node)
    even = next((nodes for nodes in range(fewest, min(2 * fewest, num_nodes) + 1) if devices % nodes == 0), fewest)
    return even, -(-devices // even)


@dataclass(frozen=True, slots=True)
class Limits:
    """What jobs say of their own run time. none: nothing. exact: their duration. factor: that many times their duration. estimate:
    what nine of ten finished jobs of the same tenant and size needed, which is no limit that ends them. trace: what the trace
    says."""

    kind: Literal["none", "exact", "factor", "estimate", "trace"] = "trace"
    factor: float = 1.0


def parse_limits(text: str) -> Limits:
    """'none', 'exact', 'factor:1.5', 'estimate', 'trace'. Raises SpecError."""
    name, _, number = text.partition(":")
    if name == "factor":
        factor = float(number) if NUMBER.fullmatch(number) else 0.0
        if not 1.0 <= factor <= 1000.0:
            raise SpecError("--limits", text, "write factor: and a number from 1 to 1000, such as factor:1.5")
        return Limits("factor", factor)
    if text not in ("none", "exact", "estimate", "trace"):
        raise SpecError("--limits", text, "write none, exact, factor:1.5, estimate or trace")
    return Limits(text)  # type: ignore[arg-type]  # checked above


class Estimates:
    """Durations of finished jobs by tenant and size: the newest ones as they came, and in order."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[str, int], deque[int]] = defaultdict(deque)
        self._ordered: defaultdict[tuple[str, int], list[int]] = defaultdict(list)

    def learn(self, job: TraceJob) -> None:
        seen, ordered = self._seen[_class(job)], self._ordered[_class(job)]
        seen.append(job.duration_ms)
        insort(ordered, job.duration_ms)
        if len(seen) > ESTIMATE_OF:
            del ordered[bisect_left(ordered, seen.popleft())]

    def limit_ms(self, job: TraceJob) -> int | None:
        """None while too few have finished."""
        ordered = self._ordered[_class(job)]
        return None if len(ordered) < ESTIMATE_MIN else ordered[int(ESTIMATE_QUANTILE * (len(ordered) - 1))]


def _class(job: TraceJob) -> tuple[str, int]:
    return job.tenant, job.devices.bit_length()


def limit_ms(job: TraceJob, limits: Limits, estimates: Estimates, restart_ms: int) -> int | None:
    """Of one attempt, with room for a restart on top of the job's own time."""
    match limits.kind:
        case "none":
            return None
        case "exact":
            return job.duration_ms + restart_ms
        case "factor":
            return round(limits.factor * job.duration_ms) + restart_ms
        case "estimate":
            return estimates.limit_ms(job)
        case "trace":
            return job.limit_ms


def job_facts(index: int, job: TraceJob, shape: Shape, limit: int | None, start_ms: int, expected: bool) -> JobFacts:
    """As the scheduler sees it. Its id tells its place in the trace. expected: it is known how long it runs."""
    return JobFacts(
        job=JobId(f"job-{index + 1}"),
        shape=shape,
        queue=job.tenant,
        priority=job.priority,
        submitted_ms=start_ms + job.submit_ms,
        sequence=index,
        user=job.tenant,
        limit_ms=limit,
        expected_ms=job.duration_ms if expected else None,
    )
