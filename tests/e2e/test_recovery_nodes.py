"""A gang over two nodes, each with an agent of its own, recovers inside: whichever node a rank falls on."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from live_platform import Platform, alive, until
from test_joined_node import joined, up
from test_main_job import STEPS, digest, tiny
from test_recovery import losses, pids

from phalanx.core.views import AttemptView, JobView

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


def recovered(platform: Platform, job: str, times: int) -> AttemptView:
    def there() -> AttemptView | None:
        with platform.client() as client:
            attempt = client.job(job).attempts[-1]
        return attempt if len(attempt.recoveries) >= times else None

    return until(there)


def test_ranks_killed_on_either_node_are_replaced_there_and_no_bit_differs(fleet: Fleet, prepared: Path) -> None:
    platform = fleet.platform
    undisturbed = platform.finished(platform.submit(tiny(prepared)))
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
