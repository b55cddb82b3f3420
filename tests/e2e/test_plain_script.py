"""A torchrun-style script that knows nothing of Phalanx runs unchanged, and one with the library tells the platform all: both
examples, executed."""

import json
from pathlib import Path

import yaml
from live_platform import Platform

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain-script"
LIBRARY = EXAMPLE.with_name("library")


def test_example_runs_unchanged(platform: Platform) -> None:
    assert "phalanx" not in (EXAMPLE / "train.py").read_text().partition('"""\n\n')[2].lower()
    job = json.loads(platform.run("submit", str(EXAMPLE / "job.yaml"), "-o", "json").stdout)
    view = platform.finished(job["id"])
    assert len(view.code) == 64
    for rank in (0, 1):
        lines = platform.run("logs", view.id, "--rank", str(rank)).stdout.splitlines()
        assert [line for line in lines if f"rank {rank} of 2: step 200" in line], lines
        assert not [line for line in lines if f"rank {1 - rank} of 2" in line]


def test_what_a_script_wrote_is_there_after_a_restart_and_the_code_is_fresh(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib, sys\n"
        "kept = pathlib.Path(f'rank-{os.environ[\"RANK\"]}.txt')\n"
        "again = kept.exists()\n"
        "kept.write_text('from the first attempt')\n"
        "print('again' if again else 'first', pathlib.Path('code.txt').read_text(), flush=True)\n"
        "pathlib.Path('code.txt').write_text('spoiled')\n"
        "sys.exit(0 if again else 3)\n"
    )
    (tmp_path / "code.txt").write_text("fresh")
    spec = {"name": "keeps", "entrypoint": "python train.py", "workdir": str(tmp_path), "resources": {"gpus": 1}}
    view = platform.finished(platform.submit(spec))
    assert view.restarts == 1
    assert platform.run("logs", view.id, "--rank", "0").stdout.splitlines()[-1] == "again fresh"
    work = platform.home / "jobs" / view.id / "work"
    assert (work / "rank-0.txt").read_text() == "from the first attempt"


def test_its_job_file_is_valid_and_small() -> None:
    assert set(yaml.safe_load((EXAMPLE / "job.yaml").read_text())) == {"name", "entrypoint", "workdir", "resources"}


def test_the_library_s_example_is_measured_saved_and_traced(platform: Platform, prepared: Path) -> None:
    spec = yaml.safe_load((LIBRARY / "job.yaml").read_text())
    job = platform.submit({**spec, "workdir": str(LIBRARY), "data": {"path": str(prepared)}})
    view = platform.finished(job)
    assert view.progress is not None and (view.progress.step, view.progress.total_steps) == (200, 200)
    assert 0 < view.progress.loss < 6.3
    assert "from 0 to 200: loss 0x1." in platform.run("logs", job, "--rank", "0").stdout
    steps = [one["step"] for one in json.loads(platform.run("checkpoint", "ls", job, "-o", "json").stdout)]
    assert sorted(steps) == [150, 200]
    with platform.client() as client:
        names = {one.name for one in client.artifacts(job)}
        categories = client.ledger(job, None).categories
    assert {f"profile/rank-{rank}-steps-10-11.trace.json.gz" for rank in (0, 1)} < names
    assert categories["productive"] > 0 and categories["running_unmeasured"] == 0
