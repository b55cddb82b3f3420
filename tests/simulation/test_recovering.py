"""Gangs of several nodes that recover inside, in a simulated cluster: in one of a hundred seeds only does one lose a node."""

import functools
from collections.abc import Iterator

import pytest

from phalanx.core.events import AttemptEnded, AttemptRunning, PartLost, PartReleased
from phalanx.core.ids import JobId
from phalanx.core.spec import Recovery
from phalanx.decide.restarts import FRUITLESS_MAX
from phalanx.operate.sim.cluster import Node
from phalanx.operate.sim.gangs import Part
from tests.simulation.safety import ZOMBIE
from tests.simulation.test_pinned import Stage


@pytest.fixture
def it() -> Iterator[Stage]:
    made = Stage(1, 1)
    yield made
    made.watch.check_tables()
    made.watch.check_log()
    made.watch.check_ledger()
    made.cluster.close()


def gang(it: Stage, min_ranks: int, run_ms: int = 90_000) -> tuple[JobId, Node, Node]:
    """It runs on both nodes: the first of them, and the other."""
    job = it.submit("gang", devices=1, num_nodes=2, run_ms=run_ms, recovery=Recovery(in_gang=True, min_ranks=min_ranks))
    it.until(lambda: it.events(AttemptRunning))
    first, other = (it.node(part.node) for part in it.watch.world.attempts[it.watch.world.jobs[job].attempts[0]].placement.slices)
    it.until(lambda: all(len(node.machine.living) == 1 for node in (first, other)))
    for _ in range(2):  # in which the two shims hear of each other
        it.cluster.second()
    return job, first, other


def test_a_node_that_is_cut_off_is_done_without_and_fenced(it: Stage) -> None:
    job, _, other = gang(it, min_ranks=1)
    other.network.cut_off({"up", "down"})
    it.until(lambda: it.events(PartReleased))
    assert len(it.events(PartLost)) == 1
    assert not other.machine.living, "it ended its ranks by itself, before anybody let go of its devices"
    other.network.mend()
    beside = it.submit("beside", devices=1)
    it.until(lambda: it.is_over(beside))
    assert it.events(AttemptEnded)[0].job == beside, "a mended node works for others"  # type: ignore[attr-defined]
    it.until(lambda: it.is_over(job))
    ended = it.events(AttemptEnded)[-1]
    assert isinstance(ended, AttemptEnded)
    assert (ended.job, ended.ok, it.watch.seen[ZOMBIE]) == (job, True, 0)


def test_a_shim_that_dies_costs_its_node_alone(it: Stage) -> None:
    job, _, other = gang(it, min_ranks=1)
    next(iter(other.machine.shims.values())).die()
    it.until(lambda: it.events(PartReleased))
    assert it.events(PartLost) == []
    it.until(lambda: it.is_over(job))
    assert [ended.ok for ended in it.events(AttemptEnded) if isinstance(ended, AttemptEnded)] == [True]


@pytest.mark.parametrize("which", ["first", "other"])
def test_a_gang_that_cannot_go_on_starts_again_whole(it: Stage, which: str) -> None:
    """It has no restart, and none is used up; but for the first node's, whose agent says that its ranks are lost, as ever."""
    job, first, other = gang(it, min_ranks=0 if which == "other" else 1, run_ms=10_000)
    node = first if which == "first" else other
    node.machine.reboot()
    it.cluster.agent_in(node, 1_000)
    it.until(lambda: it.is_over(job))
    ended = [one for one in it.events(AttemptEnded) if isinstance(one, AttemptEnded)]
    assert [one.ok for one in ended] == ([False, True] if which == "other" else [False])
    assert "its node was started again" in ended[0].detail
    assert it.events(PartReleased) == []


def test_a_gang_whose_nodes_never_reach_each_other_is_given_up(it: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall: the control plane hears of both nodes all the time. Each attempt is over soon after both run."""
    monkeypatch.setattr(Part, "_reaches", lambda part, other: False)
    job = it.submit("gang", devices=1, num_nodes=2, run_ms=90_000, recovery=Recovery(in_gang=True, min_ranks=1))
    for count in range(FRUITLESS_MAX + 2):
        it.until(functools.partial(over, it, count + 1))
    it.until(lambda: it.is_over(job))
    ended = [one for one in it.events(AttemptEnded) if isinstance(one, AttemptEnded)]
    assert [(one.again, one.interrupted) for one in ended] == [(True, True)] * (1 + FRUITLESS_MAX) + [(False, False)]
    assert [one.fruitless for one in ended] == [False] + [True] * (1 + FRUITLESS_MAX), "simulated ranks save step 1 each time"
    for one in ended:
        record = it.watch.world.attempts[one.attempt]
        assert record.ended_ms is not None
        assert record.running_ms is not None
        assert record.ended_ms - record.running_ms < 60_000
        assert "did not come to the gang: node 1 never reached" in one.detail


def over(it: Stage, count: int) -> bool:
    return len(it.events(AttemptEnded)) >= count
