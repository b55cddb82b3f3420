"""The scale benchmark, in its quick form, says what it measured in its last line."""

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "schedule_scale.py"


def test_all_claims_in_their_quick_form_are_one_json_line() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "--seeds", "1"],
        env=dict(os.environ), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1) and done.stdout, done.stderr  # 1: a claim that does not hold, as may be on a busy machine
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "schedule_scale"
    assert (last["conditions"]["cores"], last["conditions"]["nodes"]) == (1, 1250)
    assert [(one["id"], one["peer"], one["target"]) for one in last["claims"]] == [
        ("full_p95_ms", None, "ours <= 400"),
        ("small_change_p95_ms", None, "ours <= 80"),
        ("smallest_change_p95_ms", None, "ours <= 100"),
        ("peak_rss_mb", None, "ours <= 1024"),
    ]
    assert all(one["ours"] > 0 for one in last["claims"])
    assert done.returncode == (0 if all(one["holds"] for one in last["claims"]) else 1)
