"""The checkpoint benchmark starts a gang of its own, and says what it measured in its last line."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_one_claim_in_its_quick_form_is_one_json_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "checkpoint.py"), "--quick", "--only", "write_ratio", "--folder", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1) and done.stdout, done.stderr  # 1: a claim that does not hold, as may be on a busy machine
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "checkpoint" and last["conditions"]["cores"] >= 1
    (claim,) = last["claims"]
    assert (claim["id"], claim["unit"], claim["target"]) == ("write_ratio", "s", "ratio >= 0.9")
    assert claim["ours"] > 0 and claim["peer"] > 0 and claim["gb"] > 0.1
    assert claim["holds"] == (done.returncode == 0)
    assert list(tmp_path.iterdir()) == []
