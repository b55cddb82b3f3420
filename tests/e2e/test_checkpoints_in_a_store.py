"""A job that saves into a real S3 server, which goes away while it trains and comes back; its ranks are killed, and it resumes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_platform import Platform, until
from test_main_job import tiny

from phalanx.core.views import JobView
from tests.storage.seaweed import BUCKET, SECRET, Seaweed

STEPS, EVERY = 400, 20


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def home(tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A platform whose ranks find the S3 server's address and keys in their environment."""
    for name, value in seaweed.environ.items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    platform = Platform(tmp_path / "home")
    platform.up()
    yield platform
    platform.run("down", "--force", check=False)


def stored(home: Platform, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(home.run("checkpoint", *words, "-o", "json").stdout)
    return found


def test_a_store_that_goes_away_stops_no_step_and_a_killed_gang_resumes_from_it(
    home: Platform, seaweed: Seaweed, prepared: Path
) -> None:
    shape = tiny(prepared)["hyperparameters"]
    fault = {"PHALANX_FAULT": f"sigkill rank=0 step={STEPS - 5} attempt=1", "PHALANX_CHECKPOINT_REQUEST_S": "5"}
    spec = tiny(prepared, env=fault, hyperparameters={**shape, "steps": STEPS})
    spec["checkpoint"] = {"every": EVERY, "keep_last": 2, "store": f"s3://{BUCKET}/runs"}
    job = home.submit(spec)

    def committed() -> JobView | None:
        with home.client() as client:
            view = client.job(job)
        return view if view.checkpoints else None

    until(committed)
    seaweed.stop()

    def troubled() -> JobView | None:
        with home.client() as client:
            view = client.job(job)
        return view if view.findings else None

    before = until(troubled)
    finding = before.findings[-1]
    assert finding.kind == "save" and "training goes on" in finding.sentence and SECRET not in finding.sentence
    assert before.progress is not None
    home.at_step(job, before.progress.step + 5)  # without it
    seaweed.start()
    after = home.finished(job)
    assert after.restarts == 1 and "rank 0" in after.attempts[0].detail
    assert after.checkpoints_at.startswith(f"s3://{BUCKET}/runs/{job}-")
    resumed = after.attempts[1].resumed_step
    assert resumed is not None and resumed > before.findings[-1].step  # from what was saved after the store was back
    assert not list((home.home / "jobs" / job).glob("checkpoints/*"))  # nothing is beside it
    found = stored(home, "verify", job)
    assert [one["step"] for one in found] == [STEPS, STEPS - EVERY] and all(one["verified"] for one in found)
    assert stored(home, "ls", f"{after.checkpoints_at}/step-{STEPS:08d}")[0]["path"].startswith("s3://")
    assert SECRET not in home.run("describe", job).stdout + home.run("events", job).stdout


def test_a_bucket_that_is_not_there_is_named_and_a_place_that_is_none_is_refused(home: Platform, prepared: Path) -> None:
    spec = tiny(prepared)
    spec["checkpoint"] = {"store": "s3://B_d/x"}
    path = home.home / "job.yaml"
    path.write_text(json.dumps(spec))
    refused = home.run("submit", str(path), check=False)
    assert refused.returncode == 2 and "checkpoint.store" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
    spec["checkpoint"] = {"store": "s3://no-such-bucket/x"}
    spec["max_restarts"] = 0
    job = home.submit(spec)
    with home.client() as client:
        view = client.wait(job, timeout_s=120)
    assert view.outcome == "failed" and "there is no bucket 'no-such-bucket'" in home.logs(job), home.logs(job)
