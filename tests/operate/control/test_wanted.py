"""What each node is told to do, as a pure function of the world and the last reports."""

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    EventBody,
    JobSubmitted,
    NodeAway,
    NodeDrained,
    NodeUp,
    PartLost,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import AttemptReport, Forget, RankExit, RankProcess, StartRanks, StopRanks
from phalanx.core.spec import Environment, JobSpec, Recovery, Resources
from phalanx.core.training_data import DataSource, MixtureSource, data_of
from phalanx.operate.control.fences import Fence, Fences, fences
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.names import NUMBER_LEAP, forgotten, next_attempt, next_job
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.snapshots import snapshot
from phalanx.operate.control.taken import Taken, still_holds
from phalanx.operate.control.wanted import Terms, argv, commands, launch, ports
from phalanx.operate.control.world import JobRecord, World
from tests.operate.control.control_bench import a_spec, shape

A, B = NodeId("a"), NodeId("b")
JOB, FIRST = JobId("tiny-1"), AttemptId("tiny-1.1")
PLACE = Placement((NodeSlice(A, (0, 1)), NodeSlice(B, (1,))))
TERMS = Terms(epoch=3, jobs_folder=Path("/home/jobs"), grace_ms=500, gang_key=b"k" * 32)
STOP, FORGET = StopRanks(FIRST, 3, 500), Forget(FIRST, 3)


def world(*more: EventBody, spec: JobSpec | None = None) -> World:
    draft = Draft(World())
    bodies = (NodeUp(shape("a"), "x"), NodeUp(shape("b"), "x"), JobSubmitted(JOB, spec or a_spec(), "c0de", "c", "ada"))
    for body in (*bodies, AttemptPlaced(JOB, FIRST, PLACE, 29_511, 2), *more):
        draft.add(body, 7)
    return draft.world


def seen(a: AttemptReport | None = None, b: AttemptReport | None = None) -> Sightings:
    """Both nodes said Hello, and this."""
    found = Sightings({node: (shape(node), "x") for node in (A, B)})
    found.reports.update({(node, report.attempt): report for node, report in ((A, a), (B, b)) if report is not None})
    return found


UP = AttemptReport(FIRST, 3, "running", (RankProcess(0, 1), RankProcess(1, 2)), (), 9)
FALLEN = replace(UP, ranks=(RankProcess(0, 1),), exits=(RankExit(1, -9, 9, first=True),))
ENDED = replace(UP, phase="ended", ranks=(), exits=(RankExit(0, 0, 9), RankExit(1, 0, 9)))
EMPTY = replace(UP, phase="ended", ranks=(), exits=())
LOST = replace(EMPTY, lost="gone")
ENDED_1 = AttemptEnded(JOB, FIRST, False, True, "", ())


def told(world: World, seen: Sightings) -> dict[str, list[object]]:
    return {
        node: ["start" if isinstance(command, StartRanks) else command for command in all_of]
        for node, all_of in commands(world, seen, TERMS).items()
    }


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (None, None, {"a": ["start"], "b": ["start"]}),
        (UP, None, {"b": ["start"]}),
        (UP, replace(UP, ranks=(RankProcess(2, 3),)), {}),
        (ENDED, None, {"b": ["start"]}),
        (FALLEN, None, {"a": [STOP], "b": [STOP]}),
        (LOST, UP, {"b": [STOP]}),
        (UP, EMPTY, {"a": [STOP]}),
    ],
)
def test_a_gang_is_started_whole_and_stopped_whole(a: AttemptReport | None, b: AttemptReport | None, wanted: object) -> None:
    assert told(world(), seen(a, b)) == wanted


def test_a_job_that_shall_end_is_stopped_where_it_has_not() -> None:
    stopping = world(StopRequested(JOB, "cancel", "ada"))
    assert told(stopping, seen()) == {"a": [STOP], "b": [STOP]}
    assert told(stopping, seen(ENDED, UP)) == {"b": [STOP]}


def test_nothing_is_sent_to_a_node_that_has_not_said_hello() -> None:
    assert told(world(), Sightings()) == {}


def test_what_nobody_wants_is_stopped_then_forgotten() -> None:
    assert told(World(), seen(UP, ENDED)) == {"a": [STOP], "b": [FORGET]}


def test_a_launch_carries_all_that_a_node_needs() -> None:
    now = world()
    job, attempt = now.jobs[JOB], now.attempts[FIRST]
    one, two = launch(now, job, attempt, A, TERMS), launch(now, job, attempt, B, TERMS)
    assert one.argv == ("python", "train.py", "--fast")
    assert one.env == {"SEED": "1"}
    assert (one.code, one.folder, one.python, one.restarts) == ("c0de", "/home/jobs/tiny-1", "", 0)
    assert (one.first_rank, one.world_size, one.node_rank, one.num_nodes, one.devices) == (0, 3, 0, 2, (0, 1))
    assert (two.first_rank, two.world_size, two.node_rank, two.num_nodes, two.devices) == (2, 3, 1, 2, (1,))
    assert (two.master_address, two.master_port) == ("a.test", 29_511)
    assert (one.checkpoint_every, one.checkpoint_keep_last) == (100, 2)
    assert (one.checkpoint_keep_best, one.checkpoint_best_metric, one.checkpoint_best_mode) == (0, "", "min")
    assert one.checkpoint_keep_every == 0
    assert one.hyperparameters == {"lr": 0.5, "steps": 3, "name": "x", "flag": True}


def test_a_recipe_runs_the_trainer_with_its_data() -> None:
    spec = JobSpec(
        name="tiny", kind="train", recipe="llama", data=DataSource(path="/d"), environment=Environment(python="/py"), env={"A": "b"}
    )
    now = world(spec=spec)
    part = launch(now, now.jobs[JOB], now.attempts[FIRST], A, TERMS)
    assert argv(spec) == part.argv == ("", "-m", "phalanx.job.train", "llama")
    assert part.env == {"A": "b", "PHALANX_DATA": "/d"}
    assert part.python == "/py"
    mixed = replace(spec, data=DataSource(sources={"web": MixtureSource(path="/w")}))
    now = world(spec=mixed)
    env = launch(now, now.jobs[JOB], now.attempts[FIRST], A, TERMS).env
    assert data_of(env) == mixed.data


def port_of(now: World, fenced: Fences, job: JobRecord) -> int | None:
    found = ports(now, Taken(now, fenced), job, PLACE)
    return found[0] if found else None


def test_ports_of_gangs_that_live_on_a_node_differ_and_may_run_out() -> None:
    now = world()
    job = now.jobs[JOB]
    few = replace(now.nodes[A], shape=replace(shape("a"), ports=(29_510, 29_512)))
    assert port_of(replace(now, nodes={A: few}), {}, job) == 29_510
    one = replace(now.nodes[A], shape=replace(shape("a"), ports=(29_511, 29_512)))
    assert port_of(replace(now, nodes={A: one}), {}, job) is None


def test_the_port_of_ranks_that_were_given_up_is_not_given_to_others() -> None:
    other = JobId("tiny-2")
    now = world(ENDED_1, JobSubmitted(other, a_spec(), "", "c", "ada"))
    two = replace(now, nodes={A: replace(now.nodes[A], shape=replace(shape("a"), ports=(29_511, 29_512))), B: now.nodes[B]})
    assert port_of(two, fences(two, seen()), two.jobs[other]) == 29_511
    assert port_of(two, fences(two, seen(UP)), two.jobs[other]) is None
    assert port_of(two, fences(two, seen(b=UP)), two.jobs[other]) == 29_511, "only its first node has the port"


RECOVERS = replace(a_spec(), kind="train", num_nodes=2, recovery=Recovery(in_gang=True))


def test_a_gang_of_several_nodes_that_recovers_has_a_port_to_meet_at_and_a_token_that_only_its_nodes_know() -> None:
    now = world(spec=RECOVERS)
    job = now.jobs[JOB]
    found = ports(now, Taken(now, {}), job, PLACE)
    assert found is not None
    assert len({*found, 29_511, 0}) == 4, "two ports, neither of them the last attempt's"
    few = replace(now.nodes[A], shape=replace(shape("a"), ports=(29_510, 29_512)))
    assert ports(replace(now, nodes={A: few}), Taken(now, {}), job, PLACE) is None, "one is not enough"
    assert ports(now, Taken(now, {}), job, Placement(PLACE.slices[:1])) == (found[0], 0), "on one node nobody has to meet"

    met = replace(now.attempts[FIRST], gang_port=29_512)
    one, two = (launch(now, job, met, node, TERMS).recovery for node in (A, B))
    assert one == two
    assert one is not None
    assert (one.ranks, one.port, len(one.token)) == ((2, 1), 29_512, 64)
    again = launch(now, job, met, A, replace(TERMS, epoch=4)).recovery
    assert again == one, "whoever leads next says the same"
    other = launch(now, job, replace(met, id=AttemptId("tiny-1.2")), A, TERMS).recovery
    assert other is not None
    assert other.token != one.token
    assert repr(TERMS.gang_key) not in repr(TERMS)


def test_nodes_of_an_attempt_choose_its_user_by_one_seed_that_the_homes_key_alone_gives() -> None:
    now = world()
    job, attempt = now.jobs[JOB], now.attempts[FIRST]
    one, two = (launch(now, job, attempt, node, TERMS) for node in (A, B))
    assert one.user_seed == two.user_seed and len(one.user_seed) == 64 and one.user_seed not in repr(one)
    other = replace(attempt, id=AttemptId("tiny-1.2"))
    assert launch(now, job, other, A, TERMS).user_seed != one.user_seed, "the one before may be in use on some node"
    alone = [replace(one, placement=Placement(PLACE.slices[:1])) for one in (attempt, other)]
    first, again = (launch(now, job, one, A, TERMS).user_seed for one in alone)
    assert first == again != one.user_seed
    assert launch(now, job, alone[0], A, replace(TERMS, gang_key=b"l" * 32)).user_seed != first


def test_nodes_hear_of_the_policys_store_whatever_the_job_saves_to() -> None:
    now = world()
    ruled = replace(now, policy=replace(now.policy, checkpoint_store="/shared/ckpt"))
    assert launch(ruled, ruled.jobs[JOB], ruled.attempts[FIRST], A, TERMS).store == "/shared/ckpt"


def test_ports_of_both_kinds_are_kept_from_others() -> None:
    draft = Draft(World())
    for body in (NodeUp(shape("a"), "x"), NodeUp(shape("b"), "x"), JobSubmitted(JOB, RECOVERS, "", "c", "ada")):
        draft.add(body, 7)
    draft.add(AttemptPlaced(JOB, FIRST, PLACE, 29_511, 2, 29_512), 7)
    assert Taken(draft.world, {}).ports(A) == {29_511, 29_512}
    assert Taken(draft.world, {}).ports(B) == set()


@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_the_next_attempt_never_gets_the_port_of_the_one_before(more: int) -> None:
    """Whatever the log's length: the old port may still be in TIME_WAIT."""
    ended = AttemptEnded(JOB, FIRST, False, True, "", ())
    others = (JobSubmitted(JobId(f"tiny-{number}"), a_spec(), "", "c", "ada") for number in range(2, 2 + more))
    now = world(ended, *others)
    two = replace(now.nodes[A], shape=replace(shape("a"), ports=(29_510, 29_512)))
    assert port_of(replace(now, nodes={A: two}), {}, now.jobs[JOB]) == 29_510


def test_the_snapshot_takes_off_what_gangs_hold() -> None:
    spec = replace(a_spec(), resources=Resources(gpus="2", cpus=3.0, memory="1GiB"))
    found = snapshot(world(spec=spec), frozenset({A}), 5, {})
    facts = {node.node: node for node in found.nodes}
    assert (facts[A].free, facts[B].free) == ((), (0,))
    assert (facts[A].free_cpus, facts[A].free_memory_bytes) == (5.0, 2**34 - 2**30)
    assert (facts[A].schedulable, facts[B].schedulable) == (True, False)
    assert (found.pending, found.now_ms) == ((), 5)


@pytest.mark.parametrize(
    ("reports", "fenced"),
    [
        ([], ()),
        ([UP], (0, 1)),
        ([ENDED], ()),
        ([replace(UP, attempt=AttemptId("ghost-7.3"), devices=(1,))], (1,)),
        ([replace(UP, attempt=AttemptId("ghost-7.3"))], (0, 1)),
        ([replace(UP, attempt=AttemptId("ghost-7.3"), phase="ended")], ()),
        (
            [replace(UP, attempt=AttemptId("ghost-7.3"), devices=(1,)), replace(UP, attempt=AttemptId("g-1.1"), devices=(0,))],
            (0, 1),
        ),
        ([replace(UP, phase="stopping", ranks=())], (0, 1)),
    ],
)
def test_devices_are_fenced_while_ranks_that_nobody_wants_live_there(reports: list[AttemptReport], fenced: tuple[int, ...]) -> None:
    """By the placement, else by what the node says, else the whole node; and until it says that they ended."""
    now = world(ENDED_1)
    sighted = seen()
    sighted.reports.update({(A, report.attempt): report for report in reports})
    facts = {node.node: node for node in snapshot(now, frozenset({A, B}), 5, fences(now, sighted)).nodes}
    assert (facts[A].fenced, facts[A].free) == (fenced, tuple({0, 1} - set(fenced)))
    assert (facts[B].fenced, facts[B].free) == ((), (0, 1))


def test_a_start_that_a_node_never_answered_keeps_its_devices_and_is_stopped() -> None:
    """It was sent, the node was lost, and it may yet arrive."""
    now, sighted = world(ENDED_1), seen()
    sighted.started.add((B, FIRST))
    assert fences(now, sighted)[B].devices == {1}
    assert told(now, sighted) == {"b": [STOP]}
    assert fences(world(), sighted) == {}, "while the attempt holds its devices, they are held"


def test_what_given_up_ranks_use_of_a_node_is_not_free_either() -> None:
    spec = replace(a_spec(), resources=Resources(gpus="2", cpus=3.0, memory="1GiB"))
    now = world(ENDED_1, spec=spec)
    facts = snapshot(now, frozenset({A}), 5, fences(now, seen(UP))).nodes[0]
    assert (facts.free_cpus, facts.free_memory_bytes) == (5.0, 2**34 - 2**30)


def test_a_live_part_of_a_gang_is_held_and_not_fenced() -> None:
    lost = world(PartLost(JOB, FIRST, A, "gone"))
    assert fences(world(), seen(UP)) == {}
    assert fences(lost, seen(UP)) == {}
    assert lost.held()[A] == {0: FIRST, 1: FIRST}
    assert told(lost, seen(UP)) == {"a": [STOP], "b": [STOP]}


@pytest.mark.parametrize(
    ("reported", "number"),
    [
        ([], 2),
        (["tiny-1.1"], 2),
        (["tiny-1.2", "tiny-1.7", "tiny-11.50"], 8),
        ([f"tiny-1.{NUMBER_LEAP + 2}", "tiny-1.999999999", "tiny-1.x", "tiny-1.", "../tiny-1.5"], 2),
    ],
)
def test_the_next_attempts_name_is_none_that_a_node_still_knows(reported: list[str], number: int) -> None:
    now, sighted = world(ENDED_1), seen()
    sighted.reports.update({(A, AttemptId(name)): replace(UP, attempt=AttemptId(name)) for name in reported})
    assert next_attempt(forgotten(now, sighted), now.jobs[JOB]) == f"tiny-1.{number}"


@pytest.mark.parametrize(
    ("reported", "number"),
    [([], 2), (["tiny-1.9"], 2), (["other-7.1", "tiny-4.2"], 8), ([f"tiny-{NUMBER_LEAP + 2}.1", "tiny-999999999999.1", "x"], 2)],
)
def test_a_new_jobs_name_is_none_that_a_node_still_knows(reported: list[str], number: int) -> None:
    """Its folder, with the checkpoints of the job that was forgotten, would be the new one's."""
    now, sighted = world(ENDED_1), seen()
    sighted.reports.update({(A, AttemptId(name)): replace(UP, attempt=AttemptId(name)) for name in reported})
    assert next_job(now, sighted, "new") == f"new-{number}"


def test_numbers_that_are_passed_over_use_up_no_restarts() -> None:
    now = world(ENDED_1, AttemptPlaced(JOB, AttemptId("tiny-1.8"), PLACE, 29_511, 2))
    job = now.jobs[JOB]
    assert (job.state.attempt, job.interruptions, job.attempts) == (8, 6, (FIRST, "tiny-1.8"))


def test_the_snapshot_says_what_agents_can_do_and_which_nodes_are_drained() -> None:
    able = NodeUp(replace(shape("b"), features=("image", "lock")), "x")
    now = world(able, NodeDrained(A, "disk", "ada"), NodeDrained(B, "disk", "ada"), NodeAway(B))
    asked = JobSubmitted(JobId("tiny-2"), replace(a_spec(), environment=Environment(image="x")), "", "c", "ada")
    draft = Draft(now)
    draft.add(asked, 9)
    found = snapshot(draft.world, frozenset(), 5, {})
    facts = {node.node: node for node in found.nodes}
    assert facts[A].features == frozenset()
    assert facts[B].features == {"image", "lock"}
    assert (facts[A].drained, facts[B].drained) == (True, False), "undraining a node that is away opens nothing"
    assert found.pending[0].facts.shape.needs == {"image"}


def test_a_node_that_names_a_device_twice_has_it_once() -> None:
    twice = replace(shape("a", 1), devices=shape("a", 1).devices * 2)
    draft = Draft(World())
    draft.add(NodeUp(twice, "x"), 1)
    (facts,) = snapshot(draft.world, frozenset({A}), 5, {}).nodes
    assert (facts.devices, facts.free) == (((0, "cpu"),), (0,))


def test_a_decision_holds_only_while_its_devices_are_free_and_its_nodes_ready() -> None:
    second = JobId("tiny-2")
    now = world(JobSubmitted(second, a_spec(), "", "c", "ada"))
    ready = frozenset({A, B})
    free, held = Placement((NodeSlice(B, (0,)),)), Placement((NodeSlice(B, (1,)),))

    def holds_still(ready: frozenset[NodeId], job: JobId, placement: Placement, fenced: Fences | None = None) -> bool:
        return still_holds(now, Taken(now, fenced or {}), ready, job, placement)

    assert holds_still(ready, second, free)
    assert not holds_still(ready, second, held)
    assert not holds_still(ready, second, Placement((NodeSlice(B, (9,)),)))
    assert not holds_still(frozenset({A}), second, free)
    assert not holds_still(ready, JOB, free)
    assert not holds_still(ready, JobId("no-9"), free)
    assert not holds_still(ready, second, free, {B: Fence(frozenset({0}))})
    assert holds_still(ready, second, free, {A: Fence(frozenset({0})), B: Fence(frozenset({1}))})


def test_a_plain_job_finds_no_variable_of_shares_or_arrays() -> None:
    now = world()
    env = launch(now, now.jobs[JOB], now.attempts[FIRST], A, TERMS).env
    assert env == {"SEED": "1"}
