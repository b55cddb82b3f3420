"""Epochs only grow: a database restored from an older copy, a control plane that was superseded, a node that lies."""

from typing import Any

import pytest
from sqlalchemy import delete, insert, select

from phalanx.core.errors import Bug, StoreUnavailable
from phalanx.core.events import NodeUp
from phalanx.core.ids import AttemptId
from phalanx.core.messages import PROTOCOL, Hello, StopRanks
from phalanx.decide.scheduler import Plan
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.observed import EPOCH_LEAP, EPOCH_MAX, is_believable
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import metadata
from tests.operate.control.control_bench import Bench, DatabaseLock, a_spec, shape

pytestmark = pytest.mark.both_databases

FIRST, SECOND = AttemptId("tiny-1.1"), AttemptId("tiny-1.2")


Rows = dict[str, list[dict[str, Any]]]


def copied(bench: Bench) -> Rows:
    """A backup of the database, as of now."""
    with bench.store.reading() as connection:
        rows = {
            name: [dict(row) for row in connection.execute(select(table)).mappings()] for name, table in metadata.tables.items()
        }
    bench.restart()
    return rows


def restore(bench: Bench, copy: Rows) -> None:
    with bench.store.leading(bench.control.epoch) as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(delete(table))
        for table in metadata.sorted_tables:
            if copy[table.name]:
                connection.execute(insert(table), copy[table.name])
    bench.restart()


def test_a_control_plane_over_a_restored_database_leads_above_every_node(bench: Bench) -> None:
    copy = copied(bench)
    agent = bench.add("a")
    for _ in range(5):
        bench.restart()
    agent.hello()
    job = bench.submit()
    bench.tick()
    assert agent.epoch == bench.control.epoch == 7
    restore(bench, copy)
    assert bench.control.epoch == 2
    agent.hello()
    bench.tick()
    assert bench.control.epoch == 8
    assert agent.got[-1] == StopRanks(FIRST, 8, 10_000), "it obeys: what the restored log does not know is stopped"
    assert job not in bench.world.jobs
    again = bench.submit()
    assert again != job, "the name, and so the folder, is another one's"
    bench.tick(2)
    assert agent.starts == [FIRST, f"{again}.1"]
    assert bench.attempt(again).epoch == 8
    bench.restart()
    assert bench.control.epoch == 9, "it is durable"


def test_a_restored_log_never_gives_an_attempts_name_a_second_time_while_a_node_knows_it(bench: Bench) -> None:
    """Else the node would take the new attempt for the one it has, and its fence would let the old one's commits pass."""
    job = bench.submit(a_spec(max_restarts=1))
    copy = copied(bench)
    agent, other = bench.add("a"), bench.add("b")
    bench.tick()
    (old,) = [one for one in (agent, other) if one.starts]
    old.run(FIRST)
    old.deaf = True
    bench.tick()
    restore(bench, copy)
    agent.hello()
    other.hello()
    bench.tick()
    assert bench.job(job).attempts == (SECOND,)
    (new,) = [one for one in (agent, other) if SECOND in one.starts]
    assert new is not old, "the device on which the old one lives is fenced"
    assert bench.job(job).interruptions == 1, "a number that was passed over is no restart"
    new.run(SECOND)
    new.end(SECOND, 1)
    bench.pass_time(3_000, "a", "b")
    assert bench.job(job).attempts == (SECOND, "tiny-1.3")


def test_meeting_the_same_or_an_older_epoch_writes_nothing(bench: Bench) -> None:
    agent = bench.add("a")
    bench.tick()
    for seen in (0, bench.control.epoch):
        agent.epoch = seen
        agent.hello()
        bench.tick()
        assert bench.control.lead_above(seen) == bench.control.epoch == 1


def test_a_welcome_carries_the_raised_epoch(bench: Bench) -> None:
    assert bench.control.lead_above(41) == 42
    assert bench.control.epoch == 42
    bench.restart()
    assert bench.control.epoch == 43


def test_a_superseded_control_plane_that_meets_a_node_of_its_successor_ends(bench: Bench) -> None:
    stale = bench.control
    newer = Controller(bench.store, bench.clock, bench.links, bench.settings)
    agent = bench.add("a", greet=False)
    agent.epoch = newer.epoch
    with pytest.raises(Bug, match="superseded"):
        stale.lead_above(agent.epoch)
    agent.hello()
    with pytest.raises(Bug, match="superseded"):
        stale.observe()
    assert newer.epoch == 2
    newer.tick(lambda _: Plan(()))
    bench.control = newer


def test_a_superseded_control_plane_that_has_nothing_to_write_ends_too(bench: Bench) -> None:
    """Else its agents' connections would stand, and its successor never hear of them."""
    bench.add("a")
    bench.tick()
    stale, events = bench.control, bench.log()
    newer = Controller(bench.store, bench.clock, bench.links, bench.settings)
    with pytest.raises(Bug, match="superseded by 2"):
        stale.observe()
    bench.control = newer
    assert bench.log() == events


@pytest.mark.parametrize("seen", [-1, EPOCH_LEAP + 2, EPOCH_MAX + 1, 2**63, 2**70])
def test_a_node_that_saw_what_cannot_be_is_not_heard_and_breaks_nothing(bench: Bench, seen: int) -> None:
    honest = bench.add("b")
    bench.control.heard(shape("a").node, Hello(shape("a"), "boot", PROTOCOL, "0", seen, ()))
    bench.tick()
    assert [body.shape.node for body in bench.log(NodeUp) if isinstance(body, NodeUp)] == [honest.node]
    assert bench.control.epoch == 1
    with pytest.raises(ValueError, match=r"cannot be.*delete the epoch\.json"):
        bench.control.lead_above(seen)
    bench.submit()
    bench.tick()
    assert honest.starts == [FIRST]


def test_a_lie_that_is_believed_shuts_no_honest_node_out(bench: Bench) -> None:
    """A node may raise the epoch as far as a backup could explain, again and again: everybody else follows."""
    honest = bench.add("b")
    for _ in range(3):
        lie = bench.control.epoch + EPOCH_LEAP
        bench.control.heard(shape("a").node, Hello(shape("a"), "boot", PROTOCOL, "0", lie, ()))
        bench.tick()
        bench.submit(a_spec(gpus="1"))
        bench.tick()
        assert bench.control.epoch == lie + 1
        honest.hello()
        bench.tick()
        assert bench.world.nodes[honest.node].up
    assert honest.epoch == bench.control.epoch
    assert not is_believable(EPOCH_MAX + 1, EPOCH_MAX), "and far below what a database can count to it ends"


def test_a_database_that_is_away_while_the_epoch_is_raised_changes_nothing(bench: Bench, locked: DatabaseLock) -> None:
    agent = bench.add("a", greet=False)
    agent.epoch = 5
    agent.hello()
    with locked:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                bench.tick()
    assert bench.control.epoch == 1
    bench.tick()
    assert bench.control.epoch == 6
    assert bench.world.nodes[agent.node].up


class HalfDoneStore(Store):
    """The epoch is raised, and the answer is lost."""

    lose = False

    def raise_epoch(self, epoch: int, to: int) -> int:
        raised = super().raise_epoch(epoch, to)
        if self.lose:
            raise StoreUnavailable("disk I/O error at COMMIT")
        return raised


def test_a_raised_epoch_whose_answer_was_lost_ends_the_process_and_the_next_one_leads(bench: Bench) -> None:
    """Whether the number is this leader's or another's that chose the same, nobody can tell; so nobody goes on with it."""
    bench.store.close()
    store = HalfDoneStore(bench.database, busy_ms=50)
    bench.store, bench.control = store, Controller(store, bench.clock, bench.links, bench.settings)
    store.lose = True
    with pytest.raises(StoreUnavailable):
        bench.control.lead_above(9)
    with pytest.raises(Bug, match="superseded by 10"):
        bench.tick()
    bench.restart()
    assert bench.control.epoch == 11


def test_the_store_raises_only_a_leaders_epoch_and_never_lowers_it(bench: Bench) -> None:
    assert bench.store.raise_epoch(1, 0) == 1
    with pytest.raises(Bug, match="superseded"):
        bench.store.raise_epoch(0, 9)
    assert bench.store.raise_epoch(1, 4) == 4
    with pytest.raises(Bug, match="epoch 1 was superseded by 4"):
        bench.store.check_lead(1)
    bench.store.check_lead(4)
    bench.restart()
    assert bench.control.epoch == 5
