"""The training benchmark plays its parts with a tiny model where there are no GPUs, by the same script to its last line."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_tiny_model_plays_a_claim_to_the_last_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "train_gpu.py"), "--tiny", "--only", "fp8_7b_loss", "--folder", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "train_gpu" and last["conditions"]["tiny"] and last["claims"] == []
    (played,) = last["played"]
    assert played["id"] == "fp8_7b_loss" and played["holds"], played
    assert 0 < played["off_percent"] < 1.0
    assert list(tmp_path.iterdir()) == []
