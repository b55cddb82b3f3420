"""Garbage collection and the choice of a store, by the real command line on a real platform, blobs in a real S3 server."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_platform import BIN, DEADLINE_S, Platform, until

from tests.storage.seaweed import KEY, SECRET, Seaweed


@pytest.fixture
def home(tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A home that is not up; the S3 server's address and keys are in the environment."""
    for name, value in seaweed.environ.items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("PHALANX_STORE", raising=False)
    platform = Platform(tmp_path / "home")
    yield platform
    platform.run("down", "--force", check=False)


def script(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "code"
    folder.mkdir(exist_ok=True)
    (folder / "run.py").write_text(text)
    return folder


def up(home: Platform, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return home.run("up", "--port", "0", "--cpu-slots", "2", *options, check=check)


def refused(home: Platform, *options: str) -> str:
    done = up(home, *options, check=False)
    assert done.returncode in (2, 3), done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return line


def gc(home: Platform, *options: str) -> dict[str, object]:
    answer: dict[str, object] = json.loads(home.run("gc", *options, "-o", "json").stdout)
    return answer


def test_a_job_runs_from_a_bucket_and_what_it_left_is_collected(home: Platform, seaweed: Seaweed, tmp_path: Path) -> None:
    url = seaweed.url()
    up(home, "--store", url)
    spec = {"name": "once", "entrypoint": "python run.py", "workdir": str(script(tmp_path, "print('from a bucket')"))}
    job = home.submit(spec)
    view = home.finished(job)
    assert not any((home.home / "blobs").iterdir())
    with home.client() as client:
        until(lambda: client.status().outbox == 0)
    assert "its job finished less than 30d" in home.run("gc").stdout
    planned = gc(home, "--older-than", "0s", "--dry-run")
    assert planned["jobs"] == [job]
    assert home.run("logs", job).stdout == "from a bucket\n"
    done = gc(home, "--older-than", "0s")
    taken = {one["kind"]: one["count"] for one in done["taken"]}  # type: ignore[attr-defined] # JSON
    assert {"work", "logs"} <= taken.keys()
    assert "blobs" not in taken  # asked for within the hour: another submit may name it
    logs = home.run("logs", job, check=False)
    assert logs.returncode == 4
    assert "were collected on" in logs.stderr
    assert view.attempts == home.finished(job).attempts  # rows stay
    assert not (home.home / "jobs" / job).exists()
    again = home.submit({**spec, "name": "again"})
    assert home.finished(again).code == view.code
    home.run("down")
    up(home)  # the same bucket, without saying so
    assert json.loads((home.home / "store.json").read_text())["url"] == url
    assert "is up with" in refused(home, "--store", seaweed.url())


def test_a_store_that_cannot_be_used_is_one_clear_error_and_nothing_is_half_done(
    home: Platform, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "store is 's3://no-such-bucket/x': there is no bucket" in refused(home, "--store", "s3://no-such-bucket/x")
    assert "--store is 'ftp://x': has an unknown scheme" in refused(home, "--store", "ftp://x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    words = refused(home, "--store", seaweed.url())
    assert "refuses these credentials" in words
    assert "hunter2" not in words
    assert not (home.home / "store.json").exists()
    assert not (home.home / "run" / "server.json").exists()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("PHALANX_STORE", seaweed.url())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    up(home)
    home.run("down")
    monkeypatch.setenv("PHALANX_STORE", seaweed.url())
    assert "PHALANX_STORE" in refused(home)


def test_a_store_that_is_away_stops_only_what_needs_it(home: Platform, seaweed: Seaweed, tmp_path: Path) -> None:
    up(home, "--store", seaweed.url())
    spec = {"name": "code", "entrypoint": "python run.py", "workdir": str(script(tmp_path, "print(1)"))}
    seaweed.stop()
    try:
        path = home.home / "code.yaml"
        path.write_text(json.dumps(spec))
        refusal = home.run("submit", str(path), check=False)
        assert refusal.returncode == 3
        assert "try again" in refusal.stderr
        home.finished(home.submit({"name": "bare", "entrypoint": "true"}))
        assert home.run("gc", "--dry-run", check=False).returncode == 3
        home.run("down")
        up(home)  # a remembered store that is away is no reason not to start
    finally:
        seaweed.start()
    home.finished(home.submit(spec))


def test_gc_wants_a_duration(home: Platform) -> None:
    done = subprocess.run(
        [str(BIN), "gc", "--older-than", "soon"], env=home.environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 2
    assert "Error: --older-than is 'soon'" in done.stderr
