"""A job that saves into a real S3 server, which goes away while it trains and comes back; its ranks are killed, and it resumes."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_platform import Platform, until
from test_main_job import tiny

from phalanx.core.views import JobView
from tests.storage.seaweed import BUCKET, SECRET, Seaweed

EVERY = 20


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
    spec = tiny(prepared, env={"PHALANX_CHECKPOINT_REQUEST_S": "5"}, hyperparameters={**shape, "steps": 1_000_000})
    spec["checkpoint"] = {"every": EVERY, "keep_last": 2, "store": f"s3://{BUCKET}/runs"}
    job = home.submit(spec)

    def once(holds: Callable[[JobView], bool]) -> JobView:
        def there() -> JobView | None:
            with home.client() as client:
                view = client.job(job)
            assert view.state != "finished", f"{view.detail}\n{home.logs(job)}"
            return view if holds(view) else None

        return until(there)

    once(lambda view: bool(view.checkpoints))
    seaweed.stop()
    away = once(lambda view: bool(view.findings))
    finding = away.findings[-1]
    assert finding.kind == "save" and "training goes on" in finding.sentence and SECRET not in finding.sentence
    assert away.progress is not None
    home.at_step(job, away.progress.step + 2 * EVERY)  # without the store
    seaweed.start()
    back = once(lambda view: view.checkpoints[-1].step > finding.step)
    pid = back.attempts[-1].ranks[0].pid
    assert pid is not None
    seaweed.stop()
    os.kill(pid, signal.SIGKILL)
    waits = once(lambda view: view.findings[-1].kind == "read").findings[-1]
    assert "training waits" in waits.sentence and waits.attempt == f"{job}.2" and SECRET not in waits.sentence
    seaweed.start()
    after = once(lambda view: len(view.attempts) > 1 and view.attempts[1].resumed_step is not None)
    assert after.restarts == 1 and "rank 0" in after.attempts[0].detail
    resumed = after.attempts[1].resumed_step
    assert resumed is not None and resumed >= back.checkpoints[-1].step
    assert after.checkpoints_at.startswith(f"s3://{BUCKET}/runs/{job}-")
    assert resumed in [one.step for one in after.checkpoints]  # also what its maker could not say any more
    home.run("cancel", job)
    with home.client() as client:
        client.wait(job, timeout_s=240)
    assert not list((home.home / "jobs" / job).glob("checkpoints/*"))  # nothing is beside it
    found = [one for one in stored(home, "verify", job) if one["committed"]]
    assert len(found) >= 2 and found[0]["step"] >= resumed and all(one["verified"] for one in found)
    assert stored(home, "ls", found[0]["path"])[0]["step"] == found[0]["step"]
    assert SECRET not in home.run("describe", job).stdout + home.run("events", job).stdout
    files = [path for path in home.home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []  # nor on any disk


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
        view = client.wait(job, timeout_s=240)
    assert view.outcome == "failed" and "there is no bucket 'no-such-bucket'" in home.logs(job), home.logs(job)
