"""A gang over two nodes, each with an agent of its own, recovers inside: whichever node a rank falls on."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from live_platform import Platform, alive, until
from test_joined_node import joined, up
from test_main_job import EVERY, STEPS, digest, tiny
from test_recovery import losses, pids

from phalanx.core.views import AttemptView, JobView

LONG = {**tiny(Path())["hyperparameters"], "steps": 100_000}
TWO_NODES = {"num_nodes": 2, "resources": {"gpus": 1}, "recovery": {"in_gang": True}}


@dataclass(frozen=True)
class Fleet:
    """A platform and the home of its second node."""

    platform: Platform
    second: Path

    def home_of(self, view: AttemptView, rank: int) -> Path:
        node = next(str(one.node) for one in view.ranks if one.rank == rank)
        return self.second if node == "rack2" else self.platform.home

    def spares(self, view: AttemptView, rank: int, attempt: str) -> list[Path]:
        """Logs of those that the rank's node has started for the gang."""
        return list((self.home_of(view, rank) / "node" / "attempts" / attempt).glob("spare-*.log"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    platform, folder = Platform(tmp_path_factory.mktemp("first")), tmp_path_factory.mktemp("second")
    platform.up()
    platform.run("agent", "token", "--out", str(folder / "token"))
    with joined(platform, folder / "home", "--token-file", str(folder / "token"), "--name", "rack2"):
        until(lambda: up(platform, "rack2"))
        yield Fleet(platform, folder / "home")
        platform.run("down", "--force")
    platform.run("down", "--force", "--home", str(folder / "home"))


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet, prepared: Path) -> JobView:
    """A run of as many ranks that nobody touched, on one node."""
    return fleet.platform.finished(fleet.platform.submit(tiny(prepared)))


def recovered(platform: Platform, job: str, times: int) -> AttemptView:
    def there() -> AttemptView | None:
        with platform.client() as client:
            attempt = client.job(job).attempts[-1]
        return attempt if len(attempt.recoveries) >= times else None

    return until(there)


def test_ranks_killed_on_either_node_are_replaced_there_and_no_bit_differs(
    fleet: Fleet, prepared: Path, undisturbed: JobView
) -> None:
    platform = fleet.platform
    job = platform.submit(tiny(prepared, **TWO_NODES))
    view = platform.at_step(job, 15).attempts[-1]
    assert len({one.node for one in view.ranks}) == 2
    for times, fell in enumerate((0, 1), 1):
        until(partial(fleet.spares, view, fell, f"{job}.1"))
        before = pids(view)
        os.kill(before[fell], signal.SIGKILL)
        view = recovered(platform, job, times)
        after = pids(view)
        assert after[1 - fell] == before[1 - fell], "the other node's rank keeps its process"
        assert after[fell] != before[fell]
        assert alive(after[fell])
        assert not alive(before[fell])
    done: JobView = platform.finished(job)
    assert (done.restarts, len(done.attempts)) == (0, 1)
    assert [one.replaced for one in done.attempts[-1].recoveries] == [(0,), (1,)]
    assert all(one.steps_lost <= 1 for one in done.attempts[-1].recoveries)
    assert losses(platform, job) == losses(platform, undisturbed.id)
    assert sorted(losses(platform, job)) == list(range(1, STEPS + 1))
    assert digest(platform, done.model) == digest(platform, undisturbed.model)
    with platform.client() as client:
        ledger = client.ledger(job=job)
    assert sum(ledger.categories.values()) == ledger.capacity


def kill_shim(home: Path, attempt: str) -> None:
    pid = json.loads((home / "node" / "attempts" / attempt / "shim-pid.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))


def test_a_node_that_loses_its_part_interrupts_a_gang_that_needs_all_ranks(
    fleet: Fleet, prepared: Path, undisturbed: JobView
) -> None:
    platform = fleet.platform
    job = platform.submit(tiny(prepared, **TWO_NODES, max_restarts=0))
    view = platform.at_step(job, 25).attempts[-1]
    kill_shim(fleet.home_of(view, 1), f"{job}.1")
    done = platform.finished(job)
    assert len(done.attempts) == 2, "no restart is used up, of which it had none"
    assert "node 1 " in done.attempts[0].detail
    assert done.attempts[1].resumed_step == 20
    assert digest(platform, done.model) == digest(platform, undisturbed.model)


@pytest.mark.parametrize("replicas", [1, 0])
def test_a_gang_that_may_shrink_goes_on_without_a_dead_node_in_the_same_process(
    fleet: Fleet, prepared: Path, undisturbed: JobView, replicas: int
) -> None:
    """From the lost rank's replica beside the survivor, or from the last checkpoint."""
    platform = fleet.platform
    recovery = {"in_gang": True, "min_ranks": 1, "replicas": replicas, "spares": 0}
    job = platform.submit(tiny(prepared, **{**TWO_NODES, "recovery": recovery}, max_restarts=0))
    view = platform.at_step(job, 35).attempts[-1]
    before = pids(view)
    kill_shim(fleet.home_of(view, 1), f"{job}.1")
    after = recovered(platform, job, 1)
    assert pids(after)[0] == before[0]
    (one,) = after.recoveries
    assert "node 1 was" in one.why
    if replicas:
        assert one.steps_lost <= 10, "it follows by a step or a few"
    else:
        assert one.step % EVERY == 0
    assert (one.absent, one.replaced) == ((1,), ())
    done: JobView = platform.finished(job)
    assert len(done.attempts) == 1
    assert sorted(losses(platform, job)) == list(range(1, STEPS + 1))
    assert losses(platform, job) == losses(platform, undisturbed.id), "of the same samples, step by step"
    said = platform.run("events", job).stdout
    assert "and holds nothing there any more" in said
    with platform.client() as client:
        ledger = client.ledger(job=job)
    assert sum(ledger.categories.values()) == ledger.capacity


def test_a_dead_node_interrupts_it_too_and_the_ledger_stays_whole(fleet: Fleet, prepared: Path) -> None:
    """Agent and shim are gone; nothing says so but silence. The last test here: that node stays dead."""
    platform = fleet.platform
    job = platform.submit(tiny(prepared, **TWO_NODES, max_restarts=0, hyperparameters=LONG))
    view = platform.at_step(job, 25).attempts[-1]
    before, home = pids(view), fleet.home_of(view, 1)
    agent = json.loads((home / "run" / "agent.json").read_text())["pid"]
    os.kill(agent, signal.SIGKILL)
    kill_shim(home, f"{job}.1")
    until(lambda: not alive(before[0]))  # in seconds: the coordinator does not wait for the control plane

    def given_up() -> JobView | None:
        with platform.client() as client:
            view = client.job(job)
        return view if view.attempts[0].ended_ms else None

    first = until(given_up).attempts[0]
    assert " was lost: its lease ended" in first.detail
    with platform.client() as client:
        ledger = client.ledger(job=job)
        assert client.job(job).state != "finished", "no restart is used up, of which it had none"
    assert sum(ledger.categories.values()) == ledger.capacity
    platform.run("cancel", job)
