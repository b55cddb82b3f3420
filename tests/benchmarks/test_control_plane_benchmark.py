"""The benchmark of the control plane starts platforms of its own, measures them and says so in its last line."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "control_plane.py"


def test_all_of_it_runs_and_loses_nothing() -> None:
    done = subprocess.run([sys.executable, str(BENCHMARK), "--tiny"], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    claims = {claim["id"]: claim for claim in last["claims"]}
    assert last["benchmark"] == "control_plane"
    assert set(claims) == {"jobs_per_s", "read_p95_ms", "api_p99_ms", "missed_heartbeats", "log_bytes_lost", "flood_p99_ms"}
    assert claims["jobs_per_s"]["ours"] > 0
    assert claims["missed_heartbeats"]["renewals"] > 0
    assert claims["log_bytes_lost"]["ours"] == 0
    assert {"ls", "describe", "describe_waiting", "why", "status"} == set(claims["read_p95_ms"]["p95_ms"])
