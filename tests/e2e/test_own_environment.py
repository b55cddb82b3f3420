"""Jobs that bring their own environment, on the real platform: the example itself, two at the same time, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import make_wheels
import pytest
from live_platform import Platform, until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own-environment"
MEETING = """
import os, pathlib, sys, time
import tiny_greeting
here = pathlib.Path(os.environ["MEETING"])
(here / tiny_greeting.VERSION).touch()
deadline = time.monotonic() + 120
while len(list(here.iterdir())) < 2:
    assert time.monotonic() < deadline, "the other never came"
    time.sleep(0.01)
print("met with", tiny_greeting.VERSION, sys.prefix, flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Before the platform starts: uv's cache is not the one of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_CACHE_DIR", str(tmp_path_factory.mktemp("uv-cache")))
        yield


def log_of(platform: Platform, job: str) -> str:
    return platform.run("logs", job, "--rank", "0").stdout


def test_the_example_runs_with_two_versions_of_one_package(platform: Platform) -> None:
    submitted = [
        json.loads(platform.run("submit", str(EXAMPLE / name), "-o", "json").stdout)["id"] for name in ("old.yaml", "new.yaml")
    ]
    for job, version in zip(submitted, ("1.0", "2.0"), strict=True):
        platform.finished(job)
        assert f"rank 0: tiny_greeting {version} of {platform.home / 'node' / 'environments'}" in log_of(platform, job)


def test_its_wheels_are_what_its_script_makes(tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        made = make_wheels.make_wheel(tmp_path, "tiny_greeting", version)
        assert made.read_bytes() == (EXAMPLE / "wheels" / made.name).read_bytes()


def test_jobs_with_different_requirements_run_at_the_same_time(platform: Platform, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    folder = workdir(tmp_path, {"run.py": MEETING, "old.txt": locked("1.0"), "new.txt": locked("2.0")})
    common = {"entrypoint": "python run.py", "workdir": str(folder), "env": {"MEETING": str(meeting)}, "resources": {"gpus": 1}}
    jobs = [platform.submit({"name": name, "environment": {"lock": f"{name}.txt"}, **common}) for name in ("old", "new")]
    logs = [log_of(platform, platform.finished(job).id).splitlines()[-1] for job in jobs]
    assert [line.split()[2] for line in logs] == ["1.0", "2.0"]
    assert logs[0].split()[3] != logs[1].split()[3]
    ready = list((platform.home / "node" / "environments").glob("*/ready.json"))
    assert len({json.loads(path.read_text())["key"] for path in ready}) >= 2


def test_a_lock_that_cannot_be_built_ends_the_job_at_once_with_the_reason(platform: Platform, tmp_path: Path) -> None:
    folder = workdir(tmp_path, {"bad.txt": locked("3.0")})
    spec = {"name": "bad", "entrypoint": "python -c 1", "workdir": str(folder), "environment": {"lock": "bad.txt"}}
    job = platform.submit({**spec, "resources": {"gpus": 1}})
    with platform.client() as client:
        view = until(lambda: found if (found := client.job(job)).state == "finished" else None)
    assert (view.outcome, view.restarts, len(view.attempts)) == ("failed", 0, 1), "the same lock would fail the same way"
    assert "there is no version of tiny-greeting==3.0" in view.detail
    assert "error: No solution found" in log_of(platform, job)


def test_a_lock_that_would_not_be_packed_is_refused_at_submit(platform: Platform, tmp_path: Path) -> None:
    folder = workdir(tmp_path, {"needs.txt": "six\n", ".phalanxignore": "*.txt\n"})
    spec = {"name": "refused", "entrypoint": "true", "workdir": str(folder), "environment": {"lock": "needs.txt"}}
    (tmp_path / "job.yaml").write_text(json.dumps(spec))
    result = platform.run("submit", str(tmp_path / "job.yaml"), check=False)
    assert result.returncode == 2
    words = " ".join(result.stderr.split())
    assert "environment.lock is 'needs.txt': is not packed with workdir" in words
    assert ".phalanxignore leaves it out" in words
    with platform.client() as client:
        assert not [job for job in client.jobs() if job.name == "refused"]


class WithoutTools(Platform):
    """On a machine whose PATH has no container tool."""

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "PATH": "/nowhere"}


def test_an_image_is_refused_at_submit_where_no_node_can_run_it(tmp_path: Path) -> None:
    bare = WithoutTools(tmp_path / "home")
    bare.up()
    try:
        (tmp_path / "job.yaml").write_text('{"name": "contained", "entrypoint": "true", "environment": {"image": "python:3.12"}}')
        result = bare.run("submit", str(tmp_path / "job.yaml"), check=False)
        assert result.returncode == 2
        assert "environment.image is 'python:3.12': never fits" in result.stderr
        assert "install podman, apptainer or enroot" in " ".join(result.stderr.split())
    finally:
        bare.run("down", "--force")


def workdir(tmp_path: Path, files: dict[str, str]) -> Path:
    folder = tmp_path / "code"
    (folder / "wheels").mkdir(parents=True)
    for version in ("1.0", "2.0"):
        make_wheels.make_wheel(folder / "wheels", "tiny_greeting", version)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def locked(version: str) -> str:
    return f"--no-index\n--find-links ./wheels\ntiny-greeting=={version}\n"
