"""Whether CUDA MPS keeps the bounds that ranks of shared GPUs are given: memory, and a part of the processors.

Usage: python benchmarks/shares_gpu.py [--only ID] [--quick]. The last line is one JSON object; the exit code is 1 when a claim
does not hold. It needs a CUDA GPU, torch, and the right to start `nvidia-cuda-mps-control`, which it ends again; without them it
claims nothing.

Each process is started with the variables that `operate.control.wanted.share_bounds` gives a rank. The peer is a process beside
the same daemon without them, which has the whole card.

`share_memory_gib`: how much a share of 20 GiB could take, in pieces of 256 MiB, before it was refused; the peer takes 40 and
stops. `share_speed_percent`: products of 8192 x 8192 in bf16 in a quarter of the processors, of what the peer does. Where the
card's power bounds the peer, a quarter alone runs at higher clocks and does more than a quarter of that. `four_shares_percent`:
of four quarters at once, the slowest, likewise; told beside it is the fastest.
"""

import argparse
import json
import os
import platform as machine
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from phalanx.operate.control.wanted import share_bounds

MILLI: Final = 250
LIMIT_GIB: Final = 20
STOP_GIB: Final = 40
GIB: Final = 2**30
CONTEXT_GIB: Final = 1.5
"""What CUDA itself takes of a share, kernels and workspaces, at most."""
SHARES: Final = 4
SHARE_MAX: Final = 45.0
"""Of a quarter alone: at most 1.8 times the clocks that a card in full use is held at."""
SHARE_MIN: Final = 20.0
"""Of each of four at once: they share caches and memory, too."""

Answer = dict[str, Any]

WORK: Final = f"""
import json, sys, time, torch
seconds = float(sys.argv[1])
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
for _ in range(10): x @ x
torch.cuda.synchronize()
print("ready", flush=True); sys.stdin.readline()
start, count = time.monotonic(), 0
while time.monotonic() - start < seconds:
    for _ in range(10): x @ x
    torch.cuda.synchronize(); count += 10
tflops = 2 * 8192**3 * count / (time.monotonic() - start) / 1e12
held = []
try:
    while len(held) < {STOP_GIB} * 4: held.append(torch.empty(2**28, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError: pass
print(json.dumps({{"tflops": tflops, "took_gib": len(held) / 4, "sees_gib": torch.cuda.mem_get_info()[1] / 2**30}}))
"""


@contextmanager
def daemon() -> Iterator[Mapping[str, str]]:
    """The variables by which processes find it."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=env, check=True)
        try:
            yield env
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", env=env, text=True, check=False)


def run(env: Mapping[str, str], bounds: Mapping[str, str], count: int, seconds: float) -> list[Answer]:
    """So many processes at once, each with these bounds."""
    words = [sys.executable, "-c", WORK, str(seconds)]
    started = [
        subprocess.Popen(words, env={**env, **bounds}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]  # fmt: skip
    for one in started:
        assert one.stdout is not None
        one.stdout.readline()
    for one in started:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    return [json.loads(one.communicate()[0].splitlines()[-1]) for one in started]


def measure(quick: bool) -> list[Answer]:
    seconds, bounds = 1.0 if quick else 5.0, share_bounds(MILLI, LIMIT_GIB * GIB)
    with daemon() as env:
        (whole,), (share,) = run(env, {}, 1, seconds), run(env, bounds, 1, seconds)
        all_of_them = run(env, bounds, SHARES, seconds)
    print(f"whole card: {whole}\na share of a quarter and {LIMIT_GIB} GiB: {share}\nfour of them at once: {all_of_them}")
    alone = 100 * share["tflops"] / whole["tflops"]
    slowest, *_, fastest = sorted(100 * one["tflops"] / whole["tflops"] for one in all_of_them)
    most = max(one["took_gib"] for one in (share, *all_of_them))
    kept = LIMIT_GIB - CONTEXT_GIB <= most <= LIMIT_GIB and whole["took_gib"] >= STOP_GIB
    return [
        claim("share_memory_gib", most, whole["took_gib"], "GiB", f"{LIMIT_GIB - CONTEXT_GIB} <= ours <= {LIMIT_GIB}", kept),
        claim("share_speed_percent", alone, 100.0, "% of the card", f"ours <= {SHARE_MAX}", alone <= SHARE_MAX),
        claim("four_shares_percent", slowest, 100.0, "% of the card", f"ours >= {SHARE_MIN}", slowest >= SHARE_MIN)
        | {"fastest": round(fastest, 2)},
    ]


def claim(name: str, ours: float, peer: float, unit: str, target: str, holds: bool) -> Answer:
    ratio = round(ours / peer, 3)
    return {"id": name, "ours": round(ours, 2), "peer": peer, "ratio": ratio, "unit": unit, "target": target, "holds": holds}


def card() -> str:
    """Its name; '' where nothing can be measured."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        return ""
    try:
        import torch
    except ImportError:
        return ""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


CLAIMS: Final = ("share_memory_gib", "share_speed_percent", "four_shares_percent")


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CLAIMS, help="tell one claim; all come of the same run")
    parser.add_argument("--quick", action="store_true", help="a second of products instead of five")
    options = parser.parse_args()
    name = card()
    claims = [one for one in measure(options.quick) if options.only in (None, one["id"])] if name else []
    if not name:
        print("no CUDA GPU with an MPS daemon here: nothing is claimed")
    around = {
        "cpu": machine.machine(),
        "cores": os.cpu_count(),
        "card": name or "none",
        "versions": {"python": machine.python_version()},
    }
    print(json.dumps({"benchmark": "shares_gpu", "conditions": {**around, "seeds": []}, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
