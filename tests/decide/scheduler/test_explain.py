"""One dominant reason with numbers: what never fits and the smallest change, what a queue may not have, what does not lie right."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import CPU_SLOT, DeviceRequest, parse_devices
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import TIERS, Policy, Queue
from phalanx.core.reasons import Geometry, NeverFits, NoRoom, OverLimit, OverQuota
from phalanx.decide.scheduler import JobFacts, NodeFacts, PendingJob, Shape, Snapshot, Wait, schedule
from phalanx.decide.scheduler.where.eligible import eligible_types
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.why.explain import never_fits, no_room, refused
from phalanx.decide.scheduler.why.impossible import smallest_change
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples

GIB = 2**30


def node(name: str, count: int = 8, kind: str = "H100", free: int | None = None, **labels: str) -> NodeFacts:
    devices = tuple((index, kind) for index in range(count))
    left = tuple(range(count if free is None else free))
    return NodeFacts(
        NodeId(name), devices, left, 64, 64, 512 * GIB, 512 * GIB, True, labels=labels, device_memory_bytes=80 * GIB
    )  # fmt: skip


def shape(count: int = 8, num_nodes: int = 1, kind: str = "H100", **wanted: object) -> Shape:
    return replace(Shape(DeviceRequest((kind,), count), num_nodes), **wanted)  # type: ignore[arg-type]


def never(asked: Shape, *nodes: NodeFacts) -> tuple[str, str, str, str]:
    found = never_fits(asked, Fleet.of(nodes))
    assert found is not None
    return found.resource, found.asked, found.largest, found.change


def test_S16_a_label_that_no_node_has() -> None:
    fleet = (node("a", zone="eu"), node("b", zone="us"))
    assert never(shape(where=(("zone", "mars"),)), *fleet) == (
        "placing.where.zone", "1", "none", "leave placing.where.zone out, or label more nodes zone=mars in the policy",
    )  # fmt: skip
    assert never(shape(num_nodes=2, where=(("zone", "eu"),)), *fleet) == (
        "nodes with placing.where.zone", "2", "1", "set num_nodes: 1, or label more nodes zone=eu in the policy",
    )  # fmt: skip
    said = never_fits(shape(where=(("zone", "mars"),)), Fleet.of(fleet))
    assert said is not None
    assert said.sentence() == (
        "never fits: no node can do what placing.where.zone asks for; "
        "leave placing.where.zone out, or label more nodes zone=mars in the policy"
    )


def test_S16_a_tier_that_is_too_small() -> None:
    fleet = tuple(node(f"n{number}", rack=str(number // 2), block=str(number // 4)) for number in range(8))
    assert never(shape(num_nodes=3, within="rack"), *fleet) == (
        "nodes with H100:8 in one rack", "3", "2", "set placing.within: block, or add nodes",
    )  # fmt: skip
    assert never(shape(num_nodes=6, within="rack"), *fleet) == (
        "nodes with H100:8 in one rack", "6", "2", "leave placing.within out, or add nodes",
    )  # fmt: skip
    assert never(shape(num_nodes=6, within="domain"), *fleet)[:3] == ("nodes with H100:8 in one domain", "6", "1")
    assert never(shape(num_nodes=8, group=4, group_within="rack"), *fleet) == (
        "nodes with H100:8 in groups of 4 in one rack", "8", "0", "set placing.group_within: block, or add nodes",
    )  # fmt: skip


def test_S16_only_spot_nodes_would_do() -> None:
    fleet = (replace(node("a"), spot=True), node("t", 8, "T4"))
    assert never(shape(), *fleet)[3].startswith("set placing.spot: allow, or ")
    assert never(shape(), *fleet)[0] == "placing.spot"
    assert never_fits(shape(spot="allow"), Fleet.of(fleet)) is None


def test_S16_more_memory_than_a_device_has() -> None:
    asked = Shape(DeviceRequest(("H100",), 1, 500, 100 * GIB))
    assert never(asked, node("a")) == (
        "memory of a device", "100.0 GiB", "80.0 GiB (a)", "set resources.gpu_memory: 81920MiB, or add nodes",
    )  # fmt: skip


def test_S16_an_elastic_gang_needs_only_its_fewest_nodes() -> None:
    fleet = (node("a"), node("b"))
    assert never_fits(shape(num_nodes=4, min_nodes=2), Fleet.of(fleet)) is None
    assert never(shape(num_nodes=4, min_nodes=3), *fleet) == ("nodes with H100:8", "3", "2", "set min_nodes: 2, or add nodes")


def test_nodes_that_are_gone_are_no_capacity_and_a_fleet_of_them_refuses_nothing() -> None:
    gone = replace(node("a"), gone=True, schedulable=False)
    assert never_fits(shape(), Fleet.of([gone])) is None
    assert never(shape(), gone, node("t", 8, "T4"))[2] == "0 (the fleet has T4)"


def decided(policy: Policy, nodes: tuple[NodeFacts, ...], asked: Shape, preemptible: bool = True) -> object:
    job = PendingJob(JobFacts(JobId("j-1"), asked, queue="q", preemptible=preemptible))
    (wait,) = schedule(Snapshot(0, nodes, (), (job,), policy)).decisions
    assert isinstance(wait, Wait)
    assert wait.position is None, "it stands in nobody's way"
    return wait.reason


def test_S16_more_than_the_queue_may_ever_have() -> None:
    fleet = (node("a"), node("b"))
    limited = decided(Policy(queues={"q": Queue(limit={"H100": 12})}), fleet, shape(8, 2))
    assert isinstance(limited, NeverFits)
    assert limited.sentence() == (
        "never fits: asks for 16 H100 devices at once in queue q, the largest possible is 12; "
        "set num_nodes: 1, or use another queue, or raise the limit of q in the policy"
    )
    closed = decided(Policy(queues={"q": Queue(quota={"*": 4}, borrow=False)}), fleet, shape(8))
    assert isinstance(closed, NeverFits)
    assert closed.sentence() == (
        "never fits: asks for 8 devices at once in queue q, the largest possible is 4; "
        "set resources.gpus: H100:4, or use another queue, or raise the quota of q in the policy"
    )


def test_an_elastic_job_is_judged_by_its_fewest_nodes() -> None:
    """It waits for what keeps it from starting on those, in its queue's line; only if they are too many it never fits."""
    elastic = replace(shape(1, 3), min_nodes=1)
    policy = Policy(queues={"a": Queue(quota={"*": 4}), "c": Queue(limit={"*": 2})})
    waiting = PendingJob(JobFacts(JobId("a-1"), shape(4), queue="a"))
    asked = PendingJob(JobFacts(JobId("c-2"), elastic, queue="c", sequence=2))
    other = PendingJob(JobFacts(JobId("c-3"), shape(1), queue="c", sequence=3))
    plan = schedule(Snapshot(0, (node("h", 4, free=0),), (), (waiting, asked, other), policy))
    told = {wait.job: wait for wait in plan.decisions if isinstance(wait, Wait)}
    lent = "what others are guaranteed is not lent, or is waited for by their own jobs"
    assert told[JobId("c-2")].reason == OverQuota("c", "H100", 0, 0, 1, lent)
    assert (told[JobId("c-2")].position, told[JobId("c-3")].position) == (1, 2)
    never = decided(Policy(queues={"q": Queue(limit={"*": 2})}), (node("h"),) * 4, replace(elastic, num_nodes=4, min_nodes=3))
    assert isinstance(never, NeverFits)
    assert (never.asked, never.largest) == ("3", "2")
    assert never.change == "set min_nodes: 2, or use another queue, or raise the limit of q in the policy"


TWO = Queue(limit={"*": 2})
TIGHT = (
    {"a": Queue(quota={"*": 3}, lend=False), "b": TWO, "b-1": Queue(limit={"*": 1}), "default": TWO},
    {"a": Queue(quota={"*": 2}, borrow=False), "b": Queue(quota={"*": 2}), "b-1": Queue(parent="b", borrow=False)},
)
"""Queues that refuse most of what is asked for."""


@settings(max_examples=examples(300), deadline=None)
@given(snapshots(), st.sampled_from(TIGHT))
def test_what_is_told_that_it_never_fits_does_not_start_however_much_is_let_go(
    snapshot: Snapshot, queues: dict[str, Queue]
) -> None:
    """Under the same policy, on the same nodes."""
    snapshot = replace(snapshot, policy=replace(snapshot.policy, queues=queues))
    idle = tuple(
        replace(
            one, free=tuple(index for index, _ in one.devices), shares=(), schedulable=True,
            free_cpus=one.cpus, free_memory_bytes=one.memory_bytes,
        )
        for one in snapshot.nodes
    )  # fmt: skip
    pending = {job.facts.job: PendingJob(job.facts) for job in snapshot.pending}
    for wait in schedule(snapshot).decisions:
        if isinstance(wait, Wait) and isinstance(wait.reason, NeverFits):
            (alone,) = schedule(replace(snapshot, nodes=idle, running=(), pending=(pending[wait.job],))).decisions
            assert isinstance(alone, Wait)
            assert isinstance(alone.reason, NeverFits)


def test_what_a_queue_may_have_later_is_no_never() -> None:
    later = OverLimit("q", "H100", 16, 12, 8)
    for_ever = OverLimit("q", "T4", 4, 0, 8)
    assert refused(shape(), [for_ever, later]) == later
    assert isinstance(refused(shape(), [for_ever]), NeverFits)
    lent = OverQuota("q", "H100", 4, 4, 8, "what others are guaranteed is not lent")
    assert refused(shape(), [lent]) == lent


def test_an_elastic_gang_waits_where_its_queue_may_have_its_fewest_nodes_some_day() -> None:
    elastic, full = shape(1, 8, min_nodes=2), OverLimit("q", "H100", 4, 4, 8)
    assert refused(elastic, [full]) == full
    assert isinstance(refused(shape(1, 8), [full]), NeverFits)
    held = OverQuota("q", "H100", 4, 4, 8, "it may not use more (borrow: false)", for_ever=True)
    assert refused(elastic, [held]) == held
    never = refused(elastic, [OverLimit("q", "H100", 1, 0, 8)])
    assert isinstance(never, NeverFits)
    assert (never.asked, never.largest, never.change.split(", ")[0]) == ("2", "1", "set min_nodes: 1")


@pytest.mark.parametrize(
    ("asked", "most", "change"),
    [
        (shape(8, 3), 20, "set num_nodes: 2"),
        (shape(8, 2), 5, "set resources.gpus: H100:2"),  # on each of both nodes
        (shape(8, 4), 3, "set num_nodes: 1 and resources.gpus: H100:3"),
        (shape(1, 8, group=4), 7, "set num_nodes: 4"),
        (shape(2, 4, group=4), 6, "set resources.gpus: H100:1"),
        (shape(1, 8, group=4), 3, ""),
        (replace(shape(1, 5), request=parse_devices("H100:0.25")), 1, "set num_nodes: 4"),
        (shape(1), 0, ""),
    ],
)
def test_the_change_that_a_full_queue_is_told_fits_it(asked: Shape, most: int, change: str) -> None:
    never = refused(asked, [OverLimit("q", "H100", most, 0, 99)])
    assert isinstance(never, NeverFits)
    assert never.change == f"{change}{', or ' if change else ''}use another queue, or raise the limit of q in the policy"


def test_enough_that_does_not_lie_right_is_told_from_too_little() -> None:
    scattered = Fleet.of([node("a", free=4), node("b", free=6)])
    found = no_room(shape(8), ("H100",), scattered)
    assert found == Geometry(asked=8, free=10, largest=0, each=8, most=6)
    assert found.sentence() == ("waits for devices that lie together: 10 are free, but no node has 8 free; the most on one is 6")
    assert no_room(shape(8, 2), ("H100",), scattered) == NoRoom(asked=16, free=10, held=6)
    two_of_three = no_room(shape(4, 3), ("H100",), Fleet.of([node("a", free=4), node("b", free=7), node("c", free=3)]))
    assert two_of_three == Geometry(asked=12, free=14, largest=8, each=4)


def test_a_share_is_asked_for_as_the_share() -> None:
    quarter = replace(shape(1), request=parse_devices("H100:0.25"))
    busy = Fleet.of([node("a", free=0)])
    found = no_room(quarter, ("H100",), busy)
    assert found == NoRoom(asked=1, free=0, held=8, milli=250)
    assert found.sentence() == "waits for devices: asks for 0.25 of a device, 0 free, 8 held by running jobs"


def test_cores_and_host_memory_are_named_when_they_are_what_is_short() -> None:
    tight = replace(node("a"), free_cpus=4.0, free_memory_bytes=GIB)
    for wanted, what in (({"cpus": 8.0}, "CPU cores"), ({"memory_bytes": 2 * GIB}, "host memory")):
        found = no_room(shape(1, **wanted), ("H100",), Fleet.of([tight]))
        assert found.sentence().startswith(f"waits for {what}: 8 devices are free, but ")


LABELS = st.dictionaries(st.sampled_from([*TIERS, "zone"]), st.sampled_from("xy"), max_size=4)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[NodeFacts, ...]:
    kinds = st.sampled_from(["H100", "T4", CPU_SLOT])
    return tuple(
        NodeFacts(
            NodeId(f"n{number}"), tuple(enumerate(draw(st.lists(kinds, max_size=4)))), (), float(draw(st.integers(-1, 4))), 0.0,
            draw(st.integers(-1, 4)) * GIB, 0, draw(st.booleans()), draw(st.frozensets(st.sampled_from(["image", "lock"]))),
            labels=draw(LABELS), spot=draw(st.booleans()), gone=draw(st.booleans()),
            device_memory_bytes=draw(st.integers(0, 3)) * GIB,
        )
        for number in range(draw(st.integers(1, 5)))
    )  # fmt: skip


SHAPES = st.builds(
    Shape,
    request=st.builds(
        DeviceRequest,
        types=st.sampled_from([(), ("H100",), ("T4", "H100"), ("B200",)]),
        count=st.integers(1, 3),
        memory_bytes=st.sampled_from([0, 2 * GIB, 9 * GIB]),
    ),
    num_nodes=st.integers(1, 4),
    min_nodes=st.sampled_from([0, 0, 1]),
    cpus=st.sampled_from([0.0, 2.0, 9.0]),
    memory_bytes=st.sampled_from([0, 2 * GIB]),
    needs=st.frozensets(st.sampled_from(["image", "lock"])),
    where=st.sampled_from([(), (("zone", "x"),), (("zone", "z"),)]),
    within=st.sampled_from([None, None, "domain", "rack"]),
    group=st.sampled_from([0, 0, 2]),
    spot=st.sampled_from(["never", "allow"]),
)


@settings(max_examples=examples(300), deadline=None)
@given(fleets(), SHAPES)
def test_S16_the_smallest_change_would_fit_and_the_reason_is_true(nodes: tuple[NodeFacts, ...], asked: Shape) -> None:
    fleet = Fleet.of(nodes)
    found = never_fits(asked, fleet)
    if found is None:
        assert eligible_types(asked, fleet) or all(node.gone for node in nodes)
        return
    assert found.change
    change = smallest_change(asked, fleet)
    assert change != asked
    if change is None:
        assert not any(node.devices for node in nodes if not node.gone)
    else:
        assert eligible_types(change, fleet), (found, change)


def test_a_firm_job_never_has_more_than_nobody_is_guaranteed() -> None:
    queues = {"a": Queue(quota={"*": 2}), "b": Queue(quota={"*": 2})}
    never = decided(Policy(queues=queues), (node("a"),), shape(7), preemptible=False)
    assert isinstance(never, NeverFits)
    assert never.sentence() == (
        "never fits: asks for 7 H100 devices that nobody is guaranteed, the largest possible is 4; "
        "set resources.gpus: H100:4, or set preemptible: true, or use another queue, or give q a quota in the policy"
    )
    within = decided(Policy(queues={"q": Queue(quota={"*": 4})}), (node("a"),), shape(7), preemptible=False)
    assert isinstance(within, NeverFits)
    assert within.sentence() == (
        "never fits: asks for 7 devices at once in queue q, the largest possible is 4; "
        "set resources.gpus: H100:4, or set preemptible: true, or use another queue, or raise the quota of q in the policy"
    )
