"""The scheduler's promises: cases users of other platforms hit, and properties over any fleet and line."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from phalanx.core import wire
from phalanx.core.devices import CPU_SLOT, DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.reasons import Backoff, Behind, Geometry, NeverFits, NoNodes, NoRoom
from phalanx.decide.scheduler import NodeFacts, PendingJob, Plan, PutOff, RunningJob, Snapshot, Start, Wait, schedule
from phalanx.decide.scheduler.snapshot import JobFacts, Shape
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.why.explain import never_fits

GIB = 2**30


def node(name: str, count: int = 8, kind: str = "H100", free: int | None = None, cpus: float = 64, up: bool = True) -> NodeFacts:
    left = count if free is None else free
    return NodeFacts(
        node=NodeId(name),
        devices=tuple((index, kind) for index in range(count)),
        free=tuple(range(count - left, count)),
        cpus=cpus,
        free_cpus=cpus,
        memory_bytes=512 * GIB,
        free_memory_bytes=512 * GIB,
        schedulable=up,
    )


def job(name: str, sequence: int, count: int = 1, num_nodes: int = 1, kind: str | None = None, priority: int = 50) -> PendingJob:
    shape = Shape(DeviceRequest((kind,) if kind else (), count), num_nodes)
    return PendingJob(JobFacts(JobId(name), shape, priority=priority, submitted_ms=1000 + sequence, sequence=sequence))


def shaped(asked: PendingJob, **changes: Any) -> PendingJob:
    """The same job with another shape."""
    return fact(asked, shape=replace(asked.facts.shape, **changes))


def fact(asked: PendingJob, **changes: Any) -> PendingJob:
    """The same job with other facts."""
    return replace(asked, facts=replace(asked.facts, **changes))


def impossible(asked: PendingJob, nodes: Iterable[NodeFacts]) -> NeverFits | None:
    return never_fits(asked.facts.shape, Fleet.of(nodes))


def decided(nodes: list[NodeFacts], *pending: PendingJob) -> dict[str, Start | Wait]:
    plan = schedule(Snapshot(0, tuple(nodes), (), pending))
    return {decision.job: decision for decision in plan.decisions}


def reason(decision: Start | Wait) -> object:
    assert isinstance(decision, Wait), decision
    return decision.reason


def where(decision: Start | Wait) -> list[tuple[str, tuple[int, ...]]]:
    assert isinstance(decision, Start), decision
    return [(part.node, part.devices) for part in decision.placement.slices]


def test_one_job_takes_the_lowest_devices_of_the_only_node() -> None:
    assert where(decided([node("a")], job("j-1", 1, count=2))["j-1"]) == [("a", (0, 1))]


def test_S13_no_half_gangs() -> None:
    """Two gangs of two nodes on three nodes: one runs whole, the other holds nothing."""
    plan = decided([node("a"), node("b"), node("c")], job("x-1", 1, 8, 2), job("y-2", 2, 8, 2))
    assert where(plan["x-1"]) == [("a", tuple(range(8))), ("b", tuple(range(8)))]
    assert reason(plan["y-2"]) == NoRoom(asked=16, free=8, held=16)


def test_S15_stable_order_among_equals() -> None:
    """Equals start by age, whatever order they are listed in, and a lower one never changes places with them."""
    line = [job("e-1", 1, priority=40), job("e-2", 2, priority=40), job("e-3", 3, priority=40), job("e-4", 4, priority=30)]
    for pending in (line, line[::-1], line[2:] + line[:2]):
        plan = decided([node("a", 2)], *pending)
        assert [isinstance(plan[name], Start) for name in ("e-1", "e-2", "e-3", "e-4")] == [True, True, False, False]
        waits = [plan["e-3"], plan["e-4"]]
        assert [wait.position for wait in waits if isinstance(wait, Wait)] == [1, 2]


def test_S06_order_per_pool() -> None:
    """The head of the line wants A100s that are taken; a T4 job behind it does not wait for them, an A100 job does."""
    fleet = [node("a", 8, "A100", free=4), node("t", 4, "T4")]
    plan = decided(fleet, job("big-1", 1, 8, kind="A100"), job("t4-2", 2, 1, kind="T4"), job("small-3", 3, 1, kind="A100"))
    assert reason(plan["big-1"]) == NoRoom(asked=8, free=4, held=4)
    assert where(plan["t4-2"]) == [("t", (0,))]
    assert reason(plan["small-3"]) == Behind(JobId("big-1"), 2)


def test_S04_small_jobs_do_not_pass_a_gang_as_large_as_the_fleet() -> None:
    plan = decided([node("a", 8, free=7)], job("all-1", 1, 8), *(job(f"s-{number}", number, 1) for number in range(2, 9)))
    assert reason(plan["all-1"]) == NoRoom(asked=8, free=7, held=1)
    assert all(reason(plan[f"s-{number}"]) == Behind(JobId("all-1"), number) for number in range(2, 9))


def test_a_job_of_any_type_passes_a_head_of_another_type() -> None:
    fleet = [node("a", 8, "A100", free=1), node("t", 4, "T4")]
    plan = decided(fleet, job("head-1", 1, 8, kind="A100"), job("any-2", 2, 1))
    assert where(plan["any-2"]) == [("t", (0,))]


def test_any_type_prefers_gpus_to_cpu_slots_and_mixes_none() -> None:
    fleet = [node("cpus", 16, CPU_SLOT), node("g", 2, "T4"), node("h", 2, "A100")]
    assert where(decided(fleet, job("j-1", 1, 2))["j-1"]) == [("h", (0, 1))]
    assert where(decided(fleet, job("j-1", 1, 1, num_nodes=1, kind=CPU_SLOT))["j-1"]) == [("cpus", (0,))]
    assert reason(decided(fleet, job("j-1", 1, 2, num_nodes=2))["j-1"]) == NeverFits(
        "nodes with A100:2", "2", "1", "set num_nodes: 1, or add nodes"
    )


def test_S14_fills_the_fullest_node_that_fits() -> None:
    fleet = [node("a", free=8), node("b", free=3), node("c", free=2), node("d", free=3)]
    assert where(decided(fleet, job("j-1", 1, 3))["j-1"]) == [("b", (5, 6, 7))]
    assert where(decided(fleet, job("j-1", 1, 1))["j-1"]) == [("c", (6,))]


def test_cpus_and_memory_count_and_are_taken_off() -> None:
    line = [shaped(job(f"j-{number}", number), cpus=40.0, memory_bytes=300 * GIB) for number in (1, 2, 3)]
    plan = decided([node("a"), node("b")], *line)
    assert [where(plan[name])[0][0] for name in ("j-1", "j-2")] == ["a", "b"]
    short = reason(plan["j-3"])
    assert short == Geometry(asked=1, free=14, largest=0, short="cpus")
    assert short.sentence() == (
        "waits for CPU cores: 14 devices are free, but of the 1 asked for at once only 0 are on nodes with enough CPU cores left"
    )


def test_S16_never_fits_names_the_resource() -> None:
    fleet = [node("a", 4, cpus=16), node("b", 2, cpus=64), node("c", 2, "T4")]
    cases = {
        job("j", 1, 8, kind="H100"): NeverFits("H100 devices on a node", "8", "4 (a)", "set resources.gpus: H100:4, or add nodes"),
        job("j", 1, 2, kind="B200"): NeverFits(
            "B200 devices on a node", "2", "0 (the fleet has H100, T4)", "set resources.gpus: H100:2, or add nodes"
        ),
        shaped(job("j", 1, 4, kind="H100"), cpus=32): NeverFits(
            "cpus on a node", "32", "16 (a)", "set resources.cpus: 16, or add nodes"
        ),
        shaped(job("j", 1, 1), memory_bytes=1024 * GIB): NeverFits(
            "memory on a node", "1.0 TiB", "512.0 GiB (a)", "set resources.memory: 524288MiB, or add nodes"
        ),
        job("j", 1, 3, num_nodes=2, kind="H100"): NeverFits("nodes with H100:3", "2", "1", "set num_nodes: 1, or add nodes"),
        job("j", 1, 8, num_nodes=2, kind="H100"): NeverFits(
            "H100 devices on a node", "8", "4 (a)", "set resources.gpus: H100:2, or add nodes"
        ),
    }
    for asked, answer in cases.items():
        assert impossible(asked, fleet) == answer
        assert reason(decided(fleet, asked)["j"]) == answer
        assert answer.resource in answer.sentence()


def test_S16_a_job_that_can_never_fit_stands_in_nobodys_way() -> None:
    plan = decided([node("a")], job("never-1", 1, 64, priority=100), job("j-2", 2, 8))
    never = plan["never-1"]
    assert isinstance(never, Wait)
    assert never.position is None
    assert where(plan["j-2"]) == [("a", tuple(range(8)))]


def test_no_nodes_is_said_and_refuses_nothing() -> None:
    plan = decided([], job("a-1", 1, 64), job("b-2", 2))
    assert [plan["a-1"], plan["b-2"]] == [Wait(JobId("a-1"), NoNodes(0), 1), Wait(JobId("b-2"), NoNodes(0), 2)]
    assert impossible(job("a-1", 1, 64), ()) is None


def test_a_node_that_has_not_reported_gets_nothing_but_counts_for_what_fits() -> None:
    assert reason(decided([node("a", up=False)], job("j-1", 1, 8))["j-1"]) == NoNodes(1)
    assert reason(decided([node("a", up=False), node("b", 2)], job("j-1", 1, 8))["j-1"]) == NoRoom(
        asked=8, free=2, held=0, closed=8
    )
    assert isinstance(reason(decided([node("a", up=False)], job("j-1", 1, 9))["j-1"]), NeverFits)


def test_a_drained_node_gets_nothing_and_counts_for_what_fits() -> None:
    drained = replace(node("a", up=False), drained=True)
    waits = NoNodes(2, drained=1)
    assert reason(decided([drained, node("b", 2, up=False)], job("j-1", 1, 8))["j-1"]) == waits
    assert waits.sentence() == "waits for nodes: 1 of 2 known is drained; `phalanx node undrain NODE` opens one again"
    some = reason(decided([drained, node("b", 2)], job("j-1", 1, 8))["j-1"])
    assert isinstance(some, NoRoom)
    assert some.sentence().endswith("2 free, 0 held by running jobs, 8 on nodes that are away or drained")
    assert impossible(job("j-1", 1, 8), [drained]) is None
    assert isinstance(impossible(job("j-1", 1, 9), [drained]), NeverFits)


def test_devices_on_which_given_up_ranks_live_are_neither_free_nor_held() -> None:
    fenced = replace(node("a", 4, free=1), fenced=(0, 1))
    said = reason(decided([fenced], job("j-1", 1, 2))["j-1"])
    assert said == NoRoom(asked=2, free=1, held=1, fenced=2)
    assert "1 held by running jobs, 2 not yet let go of by ranks that were given up" in NoRoom(2, 1, 1, 2).sentence()


def able(name: str, *features: str, count: int = 8) -> NodeFacts:
    return replace(node(name, count), features=frozenset(features))


def needing(*needs: str, count: int = 1, num_nodes: int = 1, kind: str | None = None) -> PendingJob:
    return shaped(job("j-1", 1, count, num_nodes, kind), needs=frozenset(needs))


def test_a_job_runs_only_where_the_agents_can_do_what_it_needs() -> None:
    fleet = [able("a"), able("b", "image"), able("c", "image", "secrets"), able("d", "image")]
    assert where(decided(fleet, needing("image", "secrets"))["j-1"]) == [("c", (0,))]
    assert [name for name, _ in where(decided(fleet, needing("image", num_nodes=3))["j-1"])] == ["b", "c", "d"]
    busy = [able("a"), replace(able("b", "image"), free=())]
    assert reason(decided(busy, needing("image"))["j-1"]) == NoRoom(asked=1, free=0, held=8), "a's devices are none for it"
    away = [able("a"), replace(able("b", "image"), schedulable=False)]
    assert reason(decided(away, needing("image"))["j-1"]) == NoRoom(asked=1, free=0, held=0, closed=8)


def test_what_no_agent_can_do_is_named_with_what_would_help() -> None:
    tools = "install podman, apptainer or enroot on more nodes that do not keep jobs apart"
    old = [able("a"), able("b", "secrets")]
    cases = {
        needing("image"): NeverFits("environment.image", "1", "none", f"leave environment.image out, or {tools}"),
        needing("image", "secrets"): NeverFits("environment.image", "1", "none", f"leave environment.image out, or {tools}"),
        needing("lock"): NeverFits(
            "environment.lock",
            "1",
            "none",
            "leave environment.lock out, or give more nodes a phalanx that builds environments, with uv, and "
            "does not keep jobs apart",
        ),
        needing("lease"): NeverFits(
            "on_partition",
            "1",
            "none",
            "leave on_partition out, or upgrade phalanx on more nodes to one whose shims keep the lease",
        ),
        needing("secrets", num_nodes=2): NeverFits(
            "nodes with secrets", "2", "1", "set num_nodes: 1, or upgrade phalanx on more nodes to one that fetches secrets"
        ),
        needing("image", count=64): NeverFits(
            "environment.image", "1", "none", "leave environment.image out and set resources.gpus: 8, or add nodes"
        ),
        needing("secrets", count=64): NeverFits("H100 devices on a node", "64", "8 (b)", "set resources.gpus: 8, or add nodes"),
        needing("secrets", kind="T4"): NeverFits(
            "T4 devices on a node", "1", "0 (the fleet has H100)", "set resources.gpus: H100:1, or add nodes"
        ),
        needing("never-heard-of"): NeverFits(
            "never-heard-of", "1", "none", "leave never-heard-of out, or give more nodes never-heard-of"
        ),
    }
    for asked, answer in cases.items():
        assert impossible(asked, old) == answer
        assert reason(decided(old, asked)["j-1"]) == answer
    said = cases[needing("image")].sentence()
    assert said == f"never fits: no node can do what environment.image asks for; leave environment.image out, or {tools}"


def test_the_able_nodes_may_have_other_devices_than_the_job_asks_for() -> None:
    fleet = [node("a"), replace(node("t", 2, "T4"), features=frozenset({"image"}))]
    answer = impossible(needing("image", count=4, kind="H100"), fleet)
    assert answer is not None
    assert (answer.resource, answer.largest) == ("environment.image", "none")
    assert answer.change.startswith("set resources.gpus: T4:2, or install podman")


def test_a_restart_that_is_put_off_waits_for_its_time_and_stands_in_nobodys_way() -> None:
    off = PutOff(not_before_ms=9_000, attempts=3, within_ms=1_800, detail="rank 0 exited with code 1")
    crashing = replace(job("crash-1", 1, 8), put_off=off)
    fleet, line = (node("a"),), (crashing, job("next-2", 2, 8), job("last-3", 3, 8))
    early: dict[str, Start | Wait] = {one.job: one for one in schedule(Snapshot(1_500, fleet, (), line)).decisions}
    assert early["crash-1"] == Wait(JobId("crash-1"), Backoff(7_500, 3, 1_800, "rank 0 exited with code 1"), None)
    said = "restarts in 8s: the last 3 attempts each ended within 2s; rank 0 exited with code 1"
    assert Backoff(7_500, 3, 1_800, off.detail).sentence() == said
    assert Backoff(1, 1, 0, "x").sentence() == "restarts in 1s: the last attempt ended within 0s; x"
    assert isinstance(early["next-2"], Start)
    assert [one.position for one in early.values() if isinstance(one, Wait)] == [None, 1]
    for due_ms in (9_000, -86_400_000):
        (first, *_) = schedule(Snapshot(due_ms, fleet, (), line)).decisions
        assert isinstance(first, Start), "due, or the clock was set back"


def test_a_place_counts_within_the_jobs_own_queue() -> None:
    line = [fact(job(f"j-{number}", number, 8), queue="ab"[number % 2]) for number in range(6)]
    plan = decided([node("a", free=0)], *line)
    assert [wait.position for wait in plan.values() if isinstance(wait, Wait)] == [1, 1, 2, 2, 3, 3]


def test_a_node_that_says_nonsense_of_itself_divides_by_nothing() -> None:
    odd = replace(node("odd"), cpus=-4.0, free_cpus=-4.0, memory_bytes=-1, free_memory_bytes=-1)
    assert isinstance(decided([odd], job("j-1", 1, 8))["j-1"], Start)
    wants = shaped(job("j-1", 1, 8), cpus=2.0, memory_bytes=GIB)
    answer = reason(decided([odd], wants)["j-1"])
    assert isinstance(answer, NeverFits)
    assert answer.change == "set resources.cpus: 0, resources.memory: 0MiB, or add nodes"


def test_snapshot_and_plan_travel_as_json() -> None:
    """The live scheduler is another process."""
    running = RunningJob(job("r-1", 9).facts, AttemptId("r-1.1"), Placement((NodeSlice(NodeId("a"), (0,)),)), placed_ms=7)
    snapshot = Snapshot(9, (node("a", free=7),), (running,), (job("j-1", 1, 8), job("j-2", 2), job("j-3", 3, kind="B200")))
    assert wire.loads(Snapshot, wire.dumps(Snapshot, snapshot)) == snapshot
    plan = schedule(snapshot)
    assert wire.loads(Plan, wire.dumps(Plan, plan)) == plan
