"""How long a gang of two GPUs with a 7B model stands still when one of its ranks is killed, with a warm spare and without one.

Usage: python benchmarks/recovery_gpu.py [--only ID] [--quick] [--layers N] [--peer]. The last line is one JSON object; the exit
code is 1 when a claim does not hold. Two CUDA GPUs are needed, whose host has memory for two copies of the state; to go on alone a
GPU needs room for all of it (86 GB and the gradients), which an H200 has. Without them the demo's model plays the same on the CPU,
and nothing is claimed.

Rank 0 is killed in both. Seconds are from the signal to the end of the first optimiser step that began after it: with a spare of
two ranks, without one of the survivor alone, which then has the samples of both. With --peer torchrun restarts the same trainer
from its newest checkpoint on the disk, which has to hold one (86 GB).
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import recovery  # type: ignore[import-not-found]  # beside this file, where a script's imports are looked for first

DIM, FFN_DIM, HEADS, LAYERS = 4096, 11008, 32, 35
"""7.09 billion parameters beside a small vocabulary: 42.5 GB of float32 weights and two moments on each of two GPUs."""
SEQUENCE, ACCUMULATE = 2048, 4
SURVIVORS_S_MAX, SPARE_S_MAX = 10.0, 15.0
HANG_MS: Final = 60_000
BETWEEN: Final = 4
DEADLINE_S: Final = 300.0

Answer = dict[str, Any]


def measured(options: argparse.Namespace) -> dict[str, float | str]:
    """Seconds, or why there are none."""
    found: dict[str, float | str] = {}
    with recovery.gang(options, "gpu", spares=1, sizes=(1,)) as ours:
        print(f"  the gang trains; {ours.folder.name}", flush=True)
        found["gpu_recovery_spare_s"] = ours.fault(signal.SIGKILL, 0)
        print(f"  with a spare: {found['gpu_recovery_spare_s']:.2f} s, steps lost {ours.steps_lost()}", flush=True)
        found["steps_lost"], found["same"] = float(max(ours.steps_lost())), str(ours.repeats_are_equal())
        with contextlib.suppress(OSError, SystemExit):
            os.kill(ours.spare_pid(), signal.SIGKILL)  # the one that has just been started
        try:
            found["gpu_recovery_survivors_s"] = ours.struck(ours.pids()[0], signal.SIGKILL)
            print(f"  the survivor alone: {found['gpu_recovery_survivors_s']:.2f} s", flush=True)
        except (SystemExit, KeyError) as error:
            found["gpu_recovery_survivors_s"] = f"did not go on: {str(error)[-600:]}"
        print(*[line for line in ours.said().splitlines() if "generation" in line or "killed" in line], sep="\n  ", flush=True)
    return found


def claims_of(found: dict[str, float | str], peer: list[float], only: str | None) -> list[Answer]:
    most = {"gpu_recovery_survivors_s": SURVIVORS_S_MAX, "gpu_recovery_spare_s": SPARE_S_MAX}
    restart = max(peer, default=None)
    claims = []
    for name in [only] if only else most:
        ours = found[name]
        more: Answer = {"steps_lost": found["steps_lost"], "repeats_are_equal": found["same"]}
        if isinstance(ours, str):
            claims.append({"id": name, "ours": None, "why": ours, "target": f"ours <= {most[name]:g}", "holds": False})
        else:
            claims.append({**recovery.claim(name, ours, restart, most[name]), **more})
    return claims


def prepare(options: argparse.Namespace) -> str:
    """Says how large the model is and which devices it may use; the card's name, '' without two of them."""
    import torch

    if torch.cuda.device_count() < recovery.RANKS:
        return ""
    recovery.HIDDEN.clear()
    recovery.HANG_MS_MIN = HANG_MS
    recovery.BETWEEN = BETWEEN
    recovery.MODEL.update(
        dim=DIM, ffn_dim=FFN_DIM, heads=HEADS, layers=options.layers, sequence=SEQUENCE, batch_per_rank=1, accumulate=ACCUMULATE,
        dtype="bf16", lr=1e-4, recompute_every=0,
    )  # fmt: skip
    return torch.cuda.get_device_name(0)


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("gpu_recovery_survivors_s", "gpu_recovery_spare_s"), help="tell one claim")
    parser.add_argument("--quick", action="store_true", help="changes nothing: it is done once anyway")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of the model, {LAYERS} unless told")
    parser.add_argument("--peer", action="store_true", help="measure torchrun too")
    options = parser.parse_args()
    options.rank = 0
    recovery.DEADLINE_S = DEADLINE_S
    card = prepare(options)
    with tempfile.TemporaryDirectory(prefix="phalanx-recovery-gpu-") as folder:
        options.folder = folder
        recovery.prepare_data(Path(folder))
        found = measured(options)
        peer = recovery.torchrun(options) if options.peer else []
    claims = claims_of(found, peer, options.only) if card else []
    if not card:
        print("no two GPUs here: the demo's model was trained on the CPU, and nothing is claimed")
    about = {"cores": len(os.sched_getaffinity(0)), "card": card or "none", "load": os.getloadavg()[0], "layers": options.layers}
    around = {
        **about,
        "cpu": platform.processor(),
        "versions": {"python": platform.python_version()},
        "seed": recovery.MODEL["seed"],
    }
    print(json.dumps({"benchmark": "recovery_gpu", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
