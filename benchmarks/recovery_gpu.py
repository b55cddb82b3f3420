"""How long a gang of two GPUs with a 7B model stands still when one of its ranks is killed, with a warm spare and without one.

Usage: python benchmarks/recovery_gpu.py [--only ID] [--quick] [--ranks N] [--layers N] [--alone-layers N] [--peer]. The last line
is one JSON object; the exit code is 1 when a claim does not hold. Two CUDA GPUs are needed, whose host has memory for two copies of
the state. Without them the demo's model plays the same on the CPU, and nothing is claimed.

Rank 0 is killed in both. Seconds are from the signal to the end of the first optimiser step that began after it: with a spare of
two ranks; without one of the survivor alone, which then has the samples and the state of both. A host of 256 GB has no room for two
snapshots of 86 GB beside those of the gang that was, so the survivor's model has fewer layers. With --peer torchrun restarts the
same trainer from its newest checkpoint on the disk, which has to hold one (86 GB). With --ranks 1 only
the spare is measured, on one GPU with as much state as each of the two.
"""

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import recovery  # type: ignore[import-not-found]  # beside this file, where a script's imports are looked for first

DIM, FFN_DIM, HEADS, LAYERS = 4096, 11008, 32, 35
"""7.09 billion parameters beside a small vocabulary: 42.5 GB of float32 weights and two moments on each of two GPUs."""
ALONE_LAYERS = 16
"""3.2 billion parameters."""
SEQUENCE, ACCUMULATE = 2048, 4
SURVIVORS_S_MAX, SPARE_S_MAX = 10.0, 15.0
HANG_MS: Final = 60_000
BETWEEN: Final = 4
DEADLINE_S: Final = 300.0

Answer = dict[str, Any]


def with_spare(options: argparse.Namespace) -> dict[str, Any]:
    with recovery.gang(options, "spare", spares=1) as ours:
        print("  a gang with a spare trains", flush=True)
        seconds = ours.fault(signal.SIGKILL, 0)
        lost, same = max(ours.steps_lost()), ours.repeats_are_equal()
        print(f"  with a spare: {seconds:.2f} s, {lost} steps lost, the same losses: {same}", flush=True)
    return {"seconds": seconds, "steps_lost": lost, "bitwise": same}


def alone(options: argparse.Namespace) -> dict[str, Any]:
    if "layers" in recovery.MODEL:
        recovery.MODEL["layers"] = options.alone_layers
    with recovery.gang(options, "alone", spares=0, sizes=(1,)) as ours:
        print("  a gang without a spare trains", flush=True)
        begin = ours.step()
        ours.wait(lambda: ours.step() >= begin + BETWEEN)
        seconds = ours.struck(ours.pids()[0], signal.SIGKILL)
        print(f"  the survivor alone: {seconds:.2f} s", flush=True)
        return {"seconds": seconds, "bitwise": ours.repeats_are_equal()}


MEASURES = {"gpu_recovery_spare_s": (with_spare, SPARE_S_MAX), "gpu_recovery_survivors_s": (alone, SURVIVORS_S_MAX)}


def claims_of(options: argparse.Namespace) -> list[Answer]:
    """With torchrun's restart beside them, where it was asked for."""
    possible = [name for name in MEASURES if options.ranks > 1 or name == "gpu_recovery_spare_s"]
    found = {name: MEASURES[name][0](options) for name in ([options.only] if options.only else possible)}
    restart = max(recovery.torchrun(options), default=None) if options.peer else None
    return [
        {**recovery.claim(name, one["seconds"], restart, MEASURES[name][1]), **{key: one[key] for key in one if key != "seconds"}}
        for name, one in found.items()
    ]


def prepare(options: argparse.Namespace) -> str:
    """Says how large the model is and which devices it may use; the card's name, '' without two of them."""
    import torch

    recovery.RANKS = options.ranks
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
    parser.add_argument("--only", choices=list(MEASURES), help="run one claim")
    parser.add_argument("--quick", action="store_true", help="changes nothing: it is done once anyway")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=2, help="GPUs to train on")
    parser.add_argument("--layers", type=int, help=f"of the model, {LAYERS} for two ranks unless told")
    parser.add_argument("--alone-layers", type=int, default=ALONE_LAYERS, help="of the survivor's model")
    parser.add_argument("--peer", action="store_true", help="measure torchrun too")
    options = parser.parse_args()
    options.rank = 0
    options.layers = options.layers or -(-LAYERS * options.ranks // 2)
    if options.ranks == 1 and options.only == "gpu_recovery_survivors_s":
        parser.error("--only gpu_recovery_survivors_s: of one rank nobody survives; leave out --ranks 1")
    recovery.DEADLINE_S = DEADLINE_S
    card = prepare(options)
    with tempfile.TemporaryDirectory(prefix="phalanx-recovery-gpu-") as folder:
        options.folder = folder
        recovery.prepare_data(Path(folder))
        claims = claims_of(options)
    if not card:
        claims = []
        print("no such GPUs here: the demo's model was trained on the CPU, and nothing is claimed")
    around = {**recovery.conditions(card or "none"), "layers": options.layers}
    print(json.dumps({"benchmark": "recovery_gpu", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
