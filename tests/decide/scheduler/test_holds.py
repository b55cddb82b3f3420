"""What gangs hold is the same, whether counted anew or from what came and went since the last time."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId, attempt_id
from phalanx.decide.scheduler import JobFacts, NodeFacts, RunningJob, Shape, Snapshot
from phalanx.decide.scheduler.quotas.holds import Held, Holds
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.where.ground import survey
from tests.decide.scheduler.snapshots import snapshots

NODE = NodeFacts(NodeId("n1"), tuple((index, "H100") for index in range(8)), tuple(range(8)), 64.0, 64.0, 2**40, 2**40, True)
GROUND = survey((NODE,))


def gang(number: int, count: int, queue: str) -> RunningJob:
    job = JobId(f"job-{number}")
    shape = Shape(DeviceRequest((), count), cpus=2.0)
    placement = Placement((NodeSlice(NODE.node, tuple(range(count))),))
    return RunningJob(JobFacts(job, shape, queue), attempt_id(job, 1), placement, 0)


def held(kept: Holds, running: Iterable[RunningJob]) -> Held:
    return kept.of(Gangs.of(running, GROUND), GROUND)


def test_amounts_by_queue_and_type() -> None:
    leaving = replace(gang(3, 4, "b"), stopping=True, evicted_for=JobId("x-1"), keeps=Placement((NodeSlice(NODE.node, (0,)),)))
    found = held(Holds(), (gang(1, 2, "a"), gang(2, 1, "a"), leaving))
    assert found.by_queue == {"a": {"H100": (3000, 4000, 0, 0, 2)}, "b": {"H100": (1000, 500, 0, 3000, 1)}}
    assert found.by_user == {(queue, ""): amounts for queue, amounts in found.by_queue.items()}


def test_what_was_held_before_stays_known_to_who_asked_then() -> None:
    kept = Holds()
    before = held(kept, (gang(1, 2, "a"),))
    held(kept, (gang(1, 2, "a"), gang(2, 1, "a")))
    assert before == held(Holds(), (gang(1, 2, "a"),))


@given(snapshots())
def test_a_queue_holds_what_its_users_do(snapshot: Snapshot) -> None:
    """Users' lines are made when they are asked for."""
    tree = Tree(snapshot, survey(snapshot.nodes))
    users = {tree.line(gang.facts) for gang in snapshot.running}
    for line in tree.lines.queues:
        of_it = [user for user in users if line in user.path]
        for kind in line.used:
            assert line.used[kind] == sum(user.used.get(kind, 0) for user in of_it)
            assert line.held[kind] == sum(user.held.get(kind, 0) for user in of_it)
        for name in line.host:
            assert line.host[name] == sum(user.host.get(name, 0) for user in of_it)
    assert all(user.share >= user.usage for user in users)


@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=10), max_size=8))
def test_what_came_and_went_gives_the_same_as_all_anew(rounds: list[list[int]]) -> None:
    """Some gangs stay, some go and come again as other objects."""
    kept = Holds()
    alive = {number: gang(number, 1 + number % 4, "abc"[number % 3]) for number in range(0, 10, 2)}
    for numbers in rounds:
        running = tuple(alive.get(number) or gang(number, 1 + number % 4, "abc"[number % 3]) for number in numbers)
        assert held(kept, running) == held(Holds(), running)
