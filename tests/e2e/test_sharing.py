"""The fleet shared between jobs, on a real platform: a gang makes room for another and ends as if nobody had disturbed it; two jobs
share one device; an array counts itself."""

import json
from pathlib import Path
from typing import Any

from live_platform import Platform, until

from phalanx.core.views import JobView

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharing"
STEPS = 120
EVERY = 10
WAITS = (
    "import os, pathlib, time\n"
    "print('INDEX', os.environ.get('PHALANX_ARRAY_INDEX'), os.environ.get('CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'), flush=True)\n"
    "while not pathlib.Path(os.environ['RELEASE']).exists():\n"
    "    time.sleep(0.05)\n"
)


def tiny(prepared: Path, **more: Any) -> dict[str, Any]:
    shape = {"dim": 64, "layers": 2, "heads": 2, "ffn_dim": 128, "sequence": 64, "batch_per_rank": 8, "eval_batches": 2}
    return {
        "name": "low",
        "kind": "train",
        "recipe": "llama",
        "priority": 10,
        "max_restarts": 0,
        "resources": {"gpus": 2},
        "data": {"path": str(prepared)},
        "checkpoint": {"every": EVERY, "keep_last": 2},
        "hyperparameters": {**shape, "steps": STEPS, "seed": 5},
        **more,
    }


def waiting(tmp_path: Path, release: Path, **more: Any) -> dict[str, Any]:
    """A job that goes on until `release` is there."""
    workdir = tmp_path / "waits"
    workdir.mkdir(exist_ok=True)
    (workdir / "waits.py").write_text(WAITS)
    return {"name": "waits", "entrypoint": "python waits.py", "workdir": str(workdir), "env": {"RELEASE": str(release)}, **more}


def job(platform: Platform, name: str) -> JobView:
    with platform.client() as client:
        return client.job(name)


def digest(platform: Platform, model: str | None) -> str:
    assert model is not None
    name, version = model.split(":")
    with platform.client() as client:
        return client.model(name, int(version)).weights_digest


def at_once(platform: Platform) -> None:
    """Gangs are ended for others as soon as somebody asks, not only after two minutes."""
    with platform.client() as client:
        client.set_policy({"preemption": {"min_runtime": "0s"}})


def test_a_gang_that_made_room_goes_on_and_ends_as_if_undisturbed(platform: Platform, prepared: Path, tmp_path: Path) -> None:
    at_once(platform)
    undisturbed = platform.finished(platform.submit(tiny(prepared)))
    low = platform.submit(tiny(prepared))
    platform.at_step(low, EVERY + 1)
    release = tmp_path / "go"
    high = platform.submit(waiting(tmp_path, release, name="high", priority=90, resources={"gpus": 2}))
    until(lambda: job(platform, high).state == "running")
    evicted = job(platform, low)
    assert evicted.state == "pending"
    assert evicted.attempts[0].detail == f"made room for {high}"
    release.touch()
    platform.finished(high)
    done = platform.finished(low)
    assert len(done.attempts) == 2
    step = done.attempts[1].resumed_step
    assert step is not None
    assert step >= EVERY
    with platform.client() as client:
        losses: dict[int, set[str]] = {}
        for record in client.steps(low).steps:
            losses.setdefault(record.step, set()).add(record.loss_hex)
        kinds = [event.kind for event in client.events() if event.job in (low, high)]
        ledger = client.ledger()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert [number for number, seen in losses.items() if len(seen) != 1] == []
    assert digest(platform, done.model) == digest(platform, undisturbed.model)
    assert kinds.index("devices_claimed") + 1 == kinds.index("job_evicted")
    assert sum(ledger.categories.values()) == ledger.capacity


def test_the_example_shares_this_very_fleet(platform: Platform) -> None:
    policy = str(EXAMPLE / "policy.yaml")
    assert platform.run("policy", "check", policy).stdout == "The policy is acceptable.\n"
    platform.run("policy", "set", policy)
    assert "nightly: would start now. Nothing was submitted." in platform.run("plan", str(EXAMPLE / "job.yaml")).stdout
    assert "speech" in platform.run("queue", "ls").stdout
    at_once(platform)


def test_two_jobs_share_a_device_and_a_third_waits(platform: Platform, tmp_path: Path) -> None:
    whole, shares = tmp_path / "whole", tmp_path / "shares"
    first = platform.submit(waiting(tmp_path, whole, resources={"gpus": 1}))
    until(lambda: job(platform, first).state == "running")
    one, two, three = (platform.submit(waiting(tmp_path, shares, resources={"gpus": "0.5"})) for _ in range(3))
    until(lambda: [job(platform, name).state for name in (one, two)] == ["running", "running"])
    on = {name: [(rank.node, rank.device) for rank in job(platform, name).attempts[-1].ranks] for name in (one, two)}
    assert on[one] == on[two]
    assert job(platform, three).state == "pending"
    shares.touch()
    for name in (one, two, three):
        assert "INDEX None 50" in platform.run("logs", platform.finished(name).id, "--rank", "0").stdout
    whole.touch()
    platform.finished(first)
    with platform.client() as client:
        ledger, own = client.ledger(), client.ledger(job=one)
    assert sum(ledger.categories.values()) == ledger.capacity
    attempt = job(platform, one).attempts[0]
    assert attempt.ended_ms is not None
    assert own.capacity == (attempt.ended_ms - attempt.placed_ms) * 500


def test_an_array_is_so_many_jobs_that_know_their_number(platform: Platform, tmp_path: Path) -> None:
    release = tmp_path / "go"
    release.touch()
    spec = waiting(tmp_path, release, name="sweep", resources={"gpus": 1}, array={"count": 3, "parallel": 2})
    first = platform.submit(spec)
    number = int(first.rpartition("-")[2])
    names = [f"sweep-{number + index}" for index in range(3)]
    for index, name in enumerate(names):
        platform.finished(name)
        assert f"INDEX {index} " in platform.run("logs", name, "--rank", "0").stdout
    over = platform.run("cancel", "--array", first, check=False)
    assert (over.returncode, f"every job of its array {first} has already finished" in over.stderr) == (2, True)
    after = platform.submit(waiting(tmp_path, release, name="after", resources={"gpus": 1}, after=names))
    platform.finished(after)
    refused = platform.run("submit", "--set", "after=[none-9]", str(_file(tmp_path, spec)), check=False)
    assert refused.returncode == 2
    assert "no such job" in refused.stderr


def _file(folder: Path, spec: dict[str, Any]) -> Path:
    path = folder / "job.yaml"
    path.write_text(json.dumps(spec))
    return path
