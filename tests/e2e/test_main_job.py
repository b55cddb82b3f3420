"""The main job under SIGKILL: ranks, server and agent fall at arbitrary moments and the weights come out the same."""

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from live_platform import Platform, alive

STEPS = 160  # long enough that a fast machine is still at it when the platform's processes are killed
EVERY = 20
ROUNDS = 20 if os.environ.get("PHALANX_SOAK") else 1


def tiny(prepared: Path, **more: Any) -> dict[str, Any]:
    shape = {"dim": 64, "layers": 2, "heads": 2, "ffn_dim": 128, "sequence": 64, "batch_per_rank": 8, "eval_batches": 2}
    return {
        "name": "tiny",
        "kind": "train",
        "recipe": "llama",
        "resources": {"gpus": 2},
        "data": {"path": str(prepared)},
        "checkpoint": {"every": EVERY, "keep_last": 2},
        "hyperparameters": {**shape, "steps": STEPS, "seed": 3},
        **more,
    }


@pytest.fixture(scope="module")
def undisturbed(platform: Platform, prepared: Path) -> str:
    """The weights' digest of a run that nobody touched."""
    job = platform.finished(platform.submit(tiny(prepared)))
    assert job.restarts == 0
    return digest(platform, job.model)


def digest(platform: Platform, model: str | None) -> str:
    assert model is not None
    name, version = model.split(":")
    with platform.client() as client:
        return client.model(name, int(version)).weights_digest


@pytest.mark.parametrize("rank", [0, 1] * ROUNDS)
def test_killed_rank_resumes_bit_exactly(platform: Platform, prepared: Path, undisturbed: str, rank: int) -> None:
    step = random.SystemRandom().randrange(EVERY + 1, STEPS)
    fault = {"PHALANX_FAULT": f"sigkill rank={rank} step={step} attempt=1"}
    job = platform.finished(platform.submit(tiny(prepared, env=fault)))
    assert job.restarts == 1, f"killed at step {step}"
    assert f"rank {rank}" in job.attempts[0].detail
    resumed = job.attempts[1].resumed_step
    saved = step // EVERY * EVERY
    # Right after the record of a step that is saved, the copy that runs beside the next step may be whole or not.
    assert resumed in ({saved, saved - EVERY} if step == saved else {saved}), f"killed at step {step}"
    with platform.client() as client:
        page = client.steps(job.id)
        ledger = client.ledger(job=job.id)
    losses: dict[int, set[str]] = {}
    for record in page.steps:
        losses.setdefault(record.step, set()).add(record.loss_hex)
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert [step for step, seen in losses.items() if len(seen) != 1] == []
    assert digest(platform, job.model) == undisturbed, f"killed at step {step}"
    assert sum(ledger.categories.values()) == ledger.capacity
    assert (ledger.categories["recompute"] > 0) == (step > resumed)


@pytest.mark.parametrize("process", ["server", "agent"])
def test_killed_process_of_the_platform_is_not_noticed_by_ranks(
    platform: Platform, prepared: Path, undisturbed: str, process: str
) -> None:
    job = platform.submit(tiny(prepared))
    before = platform.at_step(job, EVERY)
    pids = [rank.pid for rank in before.attempts[-1].ranks]
    platform.kill(process)
    assert all(pid is not None and alive(pid) for pid in pids)
    platform.up()
    after = platform.finished(job)
    assert after.restarts == 0
    assert len(after.attempts) == 1
    with platform.client() as client:
        steps = client.steps(job).steps
    assert sorted((record.rank, record.step) for record in steps) == [
        (rank, step) for rank in (0, 1) for step in range(1, STEPS + 1)
    ]
    assert digest(platform, after.model) == undisturbed


def test_lineage_leads_from_the_model_back_to_everything(platform: Platform, prepared: Path) -> None:
    job = platform.finished(
        platform.submit(tiny(prepared, name="traced", hyperparameters={"steps": 4, "eval_batches": 1, "seed": 1}))
    )
    with platform.client() as client:
        model = client.model("traced", 1)
    manifest = hashlib.sha256((prepared / "manifest.json").read_bytes()).hexdigest()
    assert model.lineage["data_manifest"] == manifest
    assert model.lineage["job"] == job.id
    assert model.lineage["attempts"] == job.attempts[0].attempt
    assert model.lineage["checkpoint"] == job.checkpoints[-1].digest
    assert {"code", "environment", "config", "weights_digest"} <= set(model.lineage)
    text = platform.run("model", "sample", "traced:1", "--prompt", "def ", "--tokens", "16").stdout
    assert len(text.strip()) > 4


def test_the_demos_own_job_file_runs(platform: Platform, prepared: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "tiny-lm" / "job.yaml"
    options = ["--set", f"data.path={prepared}", "--set", "hyperparameters.steps=55"]
    shown = platform.run("submit", str(example), "--follow", *options).stdout
    assert "tiny-lm:1" in shown
    job = platform.run("ls", "-o", "json").stdout
    assert json.loads(job)[0]["checkpoints"][0]["step"] == 50


def test_fleet_ledger_sums_to_capacity_and_says_cpu_slots(platform: Platform, prepared: Path) -> None:
    platform.finished(platform.submit(tiny(prepared, name="counted", hyperparameters={"steps": 4, "eval_batches": 1})))
    with platform.client() as client:
        ledger = client.ledger()
    assert ledger.capacity > 0
    assert ledger.categories["productive"] > 0
    assert sum(ledger.categories.values()) == ledger.capacity
    assert ledger.balanced
    assert "CPU" in ledger.devices_are
