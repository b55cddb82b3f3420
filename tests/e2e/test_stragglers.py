"""A rank that is slowed from inside while it trains: named with its evidence, and its node quarantined where the policy says so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_platform import Platform, until
from test_joined_node import joined, running_on, up

from phalanx.core.views import FindingView, JobView

SLOW_MS = 30


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform that this module has for itself: it gets a second node and a policy."""
    platform = Platform(tmp_path_factory.mktemp("first"))
    platform.up()
    yield platform
    platform.run("down", "--force")


def slowed(prepared: Path, rank: int, steps: int) -> dict[str, Any]:
    shape = {"dim": 64, "layers": 2, "heads": 2, "ffn_dim": 128, "sequence": 64, "batch_per_rank": 8, "eval_batches": 1}
    return {
        "name": "slow",
        "kind": "train",
        "recipe": "llama",
        "resources": {"gpus": 2},
        "max_restarts": 0,
        "data": {"path": str(prepared)},
        "checkpoint": {"every": 20},
        "hyperparameters": {**shape, "steps": steps, "seed": 3},
        "env": {"PHALANX_FAULT": f"slow rank={rank} from=5 ms={SLOW_MS} attempt=1"},
    }


def straggler(job: JobView) -> FindingView | None:
    found = [one for one in job.findings if one.kind == "straggler"]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_slow_rank_is_named_with_its_evidence(platform: Platform, prepared: Path, rank: int) -> None:
    job = platform.finished(platform.submit(slowed(prepared, rank, 80)))
    found = straggler(job)
    assert found is not None and found.sentence.startswith(f"rank {rank} (") and " is a straggler: " in found.sentence
    assert found.step < 80 and "drained" not in found.sentence
    with platform.client() as client:
        local_us = {(one.rank, one.step): one.local_us for one in client.steps(job.id).steps}
    assert all(local_us.values())
    assert min(local_us[rank, step] for step in range(5, 81)) > SLOW_MS * 1000
    shown = platform.run("describe", job.id).stdout
    assert "Health" in shown and "straggler" in shown
    assert found.sentence in platform.run("events", job.id).stdout


def test_in_quarantine_the_job_moves_to_another_node_and_uses_up_no_restart(
    platform: Platform, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("second")
    policy, token = folder / "policy.yaml", folder / "token"
    policy.write_text("health: {stragglers: quarantine}\n")
    platform.run("policy", "set", str(policy))
    platform.run("agent", "token", "--out", str(token))
    with joined(platform, folder / "home", "--token-file", str(token), "--name", "rack2"):
        until(lambda: up(platform, "rack2"))
        job = platform.submit(slowed(prepared, 1, 200))
        first = until(lambda: running_on(platform, job))
        done = platform.finished(job)
        found = straggler(done)
        assert found is not None and found.sentence.endswith("its node is drained and the job moves")
        assert len(first) == 1 and first.isdisjoint(str(one.node) for one in done.attempts[-1].ranks)
        assert len(done.attempts) == 2 and done.attempts[0].detail == "moved off a drained node", "with max_restarts 0"
        with platform.client() as client:
            (drained,) = [node for node in client.nodes() if node.drained]
        assert {str(drained.node)} == first and drained.drained.startswith(f"quarantine: rank 1 of {done.attempts[0].attempt}")
        platform.run("node", "undrain", str(drained.node))
