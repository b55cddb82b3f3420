"""The start-up benchmark meets with torch's peers in the same call, and says what it measured in its last line."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_small_gang_meets_by_each_way() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "startup.py"), "--quick", "--ranks", "24"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "startup" and last["conditions"]["cores"] >= 1
    (claim,) = last["claims"]
    assert (claim["id"], claim["nodes"], claim["ranks"], claim["holds"]) == ("rendezvous_24_s", 3, 24, True)
    assert 0 < claim["ours"] == claim["last_through_s"]["settled"] and claim["tcp_store_s"][0] > 0, claim
    assert list(claim["last_through_s"].values()) == sorted(claim["last_through_s"].values())
    assert abs(claim["peer"] - claim["tcp_store_s"][0] - claim["torchrun_c10d_s"][0]) < 0.002
