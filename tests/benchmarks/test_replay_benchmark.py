"""The replay benchmark runs ours and its peers over a trace and says so in its last line."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from phalanx.operate.sim.replay.cluster import cluster_of
from phalanx.operate.sim.replay.costs import FREE
from phalanx.operate.sim.replay.engine import Replay, Setup
from phalanx.operate.sim.replay.gangs import Limits
from phalanx.operate.sim.traces.trace import Trace, TraceJob

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = ROOT / "benchmarks" / "replay.py"
MINUTE = 60_000


def test_every_claim_over_a_small_trace_is_one_json_line() -> None:
    command = [
        sys.executable,
        str(BENCHMARK),
        "--trace",
        str(ROOT / "examples/simulate/jobs.csv"),
        "--cluster",
        "GPU:8x9",
        "--quick",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 1) and done.stdout, done.stderr  # 1: a claim that does not hold, as may be of 300 jobs
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["benchmark"], last["conditions"]["jobs"], last["conditions"]["cluster"]) == ("replay", 300, "GPU:8x9")
    claims = {one["id"]: one for one in last["claims"]}
    figures = [
        "seconds",
        "utilisation_of_bound",
        "big_gangs_wait_p99_s",
        "big_gangs_wait_mean_s",
        "eta_coverage_80",
        "eta_width_p50_s",
    ]
    assert list(claims) == figures
    assert 0.5 < claims["utilisation_of_bound"]["ours"] <= 1.0001
    assert 0 < claims["seconds"]["ours"] < 100
    assert all(one["holds"] for one in claims.values()) == (done.returncode == 0)


@pytest.mark.parametrize(("peer", "passed"), [("Fifo", False), ("Easy", True)])
def test_easy_lets_pass_who_does_not_delay_the_head_and_fifo_nobody(peer: str, passed: bool) -> None:
    """Six of eight devices are held for ten minutes and a gang of eight waits; one of two for five minutes may pass, one of two for
    an hour may not."""
    jobs = [
        TraceJob("holds", 0, 10 * MINUTE, 6), TraceJob("head", MINUTE, MINUTE, 8), TraceJob("long", 2 * MINUTE, 60 * MINUTE, 2),
        TraceJob("short", 3 * MINUTE, 5 * MINUTE, 2),
    ]  # fmt: skip
    trace = Trace.of("t", jobs)
    decide = getattr(benchmark(), peer)().decide
    setup = Setup(costs=FREE, limits=Limits("exact"), interval_ms=1, predicts=False)
    outcome = Replay(trace, cluster_of("GPU:8x1", trace), setup, decide).run()
    starts = {life.job.name: (life.started_ms or 0) // MINUTE for life in outcome.lives}
    assert starts == {"holds": 0, "head": 10, "long": 11, "short": 3 if passed else 11}


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("replay_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
