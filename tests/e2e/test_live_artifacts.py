"""Files that ranks leave reach the control plane while they run, whole at their end, and at most 5 s old when their node dies."""

import json
import os
import signal
import time
from pathlib import Path

from live_platform import Platform, alive, until
from test_main_job import tiny

from phalanx.core import wire
from phalanx.core.profile import ProfileView
from phalanx.core.views import ArtifactView

OLD_S_MAX = 5.0
STALL_S_MAX = 20.0
"""For so long a busy machine may run nobody of us at the very moment that counts."""

TICKER = """
import os, pathlib, time
folder = pathlib.Path(os.environ["PHALANX_ARTIFACTS"])
growing = (folder / "growing.txt").open("a")
while True:
    now = time.time()
    (folder / "swapped.new").write_text(repr(now))
    os.replace(folder / "swapped.new", folder / "swapped.txt")
    with (folder / "overwritten.txt").open("r+" if (folder / "overwritten.txt").exists() else "w") as file:
        file.write(f"{now:.6f}")
    growing.write(repr(now) + "\\n")
    growing.flush()
    time.sleep(0.2)
"""
LEAVER = """
import os, pathlib
from phalanx.job.sdk import attach
folder = pathlib.Path(attach().artifacts_dir)
assert str(folder) == os.environ["PHALANX_ARTIFACTS"]
(folder / "deep" / "er").mkdir(parents=True, exist_ok=True)
rank = os.environ["RANK"]
(folder / f"rank-{rank}.txt").write_text("of " + rank)
(folder / "deep" / "er" / f"naïve file {rank} #%.txt").write_bytes(bytes(range(256)) * 5000)
(folder / "empty").touch()
"""


def submitted(platform: Platform, script: str, **changes: object) -> str:
    spec = {"name": "giver", "entrypoint": ["python", "-c", script], "resources": {"gpus": "2"}, "max_restarts": 0, **changes}
    return platform.submit(spec)


def names(platform: Platform, job: str) -> list[str]:
    with platform.client() as client:
        return [view.name for view in client.artifacts(job)]


def test_what_ranks_leave_in_their_last_moment_is_there_when_the_job_is_over(platform: Platform, tmp_path: Path) -> None:
    job = submitted(platform, LEAVER)
    platform.finished(job)
    odd = "deep/er/naïve file 1 #%.txt"
    assert names(platform, job) == [odd.replace("1", "0"), odd, "empty", "rank-0.txt", "rank-1.txt"]
    listed = json.loads(platform.run("artifacts", "ls", job, "-o", "json").stdout)
    assert [one["size_bytes"] for one in listed] == [256 * 5000, 256 * 5000, 0, 4, 4]
    assert "rank-1.txt" in platform.run("artifacts", "ls", job, "--attempt", "1").stdout
    out = tmp_path / "fetched" / "file"
    platform.run("artifacts", "get", job, odd, "--out", str(out))
    assert out.read_bytes() == bytes(range(256)) * 5000
    there = platform.run("artifacts", "get", job, "rank-0.txt", "--out", str(out), check=False)
    assert there.returncode == 2 and "--force" in there.stderr
    platform.run("artifacts", "get", job, "rank-0.txt", "--out", str(out), "--force")
    assert out.read_text() == "of 0"
    assert [path.name for path in out.parent.iterdir()] == ["file"]
    assert platform.run("artifacts", "get", job, "../rank-0.txt", check=False).returncode == 4
    assert not (platform.home / "node" / "attempts" / f"{job}.1").exists(), "the node keeps nothing that has arrived"


def test_a_job_without_artifacts_says_so(platform: Platform) -> None:
    job = submitted(platform, "print('nothing')")
    platform.finished(job)
    assert "$PHALANX_ARTIFACTS" in platform.run("artifacts", "ls", job).stdout


def test_a_fabric_test_is_a_job_whose_result_is_an_artifact(platform: Platform) -> None:
    shown = platform.run("fabric", "test", "--sizes", "4KiB,64KiB", "--seconds", "0.01", "-o", "json")
    report = json.loads(shown.stdout)
    assert (report["num_ranks"], [tier["name"] for tier in report["tiers"]], len(report["points"])) == (2, ["node"], 8)
    with platform.client() as client:
        assert report["nodes"] == [client.nodes()[0].node]
        assert client.job(report["job"]).outcome == "succeeded"
    assert json.loads(platform.run("fabric", "show", "-o", "json").stdout) == report
    assert f"Submitted {report['job']}: 1 x cpu:2" in shown.stderr


def test_a_job_that_runs_is_asked_for_traces_and_goes_on(platform: Platform, prepared: Path) -> None:
    spec = tiny(prepared)
    job = platform.submit({**spec, "hyperparameters": {**spec["hyperparameters"], "steps": 1_000_000}})
    platform.at_step(job, 2)
    view = until(lambda: traced(platform, job))
    assert (view.attempt, view.last - view.first) == (f"{job}.1", 1)
    assert view.whole.wall_ms > 0 and view.busiest
    assert "traced on rank 1" in until(lambda: asked(platform, job, "--steps", "1", "--rank", "1", "--no-wait"))
    with platform.client() as client:
        request = client.trace_request(job)
        for seen in client.follow_traces(request, poll_s=0.2):
            assert seen.number == request.number
        done = client.trace_request(job)
        assert (done.left, done.traced + len(done.missed)) == ((), 1)
        assert client.job(job).restarts == 0
        client.cancel(job)
        client.wait(job, timeout_s=240)
    events = platform.run("events", job, "--kind", "traces_requested").stdout
    assert f"traces of step {done.first} asked for by admin, of rank 1" in events


def traced(platform: Platform, job: str) -> ProfileView | None:
    """What both ranks left when they were asked; None where a rank heard of it too late, as on a machine that stalls."""
    shown = asked(platform, job, "--steps", "2", "-o", "json")
    view: ProfileView | None = wire.loads(ProfileView, shown) if shown is not None else None
    return view if view is not None and len(view.ranks) == 2 else None


def asked(platform: Platform, job: str, *options: str) -> str | None:
    """What the command says; None where it is to be given again, as on a machine that stalls."""
    shown = platform.run("profile", job, *options, check=False)
    again = ("ask again", "no rank leaves a trace", "asked for already")
    assert shown.returncode == 0 or any(words in shown.stderr for words in again), shown.stderr
    return shown.stdout if shown.returncode == 0 else None


def test_what_reached_the_server_of_a_dead_node_is_no_older_than_five_seconds(platform: Platform, tmp_path: Path) -> None:
    job = submitted(platform, TICKER, resources={"gpus": "1"})
    files = ("growing.txt", "overwritten.txt", "swapped.txt")
    until(lambda: set(files) <= set(names(platform, job)))
    ages = sorted(age(platform, job, tmp_path) for _ in range(11))
    folder = platform.home / "node" / "attempts" / f"{job}.1"
    shim = int(json.loads((folder / "shim-pid.json").read_bytes())["pid"])
    platform.kill("agent")
    killed_s = time.time()
    os.kill(shim, signal.SIGKILL)
    until(lambda: not alive(shim))
    last = max(float(line) for line in (folder / "artifacts" / "growing.txt").read_text().split())
    assert killed_s - last < STALL_S_MAX, "the rank wrote to the end"
    lost = {name: last - newest(platform, job, name, tmp_path) for name in files}
    assert all(0 <= seconds <= OLD_S_MAX + STALL_S_MAX for seconds in lost.values()), lost
    assert ages[len(ages) // 2] <= OLD_S_MAX, ages
    platform.up()
    with platform.client() as client:
        assert client.wait(job, timeout_s=240).outcome == "failed"
    assert newest(platform, job, "growing.txt", tmp_path) == last, "the next agent sends what is left"


def age(platform: Platform, job: str, tmp_path: Path) -> float:
    time.sleep(0.3)
    now_s = time.time()
    return now_s - newest(platform, job, "growing.txt", tmp_path)


def newest(platform: Platform, job: str, name: str, tmp_path: Path) -> float:
    """The newest moment that the server's copy of a file speaks of."""
    out = tmp_path / "copy"
    with platform.client() as client:
        view: ArtifactView = client.artifact(job, name)
        client.save_artifact(view, out, force=True)
    return max(float(line) for line in out.read_text().split())
