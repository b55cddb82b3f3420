"""Whatever a plan says, be it nonsense: no device is held or claimed beyond what there is, nobody is ended without a claim, and
what was claimed is placed with nobody else."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import WHOLE, NodeSlice, Placement
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    DevicesClaimed,
    EventBody,
    JobEvicted,
    JobResumed,
    JobSubmitted,
    JobWaits,
    NodeAway,
    NodeDrained,
    NodeUndrained,
    NodeUp,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.reasons import NoRoom
from phalanx.core.spec import Resources
from phalanx.core.states import Holding, Paused, Pending, Running, Starting
from phalanx.decide.scheduler import Claim, Evict, Plan, Start, Wait
from phalanx.operate.control.fences import Fence
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.planned import carry
from phalanx.operate.control.world import World
from tests.drawn import examples
from tests.operate.control.control_bench import a_spec, shape

NODES = [NodeId("a"), NodeId("b")]
JOBS = [JobId(f"tiny-{number}") for number in range(1, 6)]
MILLI = {job: 400 if number % 2 else WHOLE for number, job in enumerate(JOBS)}


FIRST = [(JOBS[0], "a", 0), (JOBS[2], "a", 1), (JOBS[1], "b", 0)]
"""Who runs where at first."""


def on(node: str, job: JobId, device: int) -> Start:
    return Start(job, Placement((NodeSlice(NodeId(node), (device,), MILLI[job]),)))


@st.composite
def placements(draw: st.DrawFn, job: JobId) -> Placement:
    """Of the job's kind of share; of nodes and devices that are there, mostly."""
    nodes = draw(st.lists(st.sampled_from([*NODES * 3, NodeId("ghost")]), min_size=1, max_size=2))
    devices = st.lists(st.sampled_from([0, 0, 1, 1, 2]), min_size=1, max_size=2).map(tuple)
    return Placement(tuple(NodeSlice(node, draw(devices), MILLI[job]) for node in nodes))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    some = st.lists(st.sampled_from(JOBS), max_size=3)
    starts = tuple(Start(job, draw(placements(job))) for job in draw(some))
    claims = tuple(Claim(job, draw(st.one_of(placements(job), st.none()))) for job in draw(some))
    if draw(st.booleans()):  # what goes together, as a scheduler would say it
        claimant, (victim, node, device) = draw(st.sampled_from(JOBS)), draw(st.sampled_from(FIRST))
        room = draw(st.one_of(st.just(on(node, claimant, device).placement), placements(claimant)))
        eviction = Evict(victim, AttemptId(f"{victim}.1"), claimant, "priority", 1)
        return Plan(starts, (eviction,), (Claim(claimant, room),))
    return Plan(starts, tuple(draw(evictions(job)) for job in draw(some)), claims)


@st.composite
def evictions(draw: st.DrawFn, job: JobId) -> Evict:
    attempt = AttemptId(f"{job}.{draw(st.integers(1, 2))}")
    keeps = draw(st.one_of(st.none(), placements(job)))
    return Evict(job, attempt, draw(st.sampled_from(JOBS)), "priority", 1, keeps)


def step_of(world: World, job: JobId, what: int) -> EventBody | None:
    """Something that happens besides plans, if it can."""
    record, node = world.jobs[job], NODES[what % 2]
    match record.state, what:
        case ((Starting() | Running()), 0):
            return StopRequested(job, "pause", "ada")
        case state, 1 if isinstance(state, Holding) and record.attempt:
            return AttemptEnded(job, record.attempt, False, True, "", ())
        case Paused(), 2:
            return JobResumed(job, "ada")
        case _, 3:
            return NodeAway(node) if world.nodes[node].up else NodeUp(shape(node, 2), "x")
        case _, 4:
            return NodeUndrained(node, "ada") if world.nodes[node].drained else NodeDrained(node, "fans", "ada")
        case _:
            return None


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(st.tuples(plans(), st.sampled_from(JOBS), st.integers(0, 6), st.booleans()), min_size=4, max_size=8))
def test_whatever_a_plan_says(history: list[tuple[Plan, JobId, int, bool]]) -> None:
    draft = Draft(World())
    for node in NODES:
        draft.add(NodeUp(shape(node, 2), "x"), 1)
    for job in JOBS:
        spec = replace(a_spec(), resources=Resources(gpus="1" if MILLI[job] == WHOLE else "0.4"))
        draft.add(JobSubmitted(job, spec, "", "c", "ada"), 1)
    seen = Sightings({node: (shape(node, 2), "x") for node in NODES})
    carry(draft, seen, {}, Plan(tuple(on(node, job, device) for job, node, device in FIRST)), 1, 2, strangers=False)
    for plan, job, what, fenced in history:
        draft = Draft(draft.world)
        fences = {NODES[0]: Fence(devices=frozenset({0}))} if fenced else {}
        world = draft.world
        carry(draft, seen, fences, plan, 1, 5, strangers=False)
        check(world, [event.body for event in draft.events], draft.world)
        body = step_of(draft.world, job, what)
        if body is not None:
            draft.add(body, 6)


def check(before: World, bodies: list[EventBody], world: World) -> None:
    world.holds()
    claims = {job.id: job.claim for job in before.open_jobs.values()}
    for body in bodies:
        match body:
            case DevicesClaimed(job=job, placement=placement):
                claims[job] = placement
            case JobEvicted(claimant=claimant):
                assert claims[claimant] is not None
            case AttemptPlaced(job=job, placement=placement):
                assert claims.pop(job) in (None, placement)
    kept = Counter[tuple[NodeId, int]]()
    for record in world.open_jobs.values():
        if record.claim is not None:
            assert isinstance(record.state, Pending | Holding)
            kept.update({(part.node, index): part.milli for part in record.claim.slices for index in part.devices})
    assert max(kept.values(), default=0) <= WHOLE
    for body in bodies:
        if isinstance(body, AttemptPlaced):
            for part in body.placement.slices:
                assert all(kept[part.node, index] + part.milli <= WHOLE for index in part.devices)


def test_a_wait_is_told_again_when_the_ledger_books_it_otherwise_and_not_for_its_numbers() -> None:
    draft = Draft(World())
    draft.add(JobSubmitted(JOBS[0], a_spec(), "", "c", "ada"), 1)
    for at_ms, free in ((2, 2), (3, 1), (4, 4), (5, 5)):  # of the four asked for
        carry(draft, Sightings({}), {}, Plan((Wait(JOBS[0], NoRoom(4, free, 0), 1),)), 1, at_ms, strangers=False)
    told = [(event.at_ms, event.body.reason) for event in draft.events if isinstance(event.body, JobWaits)]
    assert told == [(2, NoRoom(4, 2, 0)), (4, NoRoom(4, 4, 0))]
