"""AdamW's moments in host memory and in a file, beside plain AdamW and, on CUDA, torch's CPUOffloadPolicy: bytes and seconds.

Usage: python benchmarks/offload.py [--only ID] [--quick] [--folder DIR]. The last line is one JSON object; the exit code is 1 when
a claim does not hold. On a CUDA GPU a 1.1B model in bf16 and rows of 2,048 tokens; without one a model of 55 million weights (27
with --quick) in float32 and rows of 32 tokens, of which nothing but the bits and the bytes of `nvme` is claimed. --folder: of the
file, on the disk that shall be measured.

Each kind trains in a process of its own, with the trainer's model and step; of torch's policy the model is cut in the same places,
and a step is forward, backward and update. `host_bytes`: by how much anonymous memory grows from before the optimizer is made, with
gradients there already, to after its first update. `device_bytes`: the most that torch had allocated on the GPU. `step_s`,
`update_s`: medians of a whole step and of the update in it.

`offload_nvme_host`: host bytes of `nvme`, against those of plain AdamW (on CUDA of `cpu`). `offload_device`: device bytes of `cpu`
below those of `none`, over the bytes of the moments. `offload_cpu_ratio`: the policy's seconds of a step over those of `cpu`.
`offload_same`: whether all losses are those of `none`, to the last bit.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

STEPS, QUICK_STEPS = 6, 3
NVME_BYTES_MOST: Final = 160 * 2**20
"""Eight buffers of 16 MiB, and what threads and the allocator take."""
DEVICE_LEAST: Final = 0.8
"""Of the moments' bytes: buffers for what is on its way take some of it again."""
OURS: Final = ("none", "cpu", "nvme")
POLICY: Final = "policy"

Answer = dict[str, Any]


# The claims


def nvme_host(found: Answer) -> Answer:
    ours, peer = found["nvme"]["host_bytes"], found["cpu" if found["none"]["device"] == "cuda" else "none"]["host_bytes"]
    return {
        "ours": ours, "peer": peer, "ratio": round(peer / max(ours, 1), 2), "unit": "bytes",
        "target": f"ours <= {NVME_BYTES_MOST}", "holds": ours <= NVME_BYTES_MOST, "claimed": True,
    }  # fmt: skip


def device(found: Answer) -> Answer:
    saved = (found["none"]["device_bytes"] - found["cpu"]["device_bytes"]) / found["none"]["moment_bytes"]
    return {
        "ours": round(saved, 3), "peer": found["none"]["device_bytes"], "unit": "of the moments",
        "target": f"ours >= {DEVICE_LEAST}", "holds": saved >= DEVICE_LEAST, "claimed": found["none"]["device"] == "cuda",
    }  # fmt: skip


def cpu_ratio(found: Answer) -> Answer:
    ours, peer = found["cpu"]["step_s"], found[POLICY]["step_s"]
    return {
        "ours": round(ours, 4), "peer": round(peer, 4), "ratio": round(peer / ours, 3), "unit": "s", "target": "ratio >= 1.0",
        "holds": peer >= ours, "claimed": found["none"]["device"] == "cuda",
    }  # fmt: skip


def same(found: Answer) -> Answer:
    others = [kind for kind in OURS if found[kind]["losses"] != found["none"]["losses"]]
    return {"ours": len(others), "peer": None, "unit": "kinds", "target": "ours == 0", "holds": not others, "claimed": True}


CLAIMS: Final[dict[str, Callable[[Answer], Answer]]] = {
    "offload_nvme_host": nvme_host,
    "offload_device": device,
    "offload_cpu_ratio": cpu_ratio,
    "offload_same": same,
}


# One kind: this file again, in a process of its own


def measured(kind: Any, folder: Path, quick: bool) -> Answer:
    import torch

    from phalanx.core.recipe import LlamaRecipe
    from phalanx.job.checkpoint.local import local_of
    from phalanx.job.train.device import alone, prepare_device, synchronise, this_rank
    from phalanx.job.train.loss import token_loss
    from phalanx.job.train.offload import OffloadPlace
    from phalanx.job.train.optimizer import make_adamw
    from phalanx.job.train.parallel import make_mesh, sharded_llama
    from phalanx.job.train.precision import Dtype
    from phalanx.job.train.step import train_step

    at = prepare_device()
    alone(at)
    gpu, rank = at.type == "cuda", this_rank(at)
    recipe = LlamaRecipe(
        dim=2048 if gpu else 768, layers=16 if gpu else 2 if quick else 6, heads=16 if gpu else 12, ffn_dim=8192 if gpu else 2048,
        sequence=2048 if gpu else 32, batch_per_rank=1, warmup_steps=0, compile=False, recompute_every=0,
    )  # fmt: skip
    vocab = 32_000 if gpu else 8_192
    dtype: Dtype = "bf16" if gpu else "fp32"
    samples = torch.randint(vocab, (1, 1, recipe.sequence + 1), generator=torch.Generator().manual_seed(0)).to(at)
    model = (
        policy_model(recipe, vocab, at)
        if kind == POLICY
        else sharded_llama(recipe.shape(vocab), recipe, rank, make_mesh(rank), dtype)
    )
    token_loss(model, samples[0]).backward()  # type: ignore[no-untyped-call]
    synchronise(at)
    place = OffloadPlace(kind=kind, folder=folder, node="here") if kind in ("cpu", "nvme") else None
    base = anonymous_bytes()
    optimizer = make_adamw(model, recipe, place)
    optimizer.step()
    synchronise(at)
    answer: Answer = {
        "host_bytes": anonymous_bytes() - base, "device": at.type, "device_name": rank.device_name, "torch": torch.__version__,
        "moment_bytes": 2 * sum(local_of(one).nbytes for one in model.parameters()),
    }  # fmt: skip
    optimizer.zero_grad()
    steps, updates, losses = [], [], []
    for step in range(1, (QUICK_STEPS if quick else STEPS) + 1):
        began = time.perf_counter()
        if kind == POLICY:
            loss = token_loss(model, samples[0])
            loss.backward()  # type: ignore[no-untyped-call]
            synchronise(at)
            between = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
            synchronise(at)
            updates.append(time.perf_counter() - between)
            losses.append(float(loss.detach()).hex())
        else:
            facts = train_step(model, optimizer, lambda _: samples, recipe, step, time.perf_counter)
            updates.append(facts.optimizer_s)
            losses.append(facts.loss.hex())
        steps.append(time.perf_counter() - began)
    device_bytes = torch.cuda.max_memory_allocated() if gpu else 0
    return {
        **answer, "losses": losses, "step_s": statistics.median(steps), "update_s": statistics.median(updates),
        "device_bytes": device_bytes,
    }  # fmt: skip


def policy_model(recipe: Any, vocab: int, at: Any) -> Any:
    """Weights, gradients and moments on the host, by torch's own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    from phalanx.job.models.llama import Llama, initialise
    from phalanx.job.train.precision import policy

    model = Llama(recipe.shape(vocab))
    for name, part in model.named_children():
        initialise(part, name, recipe.seed, recipe.init_std)
    gpu = at.type == "cuda"
    how: dict[str, Any] = {"mp_policy": policy("bf16" if gpu else "fp32"), "offload_policy": CPUOffloadPolicy(pin_memory=gpu)}
    mesh = init_device_mesh(at.type, (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


def anonymous_bytes() -> int:
    """Memory of this process that no file backs, or that one without a disk does; what was freed is given back first."""
    ctypes.CDLL(None).malloc_trim(0)
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def in_a_process(kind: str, options: argparse.Namespace, folder: str) -> Answer:
    words = [
        sys.executable,
        __file__,
        "--as-kind",
        kind,
        "--folder",
        options.folder or folder,
        *(["--quick"] if options.quick else []),
    ]
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    answer: Answer = json.loads(said.stdout.splitlines()[-1])
    return answer


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"a smaller model without a GPU, {QUICK_STEPS} steps")
    parser.add_argument("--folder", default="", help="of the file; a temporary one unless told")
    parser.add_argument("--as-kind", choices=[*OURS, POLICY], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_kind:
        print(json.dumps(measured(options.as_kind, Path(options.folder), options.quick)), flush=True)
        os._exit(0)  # as the trainer does
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: in_a_process(kind, options, folder) for kind in (*OURS, POLICY)}
    claims = [{"id": name, **CLAIMS[name](found)} for name in ([options.only] if options.only else CLAIMS)]
    for claim in claims:
        judged = ("holds" if claim["holds"] else "DOES NOT HOLD") if claim["claimed"] else "not claimed"
        print(f"{claim['id']:<22}{claim['ours']:>14} {claim['target']}: {judged}")
    around = {name: found["none"][name] for name in ("device_name", "torch", "moment_bytes")}
    around |= {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}
    names = ("host_bytes", "device_bytes", "step_s", "update_s")
    kinds = {kind: {name: answer[name] for name in names} for kind, answer in found.items()}
    asked, played = ([one for one in claims if one["claimed"] is wanted] for wanted in (True, False))
    print(json.dumps({"benchmark": "offload", "conditions": around, "kinds": kinds, "claims": asked, "played": played}))
    return 0 if all(claim["holds"] for claim in asked) else 1


if __name__ == "__main__":
    sys.exit(main())
