"""The benchmark of completion times: its clock is checked by hand, and its last line says what was claimed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "jct.py"
HEAD = "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,iteration_time\n"
LONG_MS, SHORT_MS = 100_000_000, 10_000_000


def job(name: int, devices: int, submit_ms: int, duration_ms: int) -> str:
    return f"{name},{devices},{submit_ms},{duration_ms},none,1,{duration_ms},1\n"


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_the_price_of_a_start_and_of_being_evicted_is_as_told(tmp_path: Path) -> None:
    """The long gang holds all GPUs until the short one comes, which both orders put before it."""
    trace = tmp_path / "two.csv"
    trace.write_text(HEAD + job(0, 64, 0, LONG_MS) + job(1, 64, 1_000_000, SHORT_MS))
    done = ran("--trace", str(trace), "--only", "avg_jct_ks")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    (claim,) = last["claims"]
    short_ms = 10_000 + SHORT_MS * 1.015
    long_ms = 10_000 + LONG_MS * 1.015 + short_ms + 10_000
    assert (last["benchmark"], last["conditions"]["start_ms"]) == ("jct", 10_000)
    assert (claim["id"], claim["published"], claim["holds"]) == ("avg_jct_ks", None, True)
    assert claim["ours"] == claim["peer"] == pytest.approx((short_ms + long_ms) / 2 / 1e6, abs=1e-3)


def test_without_durations_short_jobs_do_not_wait_for_long_ones(tmp_path: Path) -> None:
    jobs = [job(number, 8, number, LONG_MS) for number in range(12)]
    jobs += [job(number, 8, LONG_MS // 4 + number * 3_000_000, SHORT_MS // 10) for number in range(12, 40)]
    trace = tmp_path / "mixed.csv"
    trace.write_text(HEAD + "".join(jobs))
    done = ran("--trace", str(trace), "--only", "blind_vs_tiresias")
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    (claim,) = json.loads(done.stdout.splitlines()[-1])["claims"]
    assert claim["holds"] == (done.returncode == 0) == (claim["ours"] <= 1.0)
    assert claim["ours"] == pytest.approx(claim["ours_ks"] / claim["peer_ks"], abs=0.01)
    assert claim["ours_p99_ks"] > claim["ours_ks"] > 0


def test_a_bad_trace_is_a_sentence(tmp_path: Path) -> None:
    trace = tmp_path / "bad.csv"
    trace.write_text(HEAD + job(0, 64, 0, LONG_MS) + job(1, -1, 0, SHORT_MS))
    done = ran("--trace", str(trace))
    assert done.returncode == 2
    assert done.stderr == "bad.csv:3 is '-1': num_gpu: write 1 or more\n"
    assert "Traceback" not in done.stdout
