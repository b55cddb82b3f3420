"""Random snapshots that are sound: what running gangs hold is not free, claims lie on what is free or being let go of."""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from phalanx.core.devices import CPU_SLOT, WHOLE, DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import TIERS, Cells, Policy, Preemption, Queue
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, PutOff, RunningJob, Shape, Share, Snapshot, Usage
from phalanx.decide.scheduler.where.shares import part_of

GIB = 2**30
NOW_MS = 10_000_000
MINUTE_MS = 60_000
DEVICE_BYTES = 16 * GIB

GPUS = st.sampled_from(["H100", "T4"])
KINDS = st.sampled_from(["H100", "T4", CPU_SLOT])
FEATURES = st.frozensets(st.sampled_from(["image", "lock"]))
QUEUES = st.sampled_from(["default", "a", "b", "b-1"])
LIMITS = st.sampled_from([None, MINUTE_MS, 30 * MINUTE_MS, 600 * MINUTE_MS])


@dataclass
class Board:
    """Nodes while gangs are put on them."""

    nodes: dict[str, NodeFacts]
    whole: dict[str, set[int]] = field(default_factory=dict)
    parts: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    cpus: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, node in self.nodes.items():
            self.whole[name] = {index for index, _ in node.devices}
            self.cpus[name], self.memory[name] = node.cpus, node.memory_bytes

    def place(self, shape: Shape, names: list[str]) -> Placement | None:
        """The gang on the first of `names` that hold its parts, or nowhere."""
        slices: list[NodeSlice] = []
        for name in names:
            part = self._part(shape, name)
            if part is not None and len(slices) < shape.num_nodes:
                slices.append(part)
        if len(slices) < shape.num_nodes or len({self._kind(part) for part in slices}) > 1:
            return None
        for part in slices:
            self._take(shape, part)
        return Placement(tuple(slices))

    def facts(self) -> tuple[NodeFacts, ...]:
        return tuple(
            replace(
                node,
                free=tuple(sorted(self.whole[name])),
                free_cpus=self.cpus[name],
                free_memory_bytes=self.memory[name],
                shares=tuple(Share(index, *left) for (of, index), left in sorted(self.parts.items()) if of == name),
            )
            for name, node in self.nodes.items()
        )

    def _part(self, shape: Shape, name: str) -> NodeSlice | None:
        request, node = shape.request, self.nodes[name]
        milli, memory = (WHOLE, 0) if not request.is_share else part_of(request, DEVICE_BYTES)
        if self.cpus[name] < shape.cpus or self.memory[name] < shape.memory_bytes:
            return None
        in_part = [
            index for (of, index), left in sorted(self.parts.items())
            if of == name and milli < WHOLE and left[0] >= milli and left[1] >= memory
        ]  # fmt: skip
        found = [
            index for index in (*in_part, *sorted(self.whole[name]))
            if not request.types or dict(node.devices)[index] in request.types
        ]  # fmt: skip
        first = dict(node.devices)[found[0]] if found else ""
        found = [index for index in found if dict(node.devices)[index] == first][: request.count]
        return NodeSlice(node.node, tuple(found), milli, memory) if len(found) == request.count else None

    def _kind(self, part: NodeSlice) -> str:
        return dict(self.nodes[part.node].devices)[part.devices[0]]

    def _take(self, shape: Shape, part: NodeSlice) -> None:
        self.cpus[part.node] -= shape.cpus
        self.memory[part.node] -= shape.memory_bytes
        for index in part.devices:
            self.whole[part.node].discard(index)
            if part.milli < WHOLE:
                milli, memory = self.parts.get((part.node, index), (WHOLE, DEVICE_BYTES))
                self.parts[part.node, index] = (milli - part.milli, memory - part.memory_bytes)


@st.composite
def fleets(draw: st.DrawFn, num_max: int = 7) -> list[NodeFacts]:
    """Idle. Tiers nest: two nodes a domain, four a rack; some nodes lack labels."""
    nodes = []
    labelled = draw(st.booleans())
    for number in range(draw(st.integers(0, num_max))):
        kinds = draw(st.lists(KINDS, max_size=4)) if draw(st.integers(0, 3)) == 0 else [draw(GPUS)] * draw(st.integers(1, 8))
        cpus, memory = float(draw(st.sampled_from([4, 8]))), draw(st.sampled_from([4, 8])) * GIB
        nodes.append(
            NodeFacts(
                node=NodeId(f"n{number}"),
                devices=tuple(enumerate(kinds)),
                free=(),
                cpus=cpus,
                free_cpus=cpus,
                memory_bytes=memory,
                free_memory_bytes=memory,
                schedulable=draw(st.integers(0, 5)) > 0,
                features=draw(FEATURES),
                device_memory_bytes=DEVICE_BYTES,
                labels={tier: f"{tier}-{number >> level}" for level, tier in enumerate(TIERS, 1)}
                if labelled and draw(st.integers(0, 5))
                else {},
                spot=draw(st.integers(0, 4)) == 0,
                price=draw(st.sampled_from([0.0, 1.0, 2.0])),
            )
        )
    return nodes


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    is_share = draw(st.integers(0, 3)) == 0
    types = tuple(draw(st.lists(KINDS, max_size=2, unique=True)))
    request = DeviceRequest(types, draw(st.integers(1, 8)))
    if is_share:
        request = DeviceRequest(
            types, 1, draw(st.sampled_from([100, 250, 333, 500, 900])), draw(st.sampled_from([0, 0, GIB, 9 * GIB]))
        )
    num_nodes = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
    group = draw(st.sampled_from([0, 0, 2])) if num_nodes in (2, 4) else 0
    return Shape(
        request,
        num_nodes,
        min_nodes=draw(st.sampled_from([0, 0, max(1, group)])),
        cpus=float(draw(st.sampled_from([0, 0, 1, 3]))),
        memory_bytes=draw(st.sampled_from([0, 0, 1, 3])) * GIB,
        needs=draw(st.just(frozenset[str]()) | FEATURES),
        within=draw(st.sampled_from([None, None, None, *TIERS])),
        group=group,
        group_within=draw(st.sampled_from(TIERS)),
        spot=draw(st.sampled_from(["never", "never", "allow", "prefer"])),
    )


@st.composite
def facts(draw: st.DrawFn, name: str, sequence: int) -> JobFacts:
    return JobFacts(
        JobId(name),
        draw(shapes()),
        queue=draw(QUEUES),
        priority=draw(st.sampled_from([0, 50, 50, 80])),
        submitted_ms=NOW_MS - draw(st.integers(0, 3)) * 20 * MINUTE_MS,
        sequence=sequence,
        limit_ms=draw(LIMITS),
        preemptible=draw(st.integers(0, 3)) > 0,
    )


POLICIES = st.builds(
    Policy,
    backfill=st.booleans(),
    heads=st.integers(1, 2),
    queues=st.sampled_from(
        [
            {},
            {"a": Queue(quota={"H100": 8}), "b": Queue(weight=2.0), "b-1": Queue(parent="b", limit={"*": 6})},
            {"a": Queue(quota={"*": 4}, borrow=False), "b": Queue(quota={"H100": 4, "T4": 4}), "b-1": Queue(parent="b")},
            {"a": Queue(limit={"H100": 6}), "b": Queue(quota={"*": 4}, limit={"*": 5}), "b-1": Queue(parent="b")},
        ]
    ),
    preemption=st.builds(Preemption, enabled=st.booleans(), reclaim=st.booleans(), max_victims=st.sampled_from([1, 64])),
    spares=st.sampled_from([{}, {}, {"H100": 1}]),
)


OF_TENANTS = st.builds(
    Policy,
    backfill=st.booleans(),
    queues=st.sampled_from(
        [
            {"a": Queue(cells=Cells(type="H100", count=1)), "b": Queue(), "b-1": Queue(parent="b")},
            {"a": Queue(cells=Cells(type="H100", count=1, tier="domain")), "b": Queue(cells=Cells(type="T4", count=1))},
            {"a": Queue(cells=Cells(type="T4", count=2), borrow=False), "b": Queue(cells=Cells(type="H100", count=2))},
            {"b-1": Queue(parent="b", cells=Cells(type="T4", count=1, tier="rack")), "b": Queue(limit={"*": 12})},
        ]
    ),
    preemption=st.builds(Preemption, enabled=st.booleans(), reclaim=st.booleans(), min_runtime=st.sampled_from(["0s", "30m"])),
    order=st.sampled_from(["fair", "fifo"]),
)
"""Some queues have cells of their own."""


@st.composite
def snapshots(draw: st.DrawFn, policies: st.SearchStrategy[Policy] = POLICIES) -> Snapshot:
    """Running gangs first, then the waiting ones; some of these have claims."""
    board = Board({node.node: node for node in draw(fleets())})
    running = []
    for number in range(draw(st.integers(0, 6))):
        of = draw(facts(f"r-{number}", number))
        placement = board.place(of.shape, draw(st.permutations(sorted(board.nodes))))
        if placement is not None:
            placed_ms = NOW_MS - draw(st.integers(0, 20)) * MINUTE_MS
            stopping = draw(st.integers(0, 3)) == 0
            running.append(RunningJob(of, AttemptId(f"r-{number}.1"), placement, placed_ms, stopping=stopping))
    promised = draw(claims(board, running))
    pending = []
    for number in range(draw(st.integers(0, 8))):
        job = PendingJob(
            draw(facts(f"j-{number}", 100 + number)),
            put_off=draw(st.none() | st.none() | st.just(PutOff(NOW_MS + 5, 1, 9, "x"))),
            avoids=draw(st.just(frozenset[NodeId]()) | st.frozensets(st.sampled_from([NodeId("n0"), NodeId("n1")]))),
            repair=draw(st.integers(0, 5)) == 0,
        )
        pending.append(job)
    usage = {"a": Usage(decayed=1e6), "b-1": Usage(decayed=3e6)}
    return Snapshot(NOW_MS, board.facts(), tuple(running), (*pending, *promised), draw(policies), usage)


@st.composite
def claims(draw: st.DrawFn, board: Board, running: list[RunningJob]) -> list[PendingJob]:
    """At most one of a gang that is being ended, and one of what is free."""
    found = []
    leaving = [gang for gang in running if gang.stopping]
    if draw(st.booleans()) and leaving:
        facts_of = draw(facts("c-0", 90))
        shape = replace(leaving[0].facts.shape, min_nodes=0)
        found.append(PendingJob(replace(facts_of, shape=shape), claim=leaving[0].placement))
    if draw(st.integers(0, 2)) == 0:
        facts_of = draw(facts("c-1", 91))
        shadow = Board(board.nodes, {}, dict(board.parts))
        shadow.whole = {name: set(free) for name, free in board.whole.items()}
        shadow.cpus, shadow.memory = dict(board.cpus), dict(board.memory)
        claim = shadow.place(facts_of.shape, sorted(board.nodes))
        if claim is not None:
            found.append(PendingJob(facts_of, claim=claim))
    return found
