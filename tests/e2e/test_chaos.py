"""Faults asked for by a user in a running job: each is met at its rank and step, told, and costs no bit of the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_platform import Platform, alive, until
from soak.left_behind import processes
from test_main_job import digest, tiny
from test_recovery import losses, pids

from phalanx.core.errors import Conflict, SpecError
from phalanx.core.views import FaultView, JobView

STEPS = 260


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform that this module has for itself: its agent is killed."""
    platform = Platform(tmp_path_factory.mktemp("home"))
    platform.up()
    yield platform
    platform.run("down", "--force")


@pytest.fixture(scope="module")
def undisturbed(platform: Platform, prepared: Path) -> JobView:
    return platform.finished(platform.submit(shaped(prepared)))


def shaped(prepared: Path, **changes: Any) -> dict[str, Any]:
    spec = tiny(prepared, **changes)
    spec["hyperparameters"] = {**spec["hyperparameters"], "steps": STEPS}
    return spec


def agent_pid(platform: Platform) -> int:
    pid: int = json.loads((platform.home / "run" / "agent.json").read_text())["pid"]
    return pid


def met(platform: Platform, job: str, number: int) -> FaultView:
    def there() -> FaultView | None:
        with platform.client() as client:
            faults = client.job(job).attempts[-1].faults
        return next((one for one in faults if one.number == number and one.met), None)

    return until(there)


def test_faults_of_ranks_agent_and_store_leave_every_bit_as_it_was(
    platform: Platform, prepared: Path, undisturbed: JobView
) -> None:
    job = platform.submit(shaped(prepared, chaos=True, recovery={"in_gang": True}))
    first = pids(platform.at_step(job, 2).attempts[-1])
    said = platform.run("chaos", "kill-rank", "--job", job, "--rank", "0", "--step", "100").stdout
    assert f"Fault 1 of {job}.1 is planned: kill-rank of rank 0 at step 100." in said
    platform.run("chaos", "--job", job, "fill-disk", "--for", "2s")
    assert met(platform, job, 1).met == "met by rank 0 at step 100"

    def recovered() -> JobView | None:
        with platform.client() as client:
            view = client.job(job)
        return view if view.attempts[-1].recoveries else None

    after = pids(until(recovered).attempts[-1])
    assert after[1] == first[1] and after[0] != first[0]
    agent = agent_pid(platform)
    platform.run("chaos", "kill-agent", "--job", job, "--rank", "1", "--for", "300ms")
    until(lambda: not alive(agent))
    until(lambda: agent_pid(platform) != agent and alive(agent_pid(platform)))
    view = platform.finished(job)
    assert (view.restarts, len(view.attempts), len(view.attempts[0].recoveries)) == (0, 1, 1), "nobody noticed the agent's death"
    assert losses(platform, job) == losses(platform, undisturbed.id)
    assert digest(platform, view.model) == digest(platform, undisturbed.model)
    words = platform.run("events", job).stdout
    assert "fault 1 asked for by admin: kill-rank of rank 0 at step 100" in words
    assert "fault 1: kill-rank met by rank 0 at step 100" in words
    assert "Chaos" in platform.run("describe", job).stdout
    assert [one.met.count("met by") for one in view.attempts[0].faults] == [1, 2, 1], "both keepers had a full disk"
    assert list(Path(view.checkpoints[-1].path).iterdir())


def test_a_node_that_dies_starts_its_gang_again_and_costs_no_bit(platform: Platform, prepared: Path, undisturbed: JobView) -> None:
    job = platform.submit(shaped(prepared, chaos=True))
    platform.at_step(job, 10)
    agent = agent_pid(platform)
    platform.run("chaos", "kill-node", "--job", job, "--rank", "1", "--step", "150")
    until(lambda: not alive(agent))
    view = platform.finished(job)
    assert len(view.attempts) == 2 and view.attempts[0].faults[0].met == "met by rank 1 at step 150"
    assert losses(platform, job) == losses(platform, undisturbed.id)
    assert digest(platform, view.model) == digest(platform, undisturbed.model)


def test_what_cannot_be_is_refused(platform: Platform, prepared: Path) -> None:
    job = platform.submit(shaped(prepared, chaos=True))
    closed = platform.submit(shaped(prepared))
    platform.at_step(job, 20)
    refused = platform.run("chaos", "kill-rank", "--job", job, "--step", "3", check=False)
    assert refused.returncode == 2 and "step is '3'" in refused.stderr and "choose a later one" in refused.stderr
    with platform.client() as client:
        with pytest.raises(SpecError, match="has no such rank; write 0 to 1"):
            client.chaos(job, "kill-rank", rank=2)
        with pytest.raises(Conflict, match="chaos: true"):
            client.chaos(closed, "kill-rank")
        client.cancel(job)
        client.cancel(closed)


def test_down_also_ends_who_would_start_the_agent_again(platform: Platform, prepared: Path) -> None:
    job = platform.submit(shaped(prepared, chaos=True))
    platform.at_step(job, 2)
    agent = agent_pid(platform)
    platform.run("chaos", "kill-agent", "--job", job, "--for", "1h")
    until(lambda: not alive(agent))
    assert any("revive" in line for line in processes(platform.home))
    platform.run("down", "--force")
    until(lambda: not processes(platform.home))
