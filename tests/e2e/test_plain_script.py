"""A torchrun-style script that knows nothing of Phalanx runs unchanged: the example itself, executed."""

import json
from pathlib import Path

import yaml
from live_platform import Platform

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain-script"


def test_example_runs_unchanged(platform: Platform) -> None:
    assert "phalanx" not in (EXAMPLE / "train.py").read_text().partition('"""\n\n')[2].lower()
    job = json.loads(platform.run("submit", str(EXAMPLE / "job.yaml"), "-o", "json").stdout)
    view = platform.finished(job["id"])
    assert len(view.code) == 64
    for rank in (0, 1):
        lines = platform.run("logs", view.id, "--rank", str(rank)).stdout.splitlines()
        assert [line for line in lines if f"rank {rank} of 2: step 200" in line], lines
        assert not [line for line in lines if f"rank {1 - rank} of 2" in line]


def test_its_job_file_is_valid_and_small() -> None:
    assert set(yaml.safe_load((EXAMPLE / "job.yaml").read_text())) == {"name", "entrypoint", "workdir", "resources"}
