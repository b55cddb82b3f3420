"""A rank of a running job is killed from outside: its gang recovers inside, and nobody has to start anything again."""

import os
import signal
from pathlib import Path
from typing import Any

from live_platform import Platform, alive, until
from test_main_job import STEPS, digest, tiny

from phalanx.core.views import AttemptView


def losses(platform: Platform, job: str) -> dict[int, set[str]]:
    """By step, of all attempts and ranks; a long run has many pages of them."""
    found: dict[int, set[str]] = {}
    with platform.client() as client:
        page = client.steps(job)
        while page.steps or page.metrics:
            for record in page.steps:
                found.setdefault(record.step, set()).add(record.loss_hex)
            page = client.steps(job, page.next)
    return found


def pids(attempt: AttemptView) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in attempt.ranks if rank.pid is not None}


def test_the_survivor_of_a_killed_rank_zero_keeps_its_process_and_every_bit(platform: Platform, prepared: Path) -> None:
    undisturbed = platform.finished(platform.submit(tiny(prepared)))
    job = platform.submit(tiny(prepared, recovery={"in_gang": True}))
    before = pids(platform.at_step(job, 20).attempts[-1])
    until(lambda: list((platform.home / "node" / "attempts" / f"{job}.1").glob("spare-*.log")))
    os.kill(before[0], signal.SIGKILL)

    def recovered() -> AttemptView | None:
        with platform.client() as client:
            attempt = client.job(job).attempts[-1]
        return attempt if attempt.recoveries else None

    after = until(recovered)
    assert pids(after)[1] == before[1]
    assert pids(after)[0] != before[0]
    assert not alive(before[0])
    view = platform.finished(job)
    (one,) = view.attempts[-1].recoveries
    assert (view.restarts, len(view.attempts), one.generation, one.replaced) == (0, 1, 2, (0,))
    assert one.steps_lost <= 1
    assert losses(platform, job) == losses(platform, undisturbed.id)
    assert sorted(losses(platform, job)) == list(range(1, STEPS + 1))
    assert digest(platform, view.model) == digest(platform, undisturbed.model)
    said = platform.run("events", job).stdout
    assert "recovered in" in said and "rank 0 was killed by SIGKILL" in said
    assert "Recoveries" in platform.run("describe", job).stdout
    with platform.client() as client:
        ledger = client.ledger(job=job)
    assert sum(ledger.categories.values()) == ledger.capacity


def endless(prepared: Path, **more: Any) -> dict[str, Any]:
    """Stopped by whoever has seen enough."""
    spec = tiny(prepared, **more)
    return {**spec, "hyperparameters": {**spec["hyperparameters"], "steps": 100_000}}


def test_without_a_spare_the_survivor_goes_on_alone_and_takes_rank_zero_in_again(platform: Platform, prepared: Path) -> None:
    job = platform.submit(endless(prepared, recovery={"in_gang": True, "spares": 0, "min_ranks": 1}))
    before = pids(platform.at_step(job, 20).attempts[-1])
    os.kill(before[0], signal.SIGKILL)

    def attempt() -> AttemptView:
        with platform.client() as client:
            return client.job(job).attempts[-1]

    until(lambda: attempt().recoveries)
    shrunk = attempt()
    assert shrunk.recoveries[0].absent == (0,)
    assert shrunk.recoveries[0].steps_lost <= 1
    until(lambda: len(attempt().recoveries) > 1)
    grown = attempt()
    assert (grown.recoveries[1].absent, grown.recoveries[1].planned, grown.recoveries[1].steps_lost) == ((), True, 0)
    assert pids(grown)[1] == before[1]
    assert pids(grown)[0] != before[0]
    platform.at_step(job, grown.recoveries[1].step + 20)
    seen = losses(platform, job)
    assert sorted(seen) == list(range(1, max(seen) + 1))
    assert all(len(both) == 1 for both in seen.values()), "both ranks, and a step that was made again, say the same"
    said = platform.run("events", job).stdout
    assert "without rank 0" in said
    assert "the gang grows from 1 to 2 ranks" in said
    with platform.client() as client:
        ledger = client.ledger(job=job)
    assert sum(ledger.categories.values()) == ledger.capacity
    assert ledger.categories["absent"] > 0
    platform.run("cancel", job)
