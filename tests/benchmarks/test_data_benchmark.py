"""The data benchmark reads with peers in turns, and says what it measured in its last line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def measured(claim: str, folder: Path) -> tuple[dict[str, Any], int]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "data.py"), "--quick", "--only", claim, "--folder", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1) and done.stdout, done.stderr  # 1: a claim that does not hold, as may be on a busy machine
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "data" and last["conditions"]["cores"] >= 1
    (found,) = last["claims"]
    assert found["id"] == claim
    assert found["holds"] == (done.returncode == 0)
    assert list(folder.iterdir()) == [], "nothing is left"
    return found, done.returncode


def test_shuffled_samples_are_those_of_the_bare_reader(tmp_path: Path) -> None:
    found, _ = measured("shuffled_ratio", tmp_path)
    assert (found["unit"], found["target"], found["mtokens"]) == ("Mtok/s", "ratio >= 0.8", 7.9)
    assert found["ours"] > 0 and found["peer"] > 0 and found["ratio"] > 0.2


@pytest.mark.parametrize("claim", ["first_batch_ms", "seek_ms"])
def test_first_batches_are_measured(tmp_path: Path, claim: str) -> None:
    found, _ = measured(claim, tmp_path)
    assert 0 < found["ours"] <= found["worst"]


@pytest.mark.parametrize("claim", ["s3_ratio", "data_wait_percent"])
def test_reading_from_a_store_is_measured_beside_its_client(tmp_path: Path, claim: str) -> None:
    found, _ = measured(claim, tmp_path)
    assert found["ours"] >= 0
    assert found.get("peer", 1) > 0
