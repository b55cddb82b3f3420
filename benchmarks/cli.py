"""What `phalanx --help` costs against `python -c pass`, in CPU time of the whole process.

Usage: python benchmarks/cli.py [--only help_cpu_s] [--quick]. The last line is one JSON object; the exit code is 1 when a claim
does not hold.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HELP_EXTRA_S_MAX = 0.30
"""Issue 2: `phalanx --help` costs at most `python -c pass` and this."""

RUNS, RUNS_QUICK = 9, 3
PASS = (sys.executable, "-c", "pass")
HELP = (str(Path(sys.executable).with_name("phalanx")), "--help")


def cpu_s(command: Sequence[str]) -> float:
    """User and system seconds of one run of `command`."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def help_cpu_s(runs: int) -> dict[str, Any]:
    """Median of `runs` runs, ours and the peer's in turn, after one of each that fills the caches."""
    pairs = [(cpu_s(HELP), cpu_s(PASS)) for _ in range(runs + 1)][1:]
    ours = statistics.median(pair[0] for pair in pairs)
    peer = statistics.median(pair[1] for pair in pairs)
    print(f"phalanx --help: {ours:.3f} s of CPU; python -c pass: {peer:.3f} s; {runs} runs each")
    return {
        "id": "help_cpu_s", "ours": round(ours, 4), "peer": round(peer, 4), "ratio": round(ours / peer, 2), "unit": "s of CPU",
        "target": f"ours <= peer + {HELP_EXTRA_S_MAX}", "holds": ours <= peer + HELP_EXTRA_S_MAX,
    }  # fmt: skip


def conditions() -> dict[str, Any]:
    """What the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {name: version(name) for name in ("phalanx", "typer")}
    return {
        "cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)), "card": "none",
        "versions": {"python": platform.python_version(), **versions}, "seeds": [],
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["help_cpu_s"], help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{RUNS_QUICK} runs instead of {RUNS}")
    options = parser.parse_args()
    claims = [help_cpu_s(RUNS_QUICK if options.quick else RUNS)]
    print(json.dumps({"benchmark": "cli", "conditions": conditions(), "claims": claims}))
    return 0 if all(claim["holds"] for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
