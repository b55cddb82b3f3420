"""Histories that were red once, each cut down to what it takes, with a sentence on what was wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phalanx.core.events import AttemptEnded, AttemptPlaced, AttemptRunning, DevicesClaimed, JobEvicted, PartLost
from phalanx.core.ids import JobId
from phalanx.core.policy import Policy, Preemption
from phalanx.core.spec import JobSpec, Resources
from phalanx.core.states import Finished, Pending
from phalanx.operate.control.observed import EPOCH_MAX
from phalanx.operate.sim.cluster import Cluster, Node
from phalanx.operate.sim.control import SimServer
from phalanx.operate.sim.faults import CALM, Crash
from phalanx.operate.sim.users import FAILS, RUN_MS, STUBBORN
from tests.simulation.history import unfinished
from tests.simulation.safety import RANK_BESIDE_ZOMBIE, Watch

PATIENCE_S = 120


class Stage:
    """A cluster to which only that happens what a test does to it; safety is watched all the time."""

    def __init__(self, *devices: int) -> None:
        self.watch = Watch()
        self.cluster = Cluster(1, self.watch, CALM, devices)
        self.watch.watch(self.cluster)
        self.cluster.users.calm = True
        self.until(lambda: self.cluster.leader and len(self.up()) == len(devices))

    @property
    def leader(self) -> SimServer:
        assert self.cluster.leader is not None
        return self.cluster.leader

    def up(self) -> set[str]:
        return {node for node, record in self.leader.world.nodes.items() if record.up}

    def node(self, name: str) -> Node:
        return next(node for node in self.cluster.nodes if node.machine.node == name)

    def submit(self, name: str, devices: int, run_ms: int = 5_000, fails: int = 0, stubborn: int = 0, **more: Any) -> JobId:
        env = {RUN_MS: str(run_ms), FAILS: str(fails), STUBBORN: str(stubborn)}
        resources = Resources(gpus=str(devices))
        spec = JobSpec(name=name, entrypoint="train", env=env, resources=resources, max_restarts=0, **more)
        self.watch.asked(name, spec)
        leader = self.leader
        job = leader.run(lambda: leader.controller.submit(spec, "", name, "ada"))
        assert job is not None
        self.watch.acknowledged(name, job, spec)
        leader.wake()
        return job

    def until(self, look: Callable[[], object]) -> None:
        for _ in range(PATIENCE_S):
            if look():
                return
            self.cluster.second()
        pytest.fail(f"what was waited for did not happen; {unfinished(self.cluster)}")

    def is_over(self, job: JobId) -> bool:
        return self.cluster.leader is not None and isinstance(self.watch.world.jobs[job].state, Finished)

    def break_lines(self, name: str) -> None:
        for line in self.node(name).network.lines:
            line.breaks()

    def events(self, kind: type) -> list[object]:
        return [event.body for event in self.watch.log if isinstance(event.body, kind)]


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(*devices: int) -> Stage:
        made.append(Stage(*devices))
        return made[-1]

    yield make
    for one in made:
        one.cluster.close()


def test_a_gang_of_which_a_part_was_never_started_is_not_running(stage: Callable[..., Stage]) -> None:
    """A part that is stopped before its start has exits and no processes; that counted as up, and the gang as running."""
    it = stage(1, 1)
    it.node("n2").machine.code_away = True
    job = it.submit("partial", devices=1, num_nodes=2, run_ms=1_000, fails=100)
    it.until(lambda: it.is_over(job))
    assert len(it.events(AttemptEnded)) == 1
    assert it.events(AttemptRunning) == []


def test_a_superseded_control_plane_that_has_nothing_to_write_ends(stage: Callable[..., Stage]) -> None:
    """Leadership was looked at in writes alone: an idle one that was passed by kept its agents, and the new leader heard nobody."""
    it = stage(1)
    first = it.leader
    first.pause()
    it.cluster.start_server()
    it.until(lambda: it.cluster.leader is not first and it.cluster.leader)
    first.go_on()
    it.until(lambda: not first.alive)
    job = it.submit("after", devices=1)
    it.until(lambda: it.is_over(job))


def test_a_node_that_claims_an_absurd_epoch_harms_only_itself(stage: Callable[..., Stage]) -> None:
    """It was believed up to a bound; the leader went past that bound itself, and every honest node that followed was refused."""
    it = stage(1, 1)
    it.node("n1").machine.disk.epoch_seen = EPOCH_MAX
    it.break_lines("n1")
    it.until(lambda: it.up() == {"n2"})
    it.break_lines("n2")
    job = it.submit("honest", devices=1)
    it.until(lambda: it.is_over(job))
    assert it.leader.controller.epoch < 10


def test_a_hello_that_comes_after_a_newer_one_is_not_heard(stage: Callable[..., Stage]) -> None:
    """The older connection took over: its list of nothing made ranks lost that lived, and their devices free."""
    it = stage(1)
    node = it.node("n1")
    dials = node.network.opened
    node.network.slow_ms = 6_000
    it.break_lines("n1")
    it.until(lambda: node.network.opened > dials)
    node.network.slow_ms = 0
    assert node.machine.agent is not None
    node.machine.agent.die()
    it.cluster.agent_in(node, 0)
    job = it.submit("once", devices=1, run_ms=20_000)
    it.until(lambda: it.is_over(job))
    assert len(it.events(AttemptPlaced)) == 1


def test_what_was_given_up_keeps_its_devices_and_only_those(stage: Callable[..., Stage]) -> None:
    """Never red; but in one of 500 seeds only does a rank start beside such a zombie. One of its own job never does."""
    it = stage(2, 2)
    job = it.submit("zombie", devices=1, run_ms=600_000, stubborn=100)
    it.until(lambda: it.events(AttemptRunning))
    it.submit("busy", devices=2, run_ms=600_000)  # so that there is no other node to go to
    it.until(lambda: len(it.events(AttemptRunning)) == 2)
    node = next(node for node in it.cluster.nodes if len(node.machine.living) == 1)
    node.network.cut_off({"up", "down"})
    it.until(lambda: it.events(PartLost))
    beside = it.submit("beside", devices=1, run_ms=600_000, priority=80)
    node.network.mend()
    it.until(lambda: len(it.events(AttemptRunning)) == 3)
    assert set(node.machine.living) == {(f"{job}.1", 0), (f"{beside}.1", 0)}
    assert it.watch.seen[RANK_BESIDE_ZOMBIE] == 1


AT_ONCE = Policy(preemption=Preemption(min_runtime="0s"))


def evicting(stage: Callable[..., Stage], *devices: int, stubborn: int = 100) -> tuple[Stage, JobId, JobId]:
    """A gang on all of one node that is being ended for another job, and takes its time."""
    it = stage(*devices)
    it.cluster.users.usual = AT_ONCE
    it.until(lambda: it.leader.world.policy == AT_ONCE)
    low = it.submit("low", devices=max(devices), run_ms=20_000, stubborn=stubborn, priority=10)
    it.until(lambda: it.events(AttemptRunning))
    high = it.submit("high", devices=max(devices), run_ms=1_000, priority=80)
    it.until(lambda: it.events(JobEvicted))
    return it, low, high


def test_a_control_plane_that_dies_between_a_claim_and_its_start_evicts_nobody_again(stage: Callable[..., Stage]) -> None:
    """Never red. A claim in memory alone would be forgotten, and what was let go of be anybody's."""
    it, low, high = evicting(stage, 2)
    beside = it.submit("beside", devices=1, run_ms=1_000, priority=80)
    it.leader.end(Crash("after the claim"))
    it.until(lambda: it.is_over(low) and it.is_over(high) and it.is_over(beside))
    assert len(it.events(JobEvicted)) == 1
    placed = [body.job for body in it.events(AttemptPlaced) if isinstance(body, AttemptPlaced)]
    assert placed.index(high) < placed.index(beside)


def test_a_claim_on_a_node_that_dies_is_given_up_and_the_job_runs_elsewhere(stage: Callable[..., Stage]) -> None:
    """Never red. Else the job would wait for a node that may never come back."""
    it, low, high = evicting(stage, 2, 1)
    node = next(node for node in it.cluster.nodes if node.machine.living)
    node.network.cut_off({"up", "down"})
    it.until(lambda: any(body.placement is None for body in it.events(DevicesClaimed) if isinstance(body, DevicesClaimed)))
    assert isinstance(it.watch.world.jobs[high].state, Pending)
    node.network.mend()
    it.until(lambda: it.is_over(low) and it.is_over(high))
